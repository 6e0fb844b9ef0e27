"""The guide about serving, followed exactly: its pipeline, its curl commands, its client."""

from __future__ import annotations

import asyncio
import re
import runpy
import shlex
import shutil
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from urllib.error import URLError
from urllib.request import urlopen

import pytest
from typer.testing import CliRunner

from ebbflow.builders import Builder
from ebbflow.cli.main import app
from ebbflow.client import Client, RequestFailed
from ebbflow.spec.lint import load
from ebbflow.testing.background_run import BackgroundRun, until
from tests.docs.pages import PAGES, commands, pattern
from tests.ports import free_port

GUIDE = next(page for page in PAGES if page.path.name == "serving.md")
BLOCKS = [block for block in GUIDE.blocks if "run" in block.words]
pytestmark = pytest.mark.slow

LOOKS_UP = re.compile(r"'http://[^']+\?id=|^ebbflow")


@dataclass(frozen=True)
class Shop:
    """The guide's pipeline while it runs, on a free port."""

    folder: Path
    port: int
    run: BackgroundRun

    @property
    def url(self) -> str:
        return f"http://localhost:{self.port}"

    def is_ready(self) -> bool:
        try:
            return urlopen(f"{self.url}/ready", timeout=5).status == 200
        except (URLError, OSError):
            return False

    def differs(self, command: str, expected: list[str]) -> str:
        """Returns what a command prints if it differs from the guide, else nothing.

        Commands that look something up are repeated for a while; a post is not.
        """
        wanted = re.compile(pattern(expected), re.DOTALL)
        end = time.monotonic() + (20 if LOOKS_UP.search(command) else 0)
        while not wanted.fullmatch(printed := self.run_command(command)):
            if time.monotonic() > end:
                return printed
        return ""

    def run_command(self, command: str) -> str:
        """Runs a command and returns what it prints."""
        words = shlex.split(command.replace("localhost:8080", f"localhost:{self.port}"))
        if words[0] == "ebbflow":
            state = ["--state", str(self.folder / "state")]
            return CliRunner().invoke(app, [*words[1:], *state], catch_exceptions=False).stdout
        done = subprocess.run(words, capture_output=True, text=True, timeout=300, check=True)
        return done.stdout.replace("\r\n", "\n")


@pytest.fixture(scope="module")
def shop(spark: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shop]:
    folder, port = tmp_path_factory.mktemp("shop"), free_port()
    for block in GUIDE.blocks:
        if block.name is not None:
            text = block.text.replace("ports: {http: 8080}", f"ports: {{http: {port}}}")
            (folder / block.name).write_text(text, encoding="utf-8")
    pipeline = cast(Builder, SimpleNamespace(spec=load(folder / "shop.yaml")))
    run = BackgroundRun(pipeline, folder / "state", search=folder)
    running = Shop(folder, port, run)
    try:
        assert until(running.is_ready, 120), run.failures
        yield running
    finally:
        run.stop()


@pytest.mark.skipif(shutil.which("curl") is None, reason="there is no curl")
@pytest.mark.guarantee("a-request-is-complete-when-its-messages-have-ended")
def test_the_commands_of_the_guide_print_what_it_shows(shop: Shop) -> None:
    shown = [pair for block in BLOCKS for pair in commands(block.text)]
    assert len(shown) > 10
    wrong = [
        f"$ {command}\n{printed}"
        for command, expected in shown
        if (printed := shop.differs(command, expected))
    ]
    assert wrong == [], "\n\n".join(wrong)


def test_the_client_of_the_guide_gets_its_prices(shop: Shop) -> None:
    ask = runpy.run_path(str(shop.folder / "ask.py"))
    assert ask["tell_prices"](shop.url) == [
        "pear 3: 165\n",
        "pear 3: 165\n",
        "apple 1: 40\n",
        "plum 2: 60\n",
        "quote: gold is not for sale",
    ]
    assert asyncio.run(ask["tell_a_price"](shop.url)) == "pear 3: 165\n"


def test_the_client_shows_the_path_of_a_request(shop: Shop) -> None:
    with Client(shop.url) as client:
        id = client.submit("plum 2, gold 1")
        with pytest.raises(RequestFailed, match="map failure: gold is not for sale"):
            client.wait(id)
        status = client.status(id)
    assert (status.id, status.status) == (id, "failed")
    assert status.failure is not None
    assert (status.failure.vertex, status.failure.error) == ("quote", "gold is not for sale")
    steps = [(step.vertex, step.deliveries, step.outcome, step.reason) for step in status.steps]
    assert steps == [
        ("in", 1, "done", None),
        ("quote", 1, "redelivered", "no price yet"),
        ("quote", 2, "dead_lettered", "map failure"),
    ]
