"""The connector that CONTRIBUTING.md shows is built as a separate package, linted and run."""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from contextlib import closing
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


# Runs the command once for each line that it reads, so everything is imported only once.
COMMANDS = """
import contextlib, io, json, sys
from ebbflow.cli.main import main

for line in sys.stdin:
    sys.argv = ["ebbflow", *json.loads(line)]
    output = io.StringIO()
    with contextlib.redirect_stdout(output), contextlib.redirect_stderr(output):
        with contextlib.suppress(SystemExit):
            main()
    print(json.dumps(output.getvalue()), flush=True)
"""


class Environment:
    """A folder of installed packages, used by separate processes."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.packages = folder / "packages"
        self._commands: subprocess.Popen[str] | None = None

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

    @property
    def _variables(self) -> dict[str, str]:
        path = os.pathsep.join([str(Path(ebbflow.__file__).parents[1]), str(self.packages)])
        return os.environ | {"PYTHONPATH": path}

    def run(self, *words: str) -> str:
        done = subprocess.run(
            [sys.executable, *words],
            cwd=self.folder,
            env=self._variables,
            capture_output=True,
            text=True,
            check=False,
            timeout=300,
        )
        return done.stdout + done.stderr

    def command(self, *words: str) -> str:
        """Returns what the command prints for these arguments, in one process for all of them."""
        if self._commands is None:
            self._commands = subprocess.Popen(
                [sys.executable, "-c", COMMANDS],
                cwd=self.folder,
                env=self._variables,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
        assert self._commands.stdin is not None
        assert self._commands.stdout is not None
        print(json.dumps(words), file=self._commands.stdin, flush=True)
        output = json.loads(self._commands.stdout.readline())
        assert isinstance(output, str)
        return output

    def lint(self, pipeline: str) -> str:
        (self.folder / "pipeline.yaml").write_text(pipeline)
        return self.command("lint", "pipeline.yaml").strip()

    def close(self) -> None:
        if self._commands is not None:
            self._commands.communicate()


def package(name: str, module: str, **connectors: str) -> dict[str, Any]:
    """The pyproject of a package whose module has these connectors."""
    points = connectors or {"sqlite": module}
    return {"project": {"name": name, "entry-points": {"ebbflow.connectors": points}}}


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Environment]:
    environment = Environment(tmp_path_factory.mktemp("environment"))
    environment.install(PROJECT, ebbflow_sqlite=MODULE.text)
    with closing(environment):
        yield environment


@pytest.fixture
def another(tmp_path: Path) -> Iterator[Environment]:
    """An environment with no package yet."""
    with closing(Environment(tmp_path)) as environment:
        yield environment


def test_the_example_connector_is_one_short_file() -> None:
    assert len(MODULE.text.splitlines()) < 60
    assert MODULE.name == "ebbflow_sqlite.py"


def test_lint_finds_the_connector_by_its_entry_point(environment: Environment) -> None:
    assert environment.lint(PIPELINE) == "1 file ok"
    misspelt = environment.lint(PIPELINE.replace("path:", "pth:"))
    assert "unknown field 'pth'; did you mean 'path'?" in misspelt
    assert "'path' is missing" in misspelt
    wrong = environment.lint(PIPELINE.replace("kept.db", "7"))
    assert "'path' must be text, not 7; put it in quotes" in wrong


def test_the_connector_can_be_a_fallback_sink(environment: Environment) -> None:
    sink = "{blackhole: {}, fallback: {sqlite: {path: kept.db}}}"
    assert environment.lint(PIPELINE.replace("{sqlite: {path: kept.db}}", sink)) == "1 file ok"


def test_a_problem_suggests_the_connector_only_where_it_can_be_used(
    environment: Environment,
) -> None:
    sink = environment.lint(PIPELINE.replace("sqlite:", "sqllite:"))
    assert "unknown field 'sqllite'; did you mean 'sqlite'?" in sink
    source = environment.lint(PIPELINE.replace("generator: {messages: 100}", "quite: {}"))
    assert "valid here: generator" in source
    assert "sqlite" not in source


def test_a_connector_that_is_only_a_sink_cannot_be_a_source(environment: Environment) -> None:
    output = environment.lint(PIPELINE.replace("generator: {messages: 100}", "sqlite: {}"))
    assert (
        "EB212 'sqlite': The connector sqlite of the package ebbflow-sqlite is not a source. "
        "Use it as a sink." in output
    )


def test_the_reference_lists_the_fields_of_the_connector(environment: Environment) -> None:
    pages = f"import runpy; print(runpy.run_path({str(ROOT / 'docs/generate.py')!r})['spec']())"
    output = [line for line in environment.run("-c", pages).splitlines() if "sqlite" in line]
    assert output == [
        "| `spec.vertices[].sink.sqlite.path` | text | required | "
        "the file, made if it is missing |",
        "| `spec.vertices[].sink.sqlite.table` | text | `messages` | "
        "the table, made if it is missing |",
    ]


def test_the_json_schema_has_the_fields_of_the_connector(environment: Environment) -> None:
    definitions = json.loads(environment.command("schema"))["$defs"]
    section, nothing = definitions["SinkSpec"]["properties"]["sqlite"]["anyOf"]
    assert (section["title"], section["required"]) == ("SqliteSinkSpec", ["path"])
    assert section["properties"].keys() == {"path", "table"}
    assert definitions["SourceSpec"]["properties"]["sqlite"]["type"] == nothing["type"] == "null"


def test_the_python_builders_accept_the_connector(environment: Environment) -> None:
    code = (
        "from ebbflow import Pipeline\n"
        "from ebbflow.connectors import Generator, Sqlite\n"
        "pipeline = Pipeline('keep').source('in', Generator(messages=1))\n"
        "spec = pipeline.sink('out', Sqlite(path='kept.db')).spec\n"
        "print(spec.spec.vertices[1].sink.section.table)\n"
        "Sqlite(pth='kept.db')\n"
    )
    output = environment.run("-c", code)
    assert output.startswith("messages\n"), output
    assert "Sqlite() has no option 'pth'; did you mean 'path'?" in output


def test_the_command_lists_the_connector_with_its_package_and_fields(
    environment: Environment,
) -> None:
    listed = environment.command("connectors", "--json").splitlines()
    facts = {(each["name"], each["role"]): each for each in map(json.loads, listed)}
    sqlite = facts["sqlite", "sink"]
    assert (sqlite["package"], sqlite["version"]) == ("ebbflow-sqlite", "1.0")
    assert [(field["name"], field["required"]) for field in sqlite["fields"]] == [
        ("path", True),
        ("table", False),
    ]
    assert facts["kafka", "source"]["package"] == facts["file", "sink"]["package"] == "ebbflow"
    assert ("sqlite", "source") not in facts
    shown = environment.command("connectors", "sqlite")
    assert shown.startswith("sink sqlite, of ebbflow-sqlite 1.0\n")
    assert "the file, made if it is missing" in shown
    unknown = environment.command("connectors", "sqllite")
    assert "no connector is called sqllite; did you mean 'sqlite'?" in unknown


RUNS = """
import sys
from ebbflow import Pipeline
from ebbflow.cli.main import main
from ebbflow.connectors import Generator, Sqlite
from ebbflow.testing.background_run import local_spark

if __name__ == "__main__":
    with local_spark():
        pipeline = Pipeline("built").source("in", Generator(messages=30))
        pipeline = pipeline.sink("out", Sqlite(path="built.db"))
        print(pipeline.run(drain=True, state="built").totals["out"].done)
        sys.argv = ["ebbflow", "run", "pipeline.yaml", "--drain", "--state", "state"]
        main()
"""


@pytest.mark.slow
def test_a_pipeline_in_python_and_one_in_yaml_run_with_the_connector(
    environment: Environment,
) -> None:
    (environment.folder / "pipeline.yaml").write_text(PIPELINE)
    (environment.folder / "built.py").write_text(RUNS)
    output = environment.run("built.py")
    with sqlite3.connect(environment.folder / "built.db") as database:
        assert database.execute("SELECT count(*) FROM messages").fetchall() == [(30,)], output
    assert "drained" in output, output
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
def test_a_broken_package_affects_only_pipelines_that_use_it(
    another: Environment, text: str, why: str
) -> None:
    another.install(package("broken-sqlite", "broken"), broken=text)
    assert another.lint(PLAIN) == "1 file ok"
    output = another.lint(PIPELINE)
    assert "EB212 'sqlite': The connector sqlite of the package broken-sqlite cannot be" in output
    assert why in output


def test_a_missing_dependency_is_reported_with_what_to_install(another: Environment) -> None:
    points = {"sqlite": "broken [fast]", "other": "broken"}
    text = "import nothing_of_this_name.client"
    another.install(package("broken-sqlite", "broken", **points), broken=text)
    output = another.command("connectors")
    assert "kafka" in output
    assert "✗ The connector sqlite of the package broken-sqlite cannot be loaded" in output
    assert "Install what it needs, as with: pip install 'broken-sqlite[fast]'; or update" in output
    assert "Install what it needs, as with: pip install 'nothing_of_this_name'; or update" in output


def test_a_package_that_registers_no_connector_is_named(another: Environment) -> None:
    another.install(package("empty-sqlite", "empty"), empty="")
    assert (
        "The package empty-sqlite ships no connector called sqlite, though its entry point says so"
        in another.lint(PIPELINE)
    )


def test_two_packages_with_one_name_are_both_named(another: Environment) -> None:
    another.install(PROJECT, ebbflow_sqlite=MODULE.text)
    another.install(package("other-sqlite", "other"), other=MODULE.text)
    assert another.lint(PLAIN) == "1 file ok"
    assert (
        "Several packages ship a connector called sqlite: ebbflow-sqlite and other-sqlite. "
        "Uninstall all but one of them." in another.lint(PIPELINE)
    )


def test_built_in_connectors_keep_their_names_and_packages_that_claim_one_are_reported(
    another: Environment,
) -> None:
    text = MODULE.text.replace('@sink("sqlite")', '@sink("blackhole")')
    another.install(package("greedy", "greedy", blackhole="greedy"), greedy=text)
    another.install(package("odd", "odd", **{"my-sink": "odd"}), odd=MODULE.text)
    assert another.lint(PLAIN) == "1 file ok"
    output = another.run(
        "-c",
        "from ebbflow.connectors.registry import find_problems\nprint(*find_problems(), sep='\\n')",
    )
    assert "The connector blackhole of the package greedy cannot be loaded" in output
    assert "greedy.SqliteSinkSpec of the package greedy" in output
    assert "BlackholeSpec of the package ebbflow" in output
    assert "The package odd ships a connector called my-sink, which is not a" in output
