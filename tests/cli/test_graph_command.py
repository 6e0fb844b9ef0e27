"""``ebbflow graph``, ``echo`` and ``schema``: of a file, and of a pipeline that has run."""

import json
from xml.etree import ElementTree

import pytest
import yaml
from typer.testing import CliRunner

from ebbflow.cli.main import app

SPEC = """\
apiVersion: numaflow.numaproj.io/v1alpha1
kind: Pipeline
metadata: {name: small}
spec:
  vertices:
  - {name: in, source: {generator: {messages: 3, rpu: 5}}}
  - {name: out, sink: {log: {}}, partitions: 2}
  edges:
  - {from: in, to: out}
"""

DRAWING = """\
┌───────────┐    ┌────────┐
│ in        │───►│ out x2 │
│ generator │    │ log    │
└───────────┘    └────────┘
"""


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "small.yaml"
    path.write_text(SPEC)
    return path


def invoke(*args):
    return CliRunner().invoke(app, [str(arg) for arg in args])


def test_a_file_is_drawn(file, tmp_path):
    assert invoke("graph", file).output == DRAWING
    assert invoke("graph", file, "-f", "mermaid").output.startswith("flowchart LR\n")
    picture = tmp_path / "small.svg"
    assert invoke("graph", file, "-f", "svg", "-o", picture).output == ""
    assert ElementTree.parse(picture).getroot().tag.endswith("svg")
    facts = json.loads(invoke("graph", file, "--json").output)
    assert facts["layout"]["vertices"] == {
        "in": {"layer": 0, "row": 0},
        "out": {"layer": 1, "row": 0},
    }
    assert facts["shape"]["edges"] == [{"from": "in", "to": "out", "condition": ""}]


def test_a_pipeline_that_has_run_is_drawn_and_echoed_by_its_name(state, standing):
    drawing = invoke("graph", standing.name, "--state", state).output
    assert all(name in drawing for name in ("in", "sorted x2", "table", "out"))
    document = yaml.safe_load(invoke("echo", standing.name, "--state", state).output)
    assert document["metadata"]["name"] == standing.name
    result = invoke("echo", standing.name, "--defaults", "--state", state)
    assert (result.exit_code, "needs the file" in result.output) == (2, True)


def test_a_file_is_echoed(file):
    assert yaml.safe_load(invoke("echo", file).output) == yaml.safe_load(SPEC)
    assert json.loads(invoke("echo", file, "--json").output) == yaml.safe_load(SPEC)
    whole = yaml.safe_load(invoke("echo", file, "--defaults").output)
    assert whole["spec"]["vertices"][0]["partitions"] == 1


def test_problems_of_a_file_are_told_as_by_lint(file):
    file.write_text(SPEC.replace("messages", "mesages"))
    for command in ("graph", "echo"):
        result = invoke(command, file)
        assert result.exit_code == 1
        assert f"{file}:6:37: EB101 unknown field 'mesages'" in result.output


def test_the_schema_is_printed_or_written(tmp_path):
    schema = json.loads(invoke("schema").output)
    assert schema["properties"]["kind"]["enum"][0] == "Pipeline"
    target = tmp_path / "schema.json"
    assert invoke("schema", "-o", target).output == ""
    assert json.loads(target.read_text()) == schema
