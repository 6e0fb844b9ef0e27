"""Examples in YAML next to a spec: passes, differences, and mistakes in the file itself."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from ebbflow.cli.main import app

SPEC = """\
apiVersion: numaflow.numaproj.io/v1alpha1
kind: Pipeline
metadata: {name: orders}
spec:
  vertices:
  - {name: in, source: {http: {}}}
  - {name: check, udf: {python: "checks:check"}}
  - {name: out, sink: {log: {}}}
  edges: [{from: in, to: check}, {from: check, to: out}]
"""
CODE = """\
import json
from ebbflow import Message, Nack

def check(datum):
    order = json.loads(datum.value)
    if order.get("later") and datum.deliveries == 1:
        raise Nack(delay="1h", reason="not yet")
    return Message(json.dumps({"n": order["n"], "key": list(datum.keys)}).encode())
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "orders.yaml").write_text(SPEC)
    (tmp_path / "checks.py").write_text(CODE)
    return tmp_path


def check(folder: Path, examples: str, *options: str) -> Result:
    (folder / "orders.test.yaml").write_text(examples)
    return CliRunner().invoke(app, ["test", str(folder / "orders.yaml"), *options])


def test_examples_that_end_as_expected_pass(folder: Path) -> None:
    result = check(
        folder,
        """\
- name: an order with a key
  messages:
    - {message: {n: 1}, keys: [a]}
    - '{"n": 2}'
  expect:
    check: {done: 2, values: [{n: 2, key: []}, {n: 1, key: [a]}]}
- name: an order that waits an hour, while the sink is down
  messages: {in: [{n: 1, later: true}]}
  incidents: [{outage: out, lasts: 2h}]
  expect:
    check: {redelivered: 1}
    out: {done: 1}
- name: an order without a number
  messages: [{n: 1}, {}]
  deadLetters: [{vertex: check, reason: KeyError, error: "'n'", value: {}}]
""",
    )
    assert result.exit_code == 0, result.output
    assert result.stdout.splitlines()[-1] == "3 examples ok"


def test_a_failed_example_shows_its_differences_and_what_happened(folder: Path) -> None:
    result = check(
        folder,
        """\
- name: too few
  messages: [{n: 1, later: true}, {n: 2}, {}]
  within: 30m
  expect:
    out: {done: 2, values: [{n: 3, key: []}]}
""",
    )
    assert result.exit_code == 1
    shown = result.stdout
    assert f"FAILED  {folder}/orders.test.yaml:1: too few" in shown
    assert "    out: done is 1, expected 2\n" in shown
    assert '    out: not written: {"n": 3, "key": []}\n' in shown
    assert '    out: written and not expected: {"n": 2, "key": []}\n' in shown
    assert "check: dead letter in-0-2 is not expected: KeyError: KeyError: 'n'" in shown
    assert "    check: 1 not ended\n" in shown
    assert "    |   0s in-0-0 redelivered, due at 1h: not yet" in shown
    assert shown.endswith("1 examples, 1 failed\n")


def test_results_are_json_for_scripts(folder: Path) -> None:
    result = check(folder, "- {name: one, messages: [{n: 1}]}", "--json")
    (line,) = map(json.loads, result.stdout.splitlines())
    assert line == {
        "file": str(folder / "orders.test.yaml"),
        "line": 1,
        "name": "one",
        "passed": True,
        "differences": [],
    }


@pytest.mark.parametrize(
    ("examples", "problem"),
    [
        (
            "- {name: a, expect: {chek: {}}}",
            "EB301 there is no vertex 'chek'; did you mean 'check'?",
        ),
        ("- {name: a, expects: {}}", "EB101 unknown field 'expects'; did you mean 'expect'?"),
        ("- {name: a, incidents: [{lasts: 1m}]}", "EB207 an incident has exactly one of"),
        ("- {name: a, incidents: [{outage: chek}]}", "EB301 there is no vertex 'chek'; did you"),
        ("- {name: a, incidents: [{outage: check, at: soon}]}", "EB105 'at': 'soon' is not a"),
        ("- {name: a, incidents: [{outage: check, lasts: -1s}]}", "EB105 'lasts': '-1s' is not"),
        ("- {name: a, within: 5}", "EB105"),
        ("name: a", "EB103 examples are a list, each with a name, not a mapping"),
    ],
)
def test_mistakes_in_the_file_are_reported_with_their_position(
    folder: Path, examples: str, problem: str
) -> None:
    result = check(folder, examples)
    assert result.exit_code == 1
    assert "orders.test.yaml:1:" in result.output
    assert problem in result.output


def test_a_folder_without_examples_says_what_to_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(app, ["test"])
    assert result.exit_code == 3
    assert "Write pipeline.test.yaml next to pipeline.yaml." in result.output


def test_an_example_without_the_messages_it_needs_is_an_error(folder: Path) -> None:
    result = check(folder, "- {name: a}")
    assert result.exit_code == 3
    assert "The source in reads from http" in result.output
