"""The frames that wait for a batch vertex: the driver asks the server, not Spark.

As long as nothing has come, an idle vertex costs two small requests at each look.
"""

from __future__ import annotations

from dataclasses import dataclass

from ebbflow.buffers.names import Names
from ebbflow.core.position import Mark, Span
from ebbflow.nats import api
from ebbflow.nats.link import Link
from ebbflow.nats.stored import read_one

_MOST_FRAMES = 1_000
_MOST_BYTES = 16 * 1024 * 1024
# Redelivered frames lie among others that are not due yet: so many of both at a time.
_REACH = 5_000


@dataclass(frozen=True, slots=True)
class PendingFrames:
    """Up to where to read next, and about how many bytes that is."""

    end: Span
    size: int


class Pending:
    """The buffer and the redeliveries of one partition, as the driver looks at them."""

    def __init__(self, link: Link, names: Names, vertex: str, partition: int) -> None:
        self._link = link
        self._buffer = names.buffer(vertex, partition)
        self._subject = names.buffer_subject(vertex, partition)
        self._redelivery = names.redelivery(vertex, partition)
        self._due = names.due_subject(vertex, partition)
        self._forgotten = Span()

    def look(self, done: Span) -> PendingFrames | None:
        """Returns the frames that have come since ``done``; ``None`` for none."""
        return self._link.run(self._look(done))

    async def _look(self, done: Span) -> PendingFrames | None:
        redelivery = await self._due_after(done.redelivery)
        inlet, size = await self._stored_after(done.inlet)
        end = Span(inlet, redelivery)
        return None if end == done else PendingFrames(end, size)

    async def _stored_after(self, done: Mark) -> tuple[Mark, int]:
        state = await api.read_info(self._link.client, self._buffer)
        frames = state["last_seq"] - done.seq
        if frames <= 0:
            return done, 0
        average = max(1, state["bytes"] // max(1, state["messages"]))
        taken = min(frames, _MOST_FRAMES, max(1, _MOST_BYTES // average))
        return Mark(done.seq + taken), taken * average

    async def _due_after(self, done: Mark) -> Mark:
        client, stream = self._link.client, self._redelivery
        state = await api.read_info(client, stream, subjects_filter=self._due)
        if state["last_seq"] <= done.seq or not (state.get("subjects") or {}).get(self._due):
            return done
        first = await read_one(client, stream, seq=done.seq + 1, next_by_subj=self._due)
        return done if first is None else Mark(min(state["last_seq"], first.seq + _REACH))

    def forget(self, done: Span) -> None:
        """Let the server delete what is done."""
        self._link.run(self._forget(done))

    async def _forget(self, done: Span) -> None:
        before, self._forgotten = self._forgotten, done
        if done.inlet.seq > before.inlet.seq:
            await api.purge(self._link.client, self._buffer, self._subject, done.inlet.seq)
        if done.redelivery.seq > before.redelivery.seq:
            seq = done.redelivery.seq
            await api.purge(self._link.client, self._redelivery, self._due, seq)
