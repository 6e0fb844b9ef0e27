"""Reading the trail of a pipeline: what became of every message, frame by frame, in order.

``read_trail_after`` reads what is there and ends; ``follow_trail`` continues with what is written.
Both begin after a sequence of the stream. What each row says to be stored is stored when
it is read (``engine.trail``). Everything here runs on the loop of the client.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass

from ebbflow.domain.errors import EbbflowError
from ebbflow.engine.trail import TrailRow, read_trail
from ebbflow.nats.client import SecuredClient
from ebbflow.nats.follow import Follower, follow
from ebbflow.nats.pull import Deliveries
from ebbflow.nats.stored import read_after
from ebbflow.streams.names import Names


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


async def read_trail_after(
    client: SecuredClient, names: Names, after: int = 0, vertex: str = "*"
) -> AsyncIterator[list[TrailFrame]]:
    """Yields the frames behind a sequence that are there now, oldest first, many at a time.

    ``JetStreamUnavailable`` when the server stops answering before the end.
    """
    async for batch in read_after(client, names.trail, names.trail_subject(vertex), after):
        yield _to_frames(batch)


async def follow_trail(
    client: SecuredClient,
    names: Names,
    after: int,
    take: Callable[[Sequence[TrailFrame]], None],
    fail: Callable[[EbbflowError], None],
) -> Follower:
    """Hands on every frame after a sequence, each once and in order; see ``follow``."""
    subject = names.trail_subject()
    return await follow(
        client, names.trail, subject, after, decode=_to_frames, take=take, fail=fail
    )
