"""Waiting and parked messages of a vertex, counted by row on a real server."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from ebbflow.domain.durations import Backoff
from ebbflow.domain.message import NackOptions
from ebbflow.engine.checks import Rules
from ebbflow.engine.position import Held, Mark, Position, Span
from ebbflow.engine.publications import Chunk, Place
from ebbflow.engine.routing import Edge
from ebbflow.engine.settlement import settle
from ebbflow.engine.verdict import Verdict
from ebbflow.nats import api
from ebbflow.nats.link import Link
from ebbflow.status.backlog import Backlog, VertexBacklog
from ebbflow.streams import catalogue
from ebbflow.streams.names import Names, VertexStreams
from ebbflow.streams.publish_settlement import publish_settlement
from tests.engine.sample_rows import some
from tests.waiting import until


class Vertex:
    """The vertex ``v``, with a buffer that is written to and rows that it nacks."""

    def __init__(self, link: Link, names: Names) -> None:
        self._link = link
        self._names = names
        self._chunks = 0
        self.watch()

    def watch(self, **bounds: Any) -> None:
        """Starts a new backlog reader with these bounds."""
        streams = VertexStreams("v", 1, True)
        self._backlog = Backlog(self._link.client, self._names, streams, **bounds)

    def arrive(self, *ids: str) -> None:
        """Stores the messages as one frame of the buffer."""
        verdict = self._verdict(*ids)
        verdict.forward_inputs()
        self._settle(verdict, Place("before", 0, [Edge("v")], 10**6))

    def nack(self, *ids: str, delay: int | None = None, reason: str | None = None) -> None:
        """Nacks the messages, so that they are redelivered."""
        verdict = self._verdict(*ids)
        for index in range(len(ids)):
            verdict.nack(index, NackOptions(delay=delay, reason=reason))
        self._settle(verdict, Place("v", 0, [], 10**6))

    def look(self, done: Span | None = None, held: Held | None = None) -> VertexBacklog:
        position = Position("x", done=done or Span(), held=held)
        return self._link.run(self._backlog.look([position]), timeout=120)

    def purge(self, up_to: int) -> None:
        names, subject = self._names, self._names.buffer_subject("v", 0)
        self._link.run(api.purge_subject(self._link.client, names.buffer("v", 0), subject, up_to))

    def _verdict(self, *ids: str) -> Verdict:
        return Verdict(some(*ids), Rules("v", Backoff("1ms", steps=1), 10**6))

    def _settle(self, verdict: Verdict, place: Place) -> None:
        self._chunks += 1
        chunk = Chunk(f"k{self._chunks}", verdict.rows)
        settlement = settle(chunk, verdict, place, datetime.now(UTC))
        self._link.run(publish_settlement(self._link.client, self._names, settlement), timeout=120)


@pytest.fixture
def vertex(link: Link, names: Names, ensure: Callable[[Any], None]) -> Vertex:
    ensure(catalogue.buffer_config(names, "v", 0, 100))
    ensure(catalogue.redelivery_config(names, "v", 0))
    return Vertex(link, names)


def test_rows_wait_until_they_are_settled(vertex: Vertex) -> None:
    assert vertex.look() == VertexBacklog()
    vertex.arrive("a", "b", "c")
    vertex.arrive("d")
    looked = vertex.look()
    assert (looked.pending, looked.oldest is not None) == (4, True)
    assert timedelta(0) <= datetime.now(UTC) - looked.oldest < timedelta(minutes=1)
    assert vertex.look(Span(Mark(1))).pending == 1
    vertex.purge(1)
    vertex.arrive("e", "f")
    assert vertex.look(Span(Mark(1))).pending == 3
    assert vertex.look(Span(Mark(3))) == VertexBacklog()


def test_the_rest_of_a_half_settled_frame_waits(vertex: Vertex) -> None:
    vertex.arrive("a", "b", "c")
    assert vertex.look(Span(Mark(0, 2))).pending == 1


def test_parked_rows_report_their_due_time_and_reasons(vertex: Vertex) -> None:
    before = datetime.now(UTC)
    vertex.nack("a", "b", delay=600_000, reason="waits for the moon")
    vertex.nack("c", delay=1_200_000)
    looked = vertex.look()
    parked = looked.parked
    assert (looked.pending, parked.messages, parked.exact) == (0, 3, True)
    assert [(c.text, c.count) for c in parked.reasons] == [
        ("waits for the moon", 2), ("nacked", 1),
    ]  # fmt: skip
    assert parked.next_due is not None
    assert timedelta(0) <= parked.next_due - before - timedelta(minutes=10) < timedelta(seconds=5)


def test_rows_nacked_without_a_delay_wait_and_are_not_parked(vertex: Vertex) -> None:
    vertex.nack("a", "b")
    looked = vertex.look()
    assert (looked.pending, looked.parked.messages) == (2, 0)
    assert vertex.look(Span(redelivery=Mark(1))).pending == 0


def test_the_row_held_by_an_ordered_vertex_counts_as_parked(vertex: Vertex) -> None:
    vertex.arrive("a", "b")
    due = int(datetime.now(UTC).timestamp() * 1000) + 60_000
    looked = vertex.look(held=Held(due, 1, 0, 0, "not yet"))
    assert (looked.pending, looked.parked.messages) == (1, 1)
    assert [cause.text for cause in looked.parked.reasons] == ["not yet"]


def test_a_backlog_of_too_many_frames_is_estimated_until_all_are_read(
    vertex: Vertex, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ebbflow.nats.stored._AT_A_TIME", 2)
    vertex.watch(most=2, recheck_every=1e9)
    for number in range(5):
        vertex.arrive(f"{number}a", f"{number}b")
    looks = [vertex.look() for _ in range(3)]
    assert [(look.pending, look.exact) for look in looks] == [
        (10, False), (10, False), (10, True),
    ]  # fmt: skip


def test_a_buffer_without_room_is_full(vertex: Vertex) -> None:
    for number in range(100):
        vertex.arrive(str(number))
    assert vertex.look().full


def test_a_settled_frame_that_is_still_stored_does_not_wait(vertex: Vertex) -> None:
    vertex.watch(recheck_every=-1.0)
    for number in range(5):
        vertex.arrive(f"{number}a", f"{number}b")
    assert vertex.look(Span(Mark(4))).pending == 2
    for _ in range(2):
        assert vertex.look(Span(Mark(5))) == VertexBacklog()


def test_a_parked_message_counts_as_waiting_once_it_is_due(vertex: Vertex) -> None:
    vertex.nack("a", "b", "c", delay=300, reason="soon")
    looks = [vertex.look()]
    while looks[-1].parked.messages:
        looks.append(vertex.look())
    assert {look.pending + look.parked.messages for look in looks} == {3}
    assert looks[-1].pending == 3


def test_a_message_is_counted_while_the_server_moves_it(
    vertex: Vertex, names: Names, monkeypatch: pytest.MonkeyPatch
) -> None:
    vertex.nack("a", "b", "c", delay=300)
    parked = vertex.look()
    until(lambda: datetime.now(UTC) > parked.parked.next_due)
    call, stream = api.call, f"STREAM.INFO.{names.redelivery('v', 0)}"

    async def between_delete_and_store(client: Any, name: str, *more: Any, **rest: Any) -> Any:
        answer = await call(client, name, *more, **rest)
        if name == stream:
            answer["state"] |= {"messages": 0, "subjects": None, "last_seq": 1}
        return answer

    with monkeypatch.context() as patch:
        patch.setattr(api, "call", between_delete_and_store)
        looked = vertex.look()
        assert looked.pending + looked.parked.messages == 3
        until(lambda: vertex.look() == VertexBacklog())  # it was purged after all
    vertex.watch()
    until(lambda: vertex.look().pending == 3)


def test_a_message_that_becomes_due_while_the_driver_is_slow_is_still_counted(
    vertex: Vertex, names: Names, monkeypatch: pytest.MonkeyPatch
) -> None:
    vertex.nack("a", "b", "c", delay=500)
    assert vertex.look().parked.messages == 3
    call = api.call

    async def answered_long_ago(client: Any, name: str, *more: Any, **rest: Any) -> dict[str, Any]:
        answer = await call(client, name, *more, **rest)
        if name == f"STREAM.INFO.{names.redelivery('v', 0)}":
            await asyncio.sleep(1)
        return answer

    monkeypatch.setattr(api, "call", answered_long_ago)
    looked = vertex.look()
    assert looked.pending + looked.parked.messages == 3
    looked = vertex.look()
    assert (looked.pending, looked.parked.messages) == (3, 0)
