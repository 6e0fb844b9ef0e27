"""The connector that CONTRIBUTING.md shows is built from that page: one folder and one line."""

from __future__ import annotations

import os
import shutil
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

import ebbflow
from tests.docs.pages import ROOT, Page

PAGE = Page(ROOT / "CONTRIBUTING.md")
ADDED, PIPELINE = (block.text for block in PAGE.blocks if block.language == "text")


class Checkout:
    """A copy of the package with the connector in it, used by processes of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        source = folder / "src" / "ebbflow"
        # With the times of the files, so that what is compiled beside them holds.
        shutil.copytree(Path(ebbflow.__file__).parent, source)
        self.connectors = source / "connectors"
        (self.connectors / "sqlite").mkdir()
        (self.connectors / "sqlite" / "__init__.py").write_text('"""SQLite as a sink."""\n')
        for block in PAGE.blocks:
            if block.name is not None:
                (self.connectors / "sqlite" / block.name).write_text(block.text)
        self._register()

    def _register(self) -> None:
        imported, _, table, line = ADDED.splitlines()
        registry = self.connectors / "registry.py"
        text = registry.read_text()
        assert text.count(f"{table}\n") == 1
        text = text.replace(f"{table}\n", f"{table}\n{line}\n")
        first = "from ebbflow.connectors."
        registry.write_text(text.replace(first, f"{imported}\n{first}", 1))

    def run(self, *words: str) -> str:
        done = subprocess.run(
            [sys.executable, *words],
            cwd=self.folder,
            env=os.environ | {"PYTHONPATH": str(self.folder / "src")},
            capture_output=True,
            text=True,
            check=False,
            timeout=240,
        )
        return done.stdout + done.stderr

    def lint(self, pipeline: str) -> str:
        (self.folder / "pipeline.yaml").write_text(pipeline)
        return self.run("-m", "ebbflow", "lint", "pipeline.yaml").strip()


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Checkout:
    return Checkout(tmp_path_factory.mktemp("checkout"))


def test_lint_knows_it_by_its_line_in_the_registry(checkout: Checkout) -> None:
    assert checkout.lint(PIPELINE) == "1 file ok"
    misspelt = checkout.lint(PIPELINE.replace("path:", "pth:"))
    assert "unknown field 'pth'; did you mean 'path'?" in misspelt
    assert "'path' is missing" in misspelt


def test_the_reference_has_its_fields(checkout: Checkout) -> None:
    pages = f"import runpy; print(runpy.run_path({str(ROOT / 'docs/generate.py')!r})['spec']())"
    told = [line for line in checkout.run("-c", pages).splitlines() if "sqlite" in line]
    assert told == [
        "| `spec.vertices[].sink.sqlite.path` | text | required | "
        "the file, made if it is missing |",
        "| `spec.vertices[].sink.sqlite.table` | text | `messages` | "
        "the table, made if it is missing |",
    ]


@pytest.mark.slow
def test_a_pipeline_runs_with_it(checkout: Checkout) -> None:
    checkout.lint(PIPELINE)
    told = checkout.run("-m", "ebbflow", "run", "pipeline.yaml", "--drain", "--state", "state")
    assert "drained" in told, told
    with sqlite3.connect(checkout.folder / "kept.db") as database:
        rows = dict(database.execute("SELECT id, value FROM messages"))
    assert len(rows) == 100
    assert rows["in-7"].endswith(b'"value":7}')
