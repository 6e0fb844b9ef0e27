import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from ebbflow.cli.main import app
from ebbflow.cli.options import EXIT_CODES
from ebbflow.domain import __version__

EBBFLOW = Path(sys.executable).with_name("ebbflow")

SPEC = """\
apiVersion: numaflow.numaproj.io/v1alpha1
kind: Pipeline
metadata: {name: tiny}
spec:
  vertices:
  - {name: in, source: {generator: {messages: 50}}}
  - name: enrich
    udf: {python: "handlers:enrich"}
    onError: {backoff: {interval: 50ms, steps: 1}}
  - {name: out, sink: {log: {}}}
  edges:
  - {from: in, to: enrich}
  - {from: enrich, to: out}
"""

HANDLERS = """\
import json
from ebbflow import Message

def enrich(datum):
    if json.loads(datum.value)["value"] == 7:
        raise ValueError("not seven")
    return Message(datum.value)
"""


@pytest.fixture
def spec(tmp_path: Path) -> Path:
    (tmp_path / "handlers.py").write_text(HANDLERS)
    file = tmp_path / "tiny.yaml"
    file.write_text(SPEC)
    return file


def invoke(*args: str | Path) -> Result:
    return CliRunner().invoke(app, [str(arg) for arg in args])


def test_problems_of_a_pipeline_are_printed_as_by_lint(spec: Path) -> None:
    spec.write_text(SPEC.replace("to: out", "to: ot").replace("handlers:", "handlers;"))
    run, lint = invoke("run", spec), invoke("lint", spec)
    assert (run.exit_code, run.stdout) == (1, lint.stdout)
    assert "EB301 there is no vertex 'ot'" in run.stdout


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["run", "x.yaml", "--max-dead-letters", "many"], "must be a whole number"),
        (["run", "x.yaml", "--max-dead-letters", "-1"], "must be greater than or equal to 0"),
        (["run", "x.yaml", "--log", "jsno"], "'jsno' is not one of 'plain', 'json'"),
        (["dlq", "list", "orders", "--limit", "0"], "must be greater than or equal to 1"),
        (["tap", "orders", "in", "--sample", "half"], "must be a number"),
    ],
)
def test_a_wrong_value_is_explained_in_plain_words(words: list[str], said: str) -> None:
    result = invoke(*words)
    assert result.exit_code == 2
    assert re.search(rf"Error: Invalid value for '{words[-2]}'.*: {said}", result.output)


GUARDED = """\
---
apiVersion: numaflow.numaproj.io/v1alpha1
kind: Pipeline
metadata: {name: guarded}
spec:
  vertices:
  - {name: in, source: {http: {auth: {token: {name: web, key: token}}}}}
  - {name: out, sink: {log: {}}}
  edges:
  - {from: in, to: out}
"""


def test_a_missing_secret_ends_the_run_of_the_named_pipeline(spec: Path) -> None:
    spec.write_text(SPEC + GUARDED)
    folder = spec.parent
    options = ("--state", folder / "state", "--secrets", folder)
    unclear, named = invoke("run", spec), invoke("run", spec, "--name", "guarded", *options)
    assert unclear.stdout == (
        f"{spec}:1:1: EB006 the file holds 2 pipelines: tiny, guarded; choose one with --name "
        "NAME\n"
    )
    assert (unclear.exit_code, named.exit_code) == (1, 3)
    assert (
        "ebbflow: The Secret web with the key token is not here; it must hold the token of the "
        "http source in. Looked at the variable EBBFLOW_SECRET_WEB__TOKEN, the files "
        f"{folder}/web/token and {folder}/web.token, the Secret documents of the pipeline's file.\n"
    ) in named.stderr


@pytest.mark.parametrize(
    ("args", "expected"),
    [
        (["--timeout", "5"], "--timeout: '5' is not a duration; write for example 700ms, 5s"),
        (["--timeout", "0s"], "--timeout: must be longer than 0."),
        (["--epoch", "soon"], "--epoch: 'soon' is not a duration"),
        (["--conf", "spark.x"], "--conf: 'spark.x' is not of the form key=value."),
        (["--summary", "/nowhere/s.json"], "--summary: cannot write a file '/nowhere/s.json'."),
        (["--log", "xml"], "'xml' is not one of 'plain', 'json'"),
        (["--max-dead-letters", "-1"], "--max-dead-letters"),
        (["--durability", "maybe"], "'maybe' is not one of"),
        (["--nats-port", "70000"], "--nats-port"),
        (["--drian"], "No such option: --drian"),
    ],
)
def test_wrong_usage_is_rejected_before_anything_starts(
    spec: Path, args: list[str], expected: str
) -> None:
    result = invoke("run", spec, *args)
    assert result.exit_code == 2
    assert expected in result.stderr


def test_a_state_folder_in_use_exits_with_3_and_names_its_owner(spec: Path, state: Path) -> None:
    result = invoke("run", spec, "--state", state)
    assert result.exit_code == 3
    assert result.stderr.endswith(
        f"ebbflow: The state folder {state} belongs to a running instance "
        f"(process {os.getpid()}). Stop that one first, or choose another folder with "
        "--state DIR.\n"
    )


def test_help_lists_every_exit_code() -> None:
    result = invoke("run", "--help")
    for code, meaning in EXIT_CODES.items():
        assert f"  {code:5}  {meaning}\n" in result.stdout


def test_the_version_is_printed() -> None:
    assert invoke("--version").stdout == f"ebbflow {__version__}\n"


def test_the_command_starts_without_importing_heavy_packages() -> None:
    heavy = ("pyspark", "nats", "pyarrow", "pydantic", "rich")
    code = f"import sys, ebbflow.cli.main; print([m for m in {heavy} if m in sys.modules])"
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert process.stdout == "[]\n"


def test_a_bug_shows_a_plain_traceback_and_is_not_reported_as_a_spec_problem() -> None:
    code = (
        "from ebbflow.cli import main\n"
        "@main.app.command()\n"
        "def broken():\n"
        "    secret = 'pass' + 'word'\n"
        "    raise RuntimeError('oh')\n"
        "main.main()\n"
    )
    process = subprocess.run([sys.executable, "-c", code, "broken"], capture_output=True, text=True)
    assert process.returncode == 3
    assert process.stderr.startswith("Traceback (most recent call last):\n")
    assert process.stderr.endswith("RuntimeError: oh\n")
    assert "password" not in process.stderr


def ebbflow(folder: Path, *args: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([EBBFLOW, *args], cwd=folder, capture_output=True, text=True, timeout=300)


DRAIN = ("run", "tiny.yaml", "--drain", "--timeout", "240s", "--summary", "s.json")


@pytest.mark.slow
def test_a_run_prints_messages_counts_and_what_to_do_next(
    spec: Path, spark: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first run is a separate process, the others use the session of the tests."""
    folder = spec.parent
    monkeypatch.chdir(folder)
    first = ebbflow(folder, *DRAIN)
    assert first.returncode == 0, first.stderr
    lines = first.stdout.splitlines()
    assert len(lines) == 49
    assert all(line.startswith("(out) id=in-") for line in lines)
    account = "Adds up: 50 read by in; 49 done by out, 1 dead letter.\ndrained after"
    assert account in first.stderr
    assert "1 dead letter; see why: ebbflow dlq list tiny\n" in first.stderr
    counts = json.loads((folder / "s.json").read_text())["vertices"]
    assert counts["enrich"]["read"] == 51
    assert counts["enrich"]["dead_lettered"] == 1
    assert [p.name for p in folder.glob("*s.json*")] == ["s.json"]

    listed = invoke("dlq", "list", "tiny", "--json")
    assert json.loads(listed.stdout)["error"] == "ValueError: not seven"
    handlers = folder / "handlers.py"
    handlers.write_text(HANDLERS.replace("== 7", "== -1"))
    assert invoke("dlq", "replay", "tiny", "--all").stdout == "1 dead letter sent back\n"
    again = invoke(*DRAIN)
    assert [line.split()[1] for line in again.stdout.splitlines()] == ["id=in-7/enrich"]

    idle = invoke(*DRAIN)
    nothing, over = idle.stderr.splitlines()[-2:]
    assert nothing.endswith("Nothing was read: the sources were exhausted in an earlier run.")
    assert over.endswith("Forget that and start over: ebbflow run tiny.yaml --fresh")


def test_more_dead_letters_than_allowed_end_the_run_with_6_and_json_says_why(
    spec: Path, spark: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(spec.parent)
    result = invoke("run", "tiny.yaml", "--drain", "--timeout", "240s", "--max-dead-letters", "0",
                    "--log", "json")  # fmt: skip
    lines = [json.loads(line) for line in result.stderr.splitlines()]
    end = lines[-1]
    assert result.exit_code == 6
    assert (end["event"], end["level"], end["ended"], end["dead_letters"]) == (
        ("end", "error", "failed", 1)
    )
    assert all(line["time"] and line["level"] and line["message"] for line in lines)
    messages = [json.loads(line) for line in result.stdout.splitlines()]
    assert {line["event"] for line in messages} == {"message"}


def test_a_drain_that_takes_too_long_exits_with_4_and_still_writes_the_summary(
    spec: Path, spark: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(spec.parent)
    spec.write_text(SPEC.replace("messages: 50", "rpu: 5"))
    result = invoke("run", "tiny.yaml", "--drain", "--timeout", "2s",
                    "--summary", "s.json", "--state", "elsewhere")  # fmt: skip
    assert result.exit_code == 4
    assert "timeout after" in result.stderr
    assert "Traceback" not in result.stderr
    assert json.loads(Path("s.json").read_text())["ended"] == "timeout"
