"""The trail of whole pipelines: every message can be followed from its source to its ends."""

from __future__ import annotations

import json
import os
from dataclasses import replace

import pytest

from ebbflow import Message, Nack, Pipeline, Response
from ebbflow.builders import NatsStore
from ebbflow.connectors import Generator
from ebbflow.connectors.base import SOURCES
from ebbflow.nats.locate import open_link, start_embedded
from ebbflow.streams.answer_bucket import read_trail_after
from ebbflow.streams.names import Names
from ebbflow.streams.trail_rows import TrailRow

pytestmark = pytest.mark.slow

COUNT = 40
POISON, NACKED, BAD = 7, 11, 13


def branch(datum):
    number = json.loads(datum.value)["value"]
    if number == NACKED and datum.deliveries == 1:
        raise Nack(delay="50ms", reason="not yet")
    if number % 4 == 0:
        return None
    return [Message(datum.value), Message(datum.value, tags=["odd"])][: 1 + number % 2]


def each(datum):
    number = json.loads(datum.value)["value"]
    if number == POISON:
        os._exit(3)
    if number == BAD:
        raise Nack(max_deliveries=0, reason="never")
    for _ in range(2):
        yield Message(datum.value)


def answer(data):
    return [Response.serve(datum.id, datum.value) for datum in data]


@pytest.fixture
def serving_generator(monkeypatch):
    """Makes the generator count as a serving source."""
    monkeypatch.setitem(SOURCES, "generator", replace(SOURCES["generator"], serves=True))


def read(state, name) -> dict[str, list[TrailRow]]:
    """The rows of each vertex, in the order in which they were reported."""

    async def gather(link):
        rows: dict[str, list[TrailRow]] = {}
        async for frames in read_trail_after(link.client, Names(name)):
            for frame in frames:
                rows.setdefault(frame.vertex, []).extend(frame.rows)
        return rows

    with start_embedded(state) as server, open_link(server) as link:
        return link.run(gather(link), timeout=120)


def test_the_trail_follows_every_message_from_its_source_to_its_ends(
    run, tmp_path, serving_generator
):
    pipeline = (
        Pipeline("followed", serving_store=NatsStore(bucket="answers"))
        .source("in", Generator(messages=COUNT, rpu=COUNT))
        .map("branch", branch)
        .map("each", each, mode="stream")
        .sink("out", answer)
        .edge("branch", "out", tags=["odd"])
    )
    run(pipeline)
    rows = read(tmp_path / "state", "followed")
    followed = {(vertex, row.id) for vertex, own in rows.items() for row in own if row.is_final}
    sent = {(o.to, o.id) for own in rows.values() for row in own for o in row.sent}
    roots = {("in", row.id) for row in rows["in"]}
    assert len(roots) == COUNT
    assert followed == roots | sent, "everything that was forwarded has ended, and nothing else has"

    ends = {v: {row.outcome for row in own} for v, own in rows.items()}
    assert ends == {
        "in": {"done"},
        "branch": {"done", "dropped", "redelivered"},
        "each": {"done", "dead_lettered", "sent"} & (ends["each"] | {"done", "dead_lettered"}),
        "out": {"served"},
    }
    (again,) = (row for row in rows["branch"] if row.outcome == "redelivered")
    assert (again.deliveries, again.reason) == (1, "not yet")
    (then,) = (row for row in rows["branch"] if row.id == again.id and row.is_final)
    assert (then.deliveries, then.outcome) == (2, "done")
    letters = {row.request: row for row in rows["each"] if row.outcome == "dead_lettered"}
    assert {row.reason for row in letters.values()} == {"killed its worker", "never"}
    assert all(row.answers == 1 for row in rows["out"])
    assert {row.request for own in rows.values() for row in own} == {row.id for row in rows["in"]}
