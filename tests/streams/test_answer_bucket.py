"""The trail on a real server: published by settling, read and followed from a sequence on."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime

import pytest

from ebbflow.accounts.trail import TrailObserver
from ebbflow.domain.durations import Backoff
from ebbflow.domain.errors import EbbflowError
from ebbflow.engine.checks import Rules
from ebbflow.engine.publications import Chunk, Place
from ebbflow.engine.settlement import Settlement, settle
from ebbflow.engine.verdict import Verdict
from ebbflow.nats import api
from ebbflow.nats.pull import Follower
from ebbflow.streams import catalogue
from ebbflow.streams.answer_bucket import TrailFrame, follow_trail, read_trail_after
from ebbflow.streams.publish_settlement import publish_settlement
from tests.engine.sample_rows import some


@pytest.fixture
def publish_trail(link, names, ensure):
    """Settles a chunk of rows at a vertex; can be called repeatedly."""
    ensure(catalogue.trail_config(names, 60_000))

    def settlement(vertex: str, *ids: str) -> Settlement:
        verdict = Verdict(some(*ids), Rules(vertex, Backoff("1ms", steps=1), 10**6))
        place = Place(vertex, 0, [], 10**6)
        chunk, now = Chunk(f"k:{vertex}", verdict.rows), datetime.now(UTC)
        return settle(chunk, verdict, place, now, observers=[TrailObserver()])

    def publish(vertex: str, *ids: str) -> None:
        link.run(publish_settlement(link.client, names, settlement(vertex, *ids)), timeout=120)

    return publish


def read(link, names, after: int = 0, vertex: str = "*") -> list[tuple[int, str, list[str]]]:
    async def gather() -> list[TrailFrame]:
        batches = read_trail_after(link.client, names, after, vertex)
        return [frame async for batch in batches for frame in batch]

    return facts(link.run(gather(), timeout=120))


def facts(trail: list[TrailFrame]) -> list[tuple[int, str, list[str]]]:
    return [(frame.seq, frame.vertex, [row.id for row in frame.rows]) for frame in trail]


def test_the_trail_is_read_from_a_sequence_on_and_a_replay_adds_nothing(link, names, publish_trail):
    assert read(link, names) == []
    publish_trail("in", "a", "b")
    publish_trail("in", "a", "b")
    publish_trail("out", "a")
    assert read(link, names) == [(1, "in", ["a", "b"]), (2, "out", ["a"])]
    assert read(link, names, after=1) == [(2, "out", ["a"])]
    assert read(link, names, vertex="in") == [(1, "in", ["a", "b"])]
    assert read(link, names, after=2) == []


def test_many_frames_are_read_in_order(link, names, publish_trail):
    frame = b'EBBT\x01\x00[["r","m",1,1,"done",null,null,null,0,[]]]'

    async def publish() -> None:
        for _ in range(2_300):
            await link.client.publish(names.trail_subject("v"), frame)

    link.run(publish(), timeout=120)
    publish_trail("v", "last")  # confirmed behind all others
    assert [seq for seq, _, _ in read(link, names, after=100)] == list(range(101, 2_302))


def test_a_follower_passes_on_stored_frames_first_and_then_new_ones(link, names, publish_trail):
    taken: list[TrailFrame] = []
    failures: list[EbbflowError] = []
    come = asyncio.Event()

    def take(batch: list[TrailFrame]) -> None:
        taken.extend(batch)
        come.set()

    async def follow() -> Follower:
        follower = await follow_trail(link.client, names, 1, take, failures.append)
        await follower.catch_up()
        return follower

    async def wait() -> None:
        come.clear()
        while len(taken) < 3:
            await come.wait()
            come.clear()

    for number in range(3):
        publish_trail("in", f"m{number}")
    follower = link.run(follow(), timeout=120)
    assert facts(taken) == [(2, "in", ["m1"]), (3, "in", ["m2"])]
    publish_trail("out", "m1")
    link.run(wait(), timeout=120)
    assert facts(taken[2:]) == [(4, "out", ["m1"])]
    assert follower.seen == 4
    link.run(follower.close())
    assert failures == []


def test_catching_up_with_a_trail_whose_frames_were_deleted_returns_at_once(
    link, names, publish_trail
):
    async def follow() -> None:
        await api.call(link.client, f"STREAM.PURGE.{names.trail}")
        follower = await follow_trail(link.client, names, 0, lambda _: None, lambda _: None)
        await follower.catch_up()
        await follower.close()

    publish_trail("in", "a")
    link.run(follow(), timeout=120)
