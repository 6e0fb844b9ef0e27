"""``ebbflow new``: every template is linted, type-checked and tested as its author would do it."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from typer.testing import CliRunner

from ebbflow.cli.main import app
from ebbflow.cli.project_commands import Template, render
from ebbflow.spec.lint import lint

ROOT = Path(__file__).parents[2]
PIPELINES = [template for template in Template if template is not Template.CONNECTOR]


def check(folder: Path, *arguments: str) -> None:
    command = [sys.executable, "-m", *arguments]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=550)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture(scope="module")
def created(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a pipeline of every template."""
    root = tmp_path_factory.mktemp("new")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(root)
        for template in Template:
            name = f"my-{template}"
            result = CliRunner().invoke(app, ["new", name, "--template", template])
            assert result.exit_code == 0, result.output
            assert f"created {name}/pipeline.yaml" in result.output
    return root


@pytest.mark.parametrize("template", PIPELINES)
def test_a_new_pipeline_has_no_problems(created: Path, template: Template) -> None:
    folder = created / f"my-{template}"
    assert [str(problem) for problem in lint(folder / "pipeline.yaml")] == []
    files = {"Dockerfile", ".github/workflows/ci.yaml", "requirements.txt", "README.md"}
    files |= {".gitignore", ".dockerignore"}
    assert all((folder / file).is_file() for file in files)
    rendered = render(f"my-{template}", template)
    assert [file for file, text in rendered.items() if "@NAME@" in text] == []
    assert {*rendered} <= {str(p.relative_to(folder)) for p in folder.rglob("*")}


OWN_CODE = ["orders", "spark", "serving"]
"""The templates whose code is their own; the others have that of ``orders``."""


@pytest.mark.parametrize("template", [*OWN_CODE, "connector"])
def test_the_code_of_a_template_is_formatted_and_typed(created: Path, template: str) -> None:
    folder = created / f"my-{template}"
    check(folder, "ruff", "check", "--select", "E,F,I,B,UP", ".")
    check(folder, "ruff", "format", "--check", ".")
    # What the templates import was checked before: by make types, or by the first template.
    check(folder, "mypy", "--strict", "--cache-dir", str(ROOT / ".mypy_cache"), ".")


@pytest.mark.parametrize(
    "template",
    [
        pytest.param(template, marks=() if template in OWN_CODE else pytest.mark.long)
        for template in PIPELINES
    ],
)
def test_the_tests_of_a_new_pipeline_pass(created: Path, template: Template) -> None:
    check(created / f"my-{template}", "pytest", "-q", "-p", "no:cacheprovider")


def test_a_new_connector_is_a_package_registered_under_its_name(created: Path) -> None:
    folder = created / "my-connector"
    assert {*render("my-connector", Template.CONNECTOR)} == {
        *(".github/workflows/ci.yaml", ".gitignore", "README.md", "pyproject.toml"),
        *("pipeline.yaml", "my_connector.py", "test_my_connector.py"),
    }
    project = tomllib.loads((folder / "pyproject.toml").read_text())["project"]
    assert project["entry-points"] == {"ebbflow.connectors": {"myconnector": "my_connector"}}
    text = "".join(render("my-connector", Template.CONNECTOR).values())
    assert re.findall(r"@[A-Z]+@", text) == []


@pytest.mark.parametrize(
    ("template", "steps"),
    [
        ("orders", "ebbflow test && ebbflow dev pipeline.yaml"),
        ("kafka", "pip install -r requirements.txt && ebbflow test && ebbflow dev pipeline.yaml"),
        ("connector", "pip install -e . pytest && python -m pytest"),
    ],
)
def test_the_next_steps_install_missing_packages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, template: str, steps: str
) -> None:
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(app, ["new", "first", "--template", template])
    assert result.output.splitlines()[-1] == f"Next: cd first && {steps}"


def test_a_new_connector_cannot_have_the_name_of_an_existing_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(app, ["new", "kafka", "--template", "connector"])
    assert "There is a connector called kafka already" in result.output
    assert [*tmp_path.iterdir()] == []


def test_a_folder_with_files_is_left_unchanged(created: Path, monkeypatch) -> None:
    monkeypatch.chdir(created)
    before = (created / "my-orders" / "steps.py").read_bytes()
    result = CliRunner().invoke(app, ["new", "my-orders", "--template", "mono"])
    assert result.exit_code != 0
    assert "my-orders exists already" in result.output
    assert (created / "my-orders" / "steps.py").read_bytes() == before
    assert CliRunner().invoke(app, ["new", "../up"]).exit_code == 2
