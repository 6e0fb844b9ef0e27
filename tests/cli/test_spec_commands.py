"""What commands print about a spec: lint, echo, graph, schema and permissions."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from xml.etree import ElementTree

import pytest
import typer
import yaml
from typer.testing import CliRunner, Result

from ebbflow.cli import main
from ebbflow.cli.main import app
from ebbflow.cli.spec_commands import lint
from ebbflow.connectors.registry import SOURCES as KNOWN
from ebbflow.nats.embedded import find_binary
from ebbflow.nats.login import Addresses
from ebbflow.runtime.planning import make_plans
from ebbflow.runtime.source_process.companion import SourcePlan
from ebbflow.spec.lint import load
from ebbflow.streams.feed import FeedPlan

GOOD = """\
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

lint_app = typer.Typer()
lint_app.command()(lint)


def test_clean_files_are_counted(tmp_path: Path) -> None:
    for name in ("a.yaml", "b.yaml"):
        (tmp_path / name).write_text(GOOD)
    files = [str(tmp_path / "a.yaml"), str(tmp_path / "b.yaml")]
    one, two = CliRunner().invoke(lint_app, files[:1]), CliRunner().invoke(lint_app, files)
    assert (one.exit_code, one.stdout) == (0, "1 file ok\n")
    assert (two.exit_code, two.stdout) == (0, "2 files ok\n")


def test_problems_are_printed_one_per_line_and_the_exit_code_is_1(tmp_path: Path) -> None:
    bad, missing = tmp_path / "bad.yaml", tmp_path / "missing.yaml"
    bad.write_text(GOOD.replace("to: out", "to: ot"))
    result = CliRunner().invoke(lint_app, [str(bad), str(missing)])
    assert result.exit_code == 1
    assert result.stdout == (
        f"{bad}:9:20: EB301 there is no vertex 'ot'; did you mean 'out'?\n"
        f"{missing}:1:1: EB001 cannot be read: No such file or directory\n"
    )


def test_an_interrupt_while_user_code_is_imported_says_where(tmp_path: Path) -> None:
    file = tmp_path / "orders.yaml"
    file.write_text(GOOD.replace("log: {}", "udsink: {python: 'interrupted:store'}"))
    (tmp_path / "interrupted.py").write_text("import os\nraise KeyboardInterrupt\n")
    result = CliRunner().invoke(main.app, ["lint", str(file)])
    assert result.exit_code == 130
    assert result.stderr == (
        "ebbflow: interrupted while 'interrupted' was imported (interrupted.py, line 2)\n"
    )


def test_a_field_without_effect_is_named_once_on_standard_error(tmp_path: Path) -> None:
    file = tmp_path / "orders.yaml"
    file.write_text(
        GOOD.replace("name: in,", "name: in, scale: {}, ").replace(
            "name: out,", "name: out, scale: {},"
        )
    )
    result = CliRunner().invoke(lint_app, [str(file)])
    assert (result.exit_code, result.stdout) == (0, "1 file ok\n")
    assert result.stderr == f"{file}: without effect here: spec.vertices[].scale\n"


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


def test_problems_of_a_file_are_printed_as_by_lint(file):
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


PIPELINE = """\
apiVersion: numaflow.numaproj.io/v1alpha1
kind: Pipeline
metadata: {name: tiny}
spec:
  vertices:
  - {name: in, source: {generator: {messages: 50}}}
  - {name: out, partitions: 2, sink: {log: {}}}
  edges:
  - {from: in, to: out}
"""

GENERATOR = {"generator": {"messages": 1}}

MONO = """\
apiVersion: numaflow.numaproj.io/v1alpha1
kind: MonoVertex
metadata: {name: one}
spec:
  source: {generator: {messages: 50}}
  sink: {log: {}}
"""


def permissions(file: Path, *options: str) -> Result:
    return CliRunner().invoke(app, ["permissions", str(file), *options])


@pytest.fixture
def spec(tmp_path: Path) -> Path:
    file = tmp_path / "tiny.yaml"
    file.write_text(PIPELINE)
    return file


def is_accepted_by_a_server(config: Path, **environment: str) -> bool:
    command = [find_binary(), "-t", "-c", str(config)]
    result = subprocess.run(
        command, env=os.environ | environment, capture_output=True, text=True, check=False
    )
    assert "Traceback" not in result.stderr
    return result.returncode == 0


def test_permissions_say_what_they_are_for_and_list_streams_and_subjects(spec: Path) -> None:
    result = permissions(spec)
    assert result.exit_code == 0
    lines = [line.strip() for line in result.stdout.splitlines()]
    assert lines[:5] == [
        "# The least that Pipeline tiny needs on NATS, to run and for its dead letters.",
        f"# Made by: ebbflow permissions {spec}",
        '# Include it in the block of its user: include "tiny.conf"',
        "permissions: {",
        "publish: {",
    ]
    for subject in (
        "$JS.API.STREAM.CREATE.ebb_tiny_out_1",
        "$JS.API.STREAM.DELETE.ebb_tiny_in_0_redelivery",
        "$JS.API.CONSUMER.MSG.NEXT.ebb_tiny_out_0.*",
        "$KV.ebb_tiny_positions.out.1",
        "ebb.tiny.vertex.out.1.in",
        "ebb.tiny.dead.out",
        "_INBOX_ebb_tiny.>",
    ):
        assert f'"{subject}"' in lines


def test_permissions_of_a_monovertex_name_no_buffer(tmp_path: Path) -> None:
    file = tmp_path / "one.yaml"
    file.write_text(MONO)
    result = permissions(file)
    assert "The least that MonoVertex one needs" in result.stdout
    assert '"$JS.API.STREAM.CREATE.ebb_one_one_0_redelivery"' in result.stdout
    assert "ebb_one_one_0.*" not in result.stdout


def test_permissions_can_be_included_in_a_servers_configuration(spec: Path, tmp_path: Path) -> None:
    (tmp_path / "tiny.conf").write_text(permissions(spec).stdout)
    config = tmp_path / "nats.conf"
    config.write_text(
        'authorization { users: [ { user: a, password: b, include "tiny.conf" } ] }\n'
    )
    assert is_accepted_by_a_server(config)
    config.write_text(config.read_text().replace("tiny.conf", "other.conf"))
    assert not is_accepted_by_a_server(config)


def test_a_server_accepts_a_complete_user_unchanged(spec: Path, tmp_path: Path) -> None:
    config = tmp_path / "nats.conf"
    config.write_text(permissions(spec, "--user", "tiny-1").stdout)
    assert 'user: "tiny-1"' in config.read_text()
    assert is_accepted_by_a_server(config, TINY_1_PASSWORD="secret")
    assert not is_accepted_by_a_server(config)


def test_a_pipeline_with_problems_gets_no_permissions(spec: Path) -> None:
    spec.write_text(PIPELINE.replace("to: out", "to: nowhere"))
    result = permissions(spec)
    assert result.exit_code == 1
    assert "nowhere" in result.stdout
    assert "permissions:" not in result.stdout


SOURCES = {
    "generator": {"messages": 1},
    "udsource": {"python": "tests.connectors.user_code.queue:Queue"},
    "http": {},
    "jetstream": {"url": "nats://localhost", "stream": "S"},
    "nats": {"url": "nats://localhost", "subject": "s"},
    "kafka": {"brokers": ["localhost:9092"], "topic": "t"},
    "postgres": {"url": "postgresql://127.0.0.1:1/shop", "table": "t"},
    "pulsar": {"serverAddr": "pulsar://127.0.0.1:1", "topic": "t"},
    "sqs": {"awsRegion": "eu-west-1", "queueName": "q"},
    "pubsub": {"project": "shop", "subscription": "orders"},
    "spark": {"format": "rate", "value": "CAST(value AS STRING)"},
    "serving": {},
}
"""A source of each kind."""

BATCHES = {
    "sql": {"udf": {"sql": "SELECT * FROM messages"}},
    "dataframe": {"udf": {"dataframe": "json:loads"}},
    "spark sink": {"sink": {"spark": {"format": "noop"}}},
}
"""Vertices whose batches the driver plans."""


@pytest.mark.parametrize("vertex", [*SOURCES, *BATCHES])
def test_what_a_run_will_create_is_known_from_the_spec_alone(vertex: str, tmp_path: Path) -> None:
    vertices = [
        {"name": "in", "source": {vertex: SOURCES[vertex]} if vertex in SOURCES else GENERATOR},
        {"name": "step", **BATCHES.get(vertex, {"sink": {"serve": {}}})},
    ]
    store = {"nats": {}}
    edges = [{"from": "in", "to": "step"}]
    if "udf" in vertices[1]:
        vertices.append({"name": "out", "sink": {"log": {}}})
        edges.append({"from": "step", "to": "out"})
    spec = tmp_path / "tiny.yaml"
    head, _, _ = PIPELINE.partition("spec:")
    spec.write_text(
        head
        + json.dumps({"spec": {"vertices": vertices, "edges": edges, "servingStore": store}})[1:-1]
    )
    pipeline = load(spec)
    for plan in make_plans(pipeline, Addresses.of("nats://localhost"), 0, None):
        (streams,) = (step.streams for step in pipeline.steps if step.name == plan.vertex)
        assert plan.streams == streams
        assert streams.returns == isinstance(plan.source, SourcePlan)
        assert (streams.has_buffer and plan.is_source) == isinstance(plan.source, FeedPlan)
        assert streams.remembers == (vertex == "http" and plan.is_source)
        assert streams.serves == (vertex == "serving" and plan.is_source)
        assert streams.batched == (vertex in BATCHES and plan.vertex == "step")


def test_every_kind_of_source_is_covered() -> None:
    assert SOURCES.keys() == KNOWN.keys()
