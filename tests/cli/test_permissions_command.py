"""``ebbflow permissions``: what it prints is what a server takes."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from ebbflow.cli.main import app
from ebbflow.connectors.registry import SOURCES as KNOWN
from ebbflow.nats.embedded import find_binary
from ebbflow.nats.login import Addresses
from ebbflow.runtime.planning import make_plans
from ebbflow.runtime.source_process.client import SourcePlan
from ebbflow.spec.lint import load
from ebbflow.streams.feed import FeedPlan

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


def taken_by_a_server(config: Path, **environment: str) -> bool:
    command = [find_binary(), "-t", "-c", str(config)]
    result = subprocess.run(
        command, env=os.environ | environment, capture_output=True, text=True, check=False
    )
    assert "Traceback" not in result.stderr
    return result.returncode == 0


def test_it_says_what_it_is_for_and_lists_streams_and_subjects(spec: Path) -> None:
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


def test_a_monovertex_has_no_buffer(tmp_path: Path) -> None:
    file = tmp_path / "one.yaml"
    file.write_text(MONO)
    result = permissions(file)
    assert "The least that MonoVertex one needs" in result.stdout
    assert '"$JS.API.STREAM.CREATE.ebb_one_one_0_redelivery"' in result.stdout
    assert "ebb_one_one_0.*" not in result.stdout


def test_it_can_be_included_in_a_servers_configuration(spec: Path, tmp_path: Path) -> None:
    (tmp_path / "tiny.conf").write_text(permissions(spec).stdout)
    config = tmp_path / "nats.conf"
    config.write_text(
        'authorization { users: [ { user: a, password: b, include "tiny.conf" } ] }\n'
    )
    assert taken_by_a_server(config)
    config.write_text(config.read_text().replace("tiny.conf", "other.conf"))
    assert not taken_by_a_server(config)


def test_a_whole_user_is_taken_as_it_is(spec: Path, tmp_path: Path) -> None:
    config = tmp_path / "nats.conf"
    config.write_text(permissions(spec, "--user", "tiny-1").stdout)
    assert 'user: "tiny-1"' in config.read_text()
    assert taken_by_a_server(config, TINY_1_PASSWORD="secret")
    assert not taken_by_a_server(config)


def test_a_pipeline_with_problems_gets_none(spec: Path) -> None:
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
    "spark": {"format": "rate", "value": "CAST(value AS STRING)"},
    "serving": {},
}
"""A source of each kind that there is."""

BATCHES = {
    "sql": {"udf": {"sql": "SELECT * FROM messages"}},
    "dataframe": {"udf": {"dataframe": "json:loads"}},
    "spark sink": {"sink": {"spark": {"format": "noop"}}},
}
"""Vertices whose batches the driver plans."""


@pytest.mark.parametrize("vertex", [*SOURCES, *BATCHES])
def test_what_a_run_will_make_is_known_from_the_spec_alone(vertex: str, tmp_path: Path) -> None:
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
        streams = pipeline.streams_of(plan.vertex)
        assert plan.streams == streams
        assert streams.returns == isinstance(plan.source, SourcePlan)
        assert (streams.has_buffer and plan.is_source) == isinstance(plan.source, FeedPlan)
        assert streams.remembers == (vertex == "http" and plan.is_source)
        assert streams.serves == (vertex == "serving" and plan.is_source)
        assert streams.batched == (vertex in BATCHES and plan.vertex == "step")


def test_every_kind_of_source_is_known() -> None:
    assert SOURCES.keys() == KNOWN.keys()
