"""Streams of a pipeline: servers that cannot store them as requested."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ebbflow import Pipeline
from ebbflow.connectors import Blackhole, Generator
from ebbflow.domain.errors import SetupError
from ebbflow.engine.position import Mark, Span
from ebbflow.nats.publish import BUFFER, publish
from ebbflow.runtime.planning import make_plans
from ebbflow.runtime.provision import provision
from ebbflow.streams import catalogue
from ebbflow.streams.positions import PositionStore
from ebbflow.streams.provision import ensure


def test_replicas_on_a_single_server_are_rejected_with_advice(link, names):
    name = names.dead_letters
    refused = (
        f"Stream {name} needs 3 servers, but NATS is a single one. "
        "Use a cluster of at least 3, or set interStepBuffer.replicas to 1."
    )
    for _ in range(2):
        with pytest.raises(SetupError) as error:
            link.run(ensure(link.client, catalogue.dead_letter_config(names, replicas=3)))
        assert str(error.value) == refused
        # A stream that exists already is not changed to three replicas either.
        link.run(ensure(link.client, catalogue.dead_letter_config(names)))


def form_of(link, pipeline, *maps):
    for name, partitions in maps:
        pipeline = pipeline.map(name, "json:dumps", partitions=partitions)
    plans = make_plans(pipeline.sink("out", Blackhole()).spec, link.server, 1_000_000, None)
    link.run(provision(link, plans))


def test_waiting_messages_for_a_removed_vertex_or_partition_are_counted_and_rejected(link, names):
    def new():
        return Pipeline(names.pipeline).source("in", Generator(messages=1))

    def store(subject, rows):
        link.run(publish(link.client, subject, b"x", {"Ebbflow-Rows": str(rows)}, retry=BUFFER))

    form_of(link, new(), ("work", 2), ("other", 2))
    positions = PositionStore(link.client, names, "work", 1)
    done = Span(Mark(1, 30))
    link.run(positions.write(replace(link.run(positions.claim()), intent=done, done=done)))
    for rows in (5, 884, 30):
        store(names.buffer_subject("work", 1), rows)
    store(names.later_subject("work", 0, "x"), 16)
    store(names.buffer_subject("other", 1), 1)

    with pytest.raises(SetupError) as error:
        form_of(link, new(), ("renamed", 2), ("other", 1))
    assert str(error.value) == (
        "1 message still waits for partition 1 of vertex other, which now has 1 partition. "
        "900 messages still wait for vertex work, which the spec no longer has. "
        f"Pipeline {names.pipeline} would never process them. "
        "Run the earlier spec once more with lifecycle: {desiredPhase: Paused} in it and with "
        "--drain: sources stay paused, and waiting messages are processed. Or delete all that "
        "the pipeline has stored, its dead letters too, with --fresh."
    )
