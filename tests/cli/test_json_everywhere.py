"""``--json``: every command that prints facts has it, and what it prints is JSON."""

import json
from pathlib import Path

from typer.main import get_command
from typer.testing import CliRunner

from ebbflow.cli.main import app

WITHOUT = {
    "demo": "runs a pipeline",
    "new": "creates files and says which",
    "dev": "runs a pipeline",
    "run": "runs a pipeline; its lines are JSON with --log json",
    "serve-udf": "serves a function",
    "schema": "prints nothing but JSON",
    "ui": "serves the web UI",
    "dlq export": "prints nothing but JSON",
    "dlq purge": "prints how many dead letters it has deleted",
}

SPEC = """\
apiVersion: numaflow.numaproj.io/v1alpha1
kind: Pipeline
metadata: {name: orders}
spec:
  vertices:
  - {name: in, source: {generator: {}}}
  - {name: out, sink: {log: {}}}
  edges:
  - {from: in, to: out}
"""


def commands(group=None, before=()):
    """Every command with its options, also those of groups."""
    for name, command in (group or get_command(app)).commands.items():
        if getattr(command, "commands", None):
            yield from commands(command, (*before, name))
        else:
            options = {option for parameter in command.params for option in parameter.opts}
            yield " ".join((*before, name)), options


def test_commands_that_print_facts_print_json():
    without = {name for name, options in commands() if "--json" not in options}
    assert without <= set(WITHOUT)


def test_problems_of_a_file_are_json(tmp_path: Path) -> None:
    file = tmp_path / "bad.yaml"
    file.write_text(SPEC.replace("to: out", "to: ot"))
    result = CliRunner().invoke(app, ["lint", str(file), "--json"])
    assert result.exit_code == 1
    assert json.loads(result.stdout) == {
        "file": str(file),
        "line": 9,
        "column": 20,
        "code": "EB301",
        "message": "there is no vertex 'ot'; did you mean 'out'?",
    }
    file.write_text(SPEC)
    good = CliRunner().invoke(app, ["lint", str(file), "--json"])
    assert (good.exit_code, good.stdout) == (0, "")


def test_permissions_are_json(tmp_path: Path) -> None:
    file = tmp_path / "good.yaml"
    file.write_text(SPEC)
    permitted = json.loads(CliRunner().invoke(app, ["permissions", str(file), "--json"]).stdout)
    assert "ebb.orders.control" in permitted["subscribe"]["control messages, and reports of tasks"]


def test_findings_of_the_doctor_are_json(tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["doctor", "--json", "--state", str(tmp_path / "state")])
    findings = [json.loads(line) for line in result.stdout.splitlines()]
    assert all(finding["ok"] for finding in findings)
    assert findings[0]["text"].startswith("Python 3")
