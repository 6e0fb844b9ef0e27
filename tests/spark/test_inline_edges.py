"""Inline edges on a real pipeline: the same counts and dead letters as through buffers."""

from __future__ import annotations

import json
from dataclasses import dataclass, field

import pytest

from ebbflow import Backoff, Message, Nack, Pipeline, Response
from ebbflow.connectors import Generator
from ebbflow.domain.outcome import Counts
from ebbflow.status.model import PipelineStatus
from tests.spark.runs import Failures

pytestmark = pytest.mark.slow

MESSAGES = 300


@dataclass
class Edges(Failures):
    """Remembers all edges that were inline at any time."""

    inline: set[tuple[str, str]] = field(default_factory=set)

    def look(self, status: PipelineStatus) -> None:
        super().look(status)
        self.inline |= {(edge.frm, edge.to) for edge in status.edges if edge.inline}


def step(datum):
    number = json.loads(datum.value)["value"]
    if number % 10 == 3 and datum.deliveries == 1:
        raise Nack(delay="200ms", reason="not yet")
    if number % 10 == 4:
        raise ValueError("a message that always fails")
    return Message(datum.value)


def store(data):
    return [_respond(datum) for datum in data]


def _respond(datum):
    number = json.loads(datum.value)["value"]
    if number % 10 == 5:
        return Response.failure(datum.id, "refused")
    if number % 10 == 6 and datum.deliveries == 1:
        return Response.nack(datum.id)
    return Response.ok(datum.id)


def pipeline(inline: bool):
    source = {"messages": MESSAGES, "rpu": 200, "duration": "1s"}
    return (
        Pipeline("test", inline=inline)
        .source("in", Generator(**source))
        .map("step", step, on_error=Backoff("10ms", steps=1))
        .sink("out", store)
    )


EXPECTED = {
    "in": Counts(read=300, written=300, done=300),
    "step": Counts(read=360, written=270, done=270, redelivered=60, dead_lettered=30),
    "out": Counts(read=300, written=240, done=240, redelivered=30, dead_lettered=30),
}


@pytest.mark.guarantee("counts-are-exact")
@pytest.mark.parametrize("inline", [True, False])
def test_counts_and_dead_letters_are_the_same_inline_and_through_buffers(
    run, server_letters, inline
):
    edges = Edges()
    summary = run(pipeline(inline), watcher=edges)
    # Which edges are inline depends on the machine: a slow vertex reads its buffer.
    assert bool(edges.inline) == inline
    assert summary.vertices == EXPECTED
    letters = [(letter.vertex, letter.id) for letter in server_letters("test")]
    assert len(letters) == len(set(letters)) == 60
    assert {vertex for vertex, _ in letters} == {"step", "out"}
