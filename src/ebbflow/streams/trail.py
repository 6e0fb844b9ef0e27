"""Reading the trail of a pipeline: what became of every message, frame by frame, in order.

``read_trail_behind`` reads what is there and ends; a ``TrailFollower`` goes on with what is
written. Both begin behind a sequence of the stream. What each row says to be stored is stored when
it is read (``engine.trail``). Everything here runs on the loop of the client.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass

from ebbflow.domain.errors import EbbflowError
from ebbflow.nats import api
from ebbflow.nats.behind import read_behind
from ebbflow.nats.client import SecuredClient
from ebbflow.nats.follow import Follower
from ebbflow.nats.pull import Deliveries
from ebbflow.streams.names import Names
from ebbflow.streams.trail_rows import TrailRow, read_trail

_LOOK_EVERY = 1.0


@dataclass(frozen=True, slots=True)
class TrailFrame:
    """The rows that one chunk of a vertex has left, and their sequence in the stream."""

    seq: int
    vertex: str
    rows: list[TrailRow]


def _to_frames(deliveries: Deliveries) -> list[TrailFrame]:
    parcel = deliveries.parcel
    return [
        TrailFrame(
            seq,
            parcel.subjects[row].rpartition(b".")[2].decode(),  # names of vertices have no dots
            read_trail(parcel.payload(row)),
        )
        for row, seq in enumerate(deliveries.seqs)
    ]


async def read_trail_behind(
    client: SecuredClient, names: Names, after: int = 0, vertex: str = "*"
) -> AsyncIterator[list[TrailFrame]]:
    """Yields the frames behind a sequence that are there now, oldest first, many at a time.

    ``JetStreamUnavailable`` when the server stops answering before the end.
    """
    async for batch in read_behind(client, names.trail, names.trail_subject(vertex), after):
        yield _to_frames(batch)


class TrailFollower:
    """Hands on every frame behind a sequence, each once and in order, as it is written.

    ``take`` gets the frames that arrive together. ``fail`` gets the error after which nothing more
    comes. ``seen`` is the sequence of the last frame handed on.
    """

    def __init__(
        self,
        client: SecuredClient,
        names: Names,
        after: int,
        take: Callable[[Sequence[TrailFrame]], None],
        fail: Callable[[EbbflowError], None],
    ) -> None:
        self.seen = after
        self._client = client
        self._stream = names.trail
        self._take = take
        self._moved = asyncio.Event()
        self._follower = Follower(
            client,
            names.trail,
            names.trail_subject(),
            after,
            take=self._receive,
            fail=fail,
            waiting=lambda: 0,
        )

    async def open(self) -> None:
        """Begins to follow; ``ApiError`` when the server refuses."""
        await self._follower.open()

    async def close(self) -> None:
        """Stops following."""
        await self._follower.close()

    async def catch_up(self) -> None:
        """Returns when everything that was there at the call has been handed on."""
        last = await self._read_last()
        while self.seen < last:
            self._moved.clear()
            try:
                async with asyncio.timeout(_LOOK_EVERY):
                    await self._moved.wait()
            except TimeoutError:
                last = min(last, await self._read_last())  # what was there may have become too old

    async def _read_last(self) -> int:
        state = await api.read_info(self._client, self._stream)
        return int(state["last_seq"]) if state["messages"] else 0

    def _receive(self, deliveries: Deliveries) -> None:
        self._take(_to_frames(deliveries))
        self.seen = deliveries.seqs[-1]
        self._moved.set()
