"""Parked redeliveries that the server does not move although they are due.

After a kill a server may have restored frames that it had already moved and deleted, without their
schedules: they would stay parked forever, and the pipeline would never drain. So each task looks
for such frames when it starts. A frame that is not awaited was read before, and is deleted. Any
other frame is moved in place of the server.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import aclosing
from dataclasses import dataclass
from datetime import datetime

from ebbflow.engine.position import Known, Stamp, is_copy
from ebbflow.engine.publications import PARKED_ON, REDELIVERED_BY
from ebbflow.nats import api
from ebbflow.nats.client import SecuredClient
from ebbflow.nats.publish import MSG_ID, publish
from ebbflow.nats.stored import read_after
from ebbflow.streams.names import Names

PATIENCE = 60.0
"""Seconds that a server may be late, as one that was just started and has many frames to move."""

_MOST = 2_000
_SCHEDULE, _AT = "Nats-Schedule", "@at "
_OF_THE_SERVER = (_SCHEDULE, "Nats-Rollup", "Nats-Msg-Size", MSG_ID)


@dataclass(frozen=True, slots=True)
class RedeliveryPlace:
    """The redeliveries of one partition when its task starts.

    ``chunks`` is how many chunks are done by then, and ``known`` has the awaited frames.
    """

    names: Names
    vertex: str
    partition: int
    known: Known
    chunks: int

    @property
    def stream(self) -> str:
        """The stream of redeliveries."""
        return self.names.redelivery(self.vertex, self.partition)


async def clear_overdue(
    client: SecuredClient, place: RedeliveryPlace, now: float
) -> tuple[int, int]:
    """Deletes overdue frames that were read, and moves the rest; returns how many of each."""
    deleted = moved = 0
    overdue = [one async for one in _list_overdue(client, place, now - PATIENCE)]
    for seq, headers, subject in overdue:
        if _was_read(place, headers, subject):
            deleted += 1
        else:
            await _move(client, place, seq, subject)
            moved += 1
        # After the copy is stored: a crash in between leaves both frames, and only one is awaited.
        await api.purge_subject(client, place.stream, subject, seq)
    return deleted, moved


async def _list_overdue(
    client: SecuredClient, place: RedeliveryPlace, before: float
) -> AsyncIterator[tuple[int, dict[str, str], str]]:
    """Yields the frames that were due before a time, among the first messages of the stream."""
    seen = 0
    async with aclosing(read_after(client, place.stream, "", 0, headers_only=True)) as batches:
        async for batch in batches:
            for row, seq in enumerate(batch.seqs):
                headers = batch.parcel.headers(row) or {}
                if _due_of(headers) < before:
                    yield seq, headers, batch.parcel.subjects[row].decode()
            seen += len(batch.seqs)
            if seen >= _MOST:
                return


def _due_of(headers: dict[str, str]) -> float:
    schedule = headers.get(_SCHEDULE, "")
    if not schedule.startswith(_AT):
        return float("inf")
    return datetime.fromisoformat(schedule.removeprefix(_AT)).timestamp()


def _was_read(place: RedeliveryPlace, headers: dict[str, str], subject: str) -> bool:
    """Returns whether it is certain that the frame was read or is not awaited."""
    stamp = Stamp.of_redelivery(subject, 0, headers.get(REDELIVERED_BY))
    assert stamp is not None
    # Never true for later chunks: a task that has replaced this one may have sent their frames.
    return stamp.begins[0] <= place.chunks and is_copy(place.known, stamp)


async def _move(client: SecuredClient, place: RedeliveryPlace, seq: int, subject: str) -> None:
    async with aclosing(read_after(client, place.stream, "", seq - 1)) as batches:
        async for batch in batches:
            if batch.seqs[0] == seq:  # otherwise the server has moved it after all
                headers = batch.parcel.headers(0) or {}
                await _publish_due(client, place, headers, batch.parcel.payload(0), subject)
            return


async def _publish_due(
    client: SecuredClient,
    place: RedeliveryPlace,
    headers: dict[str, str],
    payload: bytes,
    subject: str,
) -> None:
    kept = {name: value for name, value in headers.items() if not name.startswith(_OF_THE_SERVER)}
    due = place.names.due_subject(place.vertex, place.partition)
    # The id only deduplicates the attempts of this call. Readers recognise the frame by PARKED_ON.
    await publish(client, due, payload, kept | {PARKED_ON: subject}, msg_id=subject)
