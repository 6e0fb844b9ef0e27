"""What the page about deploying shows: systemd accepts the unit, the Dockerfile is current."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from typer.main import get_command

from ebbflow.cli.main import app
from tests.docs.pages import PAGES, ROOT, Block

PAGE = next(page for page in PAGES if page.path.name == "deploying.md")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def block(name: str) -> Block:
    (found,) = [block for block in PAGE.blocks if block.name == name]
    return found


def check_command(words: list[str]) -> None:
    """Parses a command line of Ebbflow as the command would, without running it."""
    assert Path(words[0]).name == "ebbflow"
    command = get_command(app)
    name, *rest = words[1:]
    command.commands[name].make_context(name, rest)  # type: ignore[attr-defined]


def test_systemd_accepts_the_unit(tmp_path: Path) -> None:
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd-analyze is missing: the unit is NOT checked")
    ebbflow = str(Path(sys.executable).parent / "ebbflow")
    unit = tmp_path / "orders.service"
    text = block("orders.service").text
    unit.write_text(text.replace("/opt/orders/.venv/bin/ebbflow", ebbflow), encoding="utf-8")
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", str(unit)],
        text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    assert (done.returncode, [line for line in done.stdout.splitlines() if "orders" in line]) == (
        0,
        [],
    )


def test_the_command_of_the_unit_exists() -> None:
    (line,) = re.findall(r"^ExecStart=(.*)$", block("orders.service").text, re.MULTILINE)
    check_command(shlex.split(line))


def test_the_command_of_the_container_exists() -> None:
    (line,) = re.findall(r"^CMD (.*)$", block("Dockerfile").text, re.MULTILINE)
    check_command(json.loads(line))


def test_the_container_installs_extras_and_versions_that_the_project_has() -> None:
    text = block("Dockerfile").text
    (extras,) = re.findall(r"-any\.whl\[([\w,]+)\]", text)
    assert set(extras.split(",")) <= set(PROJECT["optional-dependencies"])
    (python,) = re.findall(r"^FROM python:([\d.]+)", text, re.MULTILINE)
    assert f"Programming Language :: Python :: {python}" in PROJECT["classifiers"]
    (java,) = re.findall(r"openjdk-(\d+)-jre", text)
    assert int(java) >= 17
    assert "CMD" in (ROOT / "src/ebbflow/cli/templates/shared/Dockerfile.tmpl").read_text("utf-8")
