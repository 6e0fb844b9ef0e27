"""The connector that CONTRIBUTING.md shows is built as a package of its own, linted and run."""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

import ebbflow
from tests.docs.pages import ROOT, Page

(MODULE,) = (block for block in Page(ROOT / "CONTRIBUTING.md").blocks if block.name is not None)
GUIDE = Page(ROOT / "docs/guides/connectors/shipping.md")
(PROJECT,) = (tomllib.loads(block.text) for block in GUIDE.blocks if block.language == "toml")
(PIPELINE,) = (block.text for block in GUIDE.blocks if block.language == "text")
PLAIN = PIPELINE.replace("sqlite: {path: kept.db}", "blackhole: {}")


class Environment:
    """A folder of installed packages, used by processes of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.packages = folder / "packages"

    def install(self, project: dict[str, Any], **modules: str) -> None:
        """Installs a package as pip does: its modules, and a dist-info with its entry points."""
        name = project["project"]["name"]
        info = self.packages / f"{name.replace('-', '_')}-1.0.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        lines = [
            f"[{group}]\n" + "".join(f"{key} = {value}\n" for key, value in points.items())
            for group, points in project["project"]["entry-points"].items()
        ]
        (info / "entry_points.txt").write_text("\n".join(lines))
        for module, text in modules.items():
            (self.packages / f"{module}.py").write_text(text)

    def run(self, *words: str) -> str:
        path = os.pathsep.join([str(Path(ebbflow.__file__).parents[1]), str(self.packages)])
        done = subprocess.run(
            [sys.executable, *words],
            cwd=self.folder,
            env=os.environ | {"PYTHONPATH": path},
            capture_output=True,
            text=True,
            check=False,
            timeout=240,
        )
        return done.stdout + done.stderr

    def lint(self, pipeline: str) -> str:
        (self.folder / "pipeline.yaml").write_text(pipeline)
        return self.run("-m", "ebbflow", "lint", "pipeline.yaml").strip()


def package(name: str, module: str, **connectors: str) -> dict[str, Any]:
    """The pyproject of a package whose module has these connectors."""
    points = connectors or {"sqlite": module}
    return {"project": {"name": name, "entry-points": {"ebbflow.connectors": points}}}


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Environment:
    environment = Environment(tmp_path_factory.mktemp("environment"))
    environment.install(PROJECT, ebbflow_sqlite=MODULE.text)
    return environment


def test_it_is_one_short_file() -> None:
    assert len(MODULE.text.splitlines()) < 60
    assert MODULE.name == "ebbflow_sqlite.py"


def test_lint_knows_it_by_its_entry_point(environment: Environment) -> None:
    assert environment.lint(PIPELINE) == "1 file ok"
    misspelt = environment.lint(PIPELINE.replace("path:", "pth:"))
    assert "unknown field 'pth'; did you mean 'path'?" in misspelt
    assert "'path' is missing" in misspelt
    wrong = environment.lint(PIPELINE.replace("kept.db", "7"))
    assert "'path' must be text, not 7; put it in quotes" in wrong


def test_it_may_be_a_fallback_sink(environment: Environment) -> None:
    sink = "{blackhole: {}, fallback: {sqlite: {path: kept.db}}}"
    assert environment.lint(PIPELINE.replace("{sqlite: {path: kept.db}}", sink)) == "1 file ok"


def test_a_message_about_another_name_offers_it_where_it_can_be_used(
    environment: Environment,
) -> None:
    sink = environment.lint(PIPELINE.replace("sqlite:", "sqllite:"))
    assert "unknown field 'sqllite'; did you mean 'sqlite'?" in sink
    source = environment.lint(PIPELINE.replace("generator: {messages: 100}", "quite: {}"))
    assert "valid here: generator" in source
    assert "sqlite" not in source


def test_what_is_only_a_sink_cannot_be_a_source(environment: Environment) -> None:
    said = environment.lint(PIPELINE.replace("generator: {messages: 100}", "sqlite: {}"))
    assert (
        "EB212 'sqlite': The connector sqlite of the package ebbflow-sqlite is not a source. "
        "Use it as a sink." in said
    )


def test_the_reference_has_its_fields(environment: Environment) -> None:
    pages = f"import runpy; print(runpy.run_path({str(ROOT / 'docs/generate.py')!r})['spec']())"
    told = [line for line in environment.run("-c", pages).splitlines() if "sqlite" in line]
    assert told == [
        "| `spec.vertices[].sink.sqlite.path` | text | required | "
        "the file, made if it is missing |",
        "| `spec.vertices[].sink.sqlite.table` | text | `messages` | "
        "the table, made if it is missing |",
    ]


def test_the_json_schema_has_its_fields(environment: Environment) -> None:
    definitions = json.loads(environment.run("-m", "ebbflow", "schema"))["$defs"]
    section, nothing = definitions["SinkSpec"]["properties"]["sqlite"]["anyOf"]
    assert (section["title"], section["required"]) == ("SqliteSinkSpec", ["path"])
    assert section["properties"].keys() == {"path", "table"}
    assert definitions["SourceSpec"]["properties"]["sqlite"]["type"] == nothing["type"] == "null"


def test_the_python_builders_take_it(environment: Environment) -> None:
    code = (
        "from ebbflow import Pipeline\n"
        "pipeline = Pipeline('keep').source('in', generator={'messages': 1})\n"
        "spec = pipeline.sink('out', sqlite={'path': 'kept.db'}).spec\n"
        "print(spec.spec.vertices[1].sink.section.table)\n"
        "pipeline.sink('again', sqllite={})\n"
    )
    said = environment.run("-c", code)
    assert said.startswith("messages\n"), said
    assert "Pipeline.sink() has no option 'sqllite'; did you mean 'sqlite'?" in said


@pytest.mark.slow
def test_a_pipeline_runs_with_it(environment: Environment) -> None:
    environment.lint(PIPELINE)
    told = environment.run("-m", "ebbflow", "run", "pipeline.yaml", "--drain", "--state", "state")
    assert "drained" in told, told
    with sqlite3.connect(environment.folder / "kept.db") as database:
        rows = dict(database.execute("SELECT id, value FROM messages"))
    assert len(rows) == 100
    assert rows["in-7"].endswith(b'"value":7}')


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("import nothing_of_this_name", "ModuleNotFoundError: No module named"),
        ("raise SystemExit(3)", "SystemExit: 3"),
        ("x = (", "SyntaxError"),
    ],
)
def test_a_broken_package_harms_only_who_uses_it(tmp_path: Path, text: str, why: str) -> None:
    environment = Environment(tmp_path)
    environment.install(package("broken-sqlite", "broken"), broken=text)
    assert environment.lint(PLAIN) == "1 file ok"
    said = environment.lint(PIPELINE)
    assert "EB212 'sqlite': The connector sqlite of the package broken-sqlite cannot be" in said
    assert why in said


def test_a_package_that_registers_nothing_is_named(tmp_path: Path) -> None:
    environment = Environment(tmp_path)
    environment.install(package("empty-sqlite", "empty"), empty="")
    assert (
        "The package empty-sqlite ships no connector called sqlite, though its entry point says so"
        in environment.lint(PIPELINE)
    )


def test_two_packages_with_one_name_are_both_named(tmp_path: Path) -> None:
    environment = Environment(tmp_path)
    environment.install(PROJECT, ebbflow_sqlite=MODULE.text)
    environment.install(package("other-sqlite", "other"), other=MODULE.text)
    assert environment.lint(PLAIN) == "1 file ok"
    assert (
        "Several packages ship a connector called sqlite: ebbflow-sqlite and other-sqlite. "
        "Uninstall all but one of them." in environment.lint(PIPELINE)
    )


def test_built_in_connectors_keep_their_names_and_the_doctor_names_who_wants_them(
    tmp_path: Path,
) -> None:
    environment = Environment(tmp_path)
    text = MODULE.text.replace('@sink("sqlite")', '@sink("blackhole")')
    environment.install(package("greedy", "greedy", blackhole="greedy"), greedy=text)
    environment.install(package("odd", "odd", **{"my-sink": "odd"}), odd=MODULE.text)
    assert environment.lint(PLAIN) == "1 file ok"
    said = environment.run(
        "-c",
        "from ebbflow.connectors.registry import find_problems\nprint(*find_problems(), sep='\\n')",
    )
    assert "The connector blackhole of the package greedy cannot be loaded" in said
    assert "greedy.SqliteSinkSpec of the package greedy" in said
    assert "BlackholeSpec of the package ebbflow" in said
    assert "The package odd ships a connector called my-sink, which cannot be" in said
