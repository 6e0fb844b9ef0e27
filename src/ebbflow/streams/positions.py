"""The records in the bucket of a pipeline: the positions of its partitions, and what is paused.

A task claims its partition and from then on replaces only its own record. A write that finds
another revision means that another task has claimed the partition: ``Fenced``. The record names its
owner, so a task recognises its own write.

Pauses are one record next to the positions: the whole pipeline, or some of its vertices. The record
outlasts epochs, restarts and runs. A vertex that is resumed by its name while the whole pipeline is
paused continues alone. If two people pause at the same time, both take effect: the write that finds
another revision reads the record again and applies its change to that.

A ``Record`` is one key of a bucket that several processes may write, replaced by compare-and-set.
Every write names the revision that it replaces, so of two writers that have read the same revision
only one succeeds, and the other finds out. A write that is sent again after a missing answer may
find its own first copy. A record with the same content is taken for that copy, so callers that must
distinguish writers put the writer's name into the record.
"""

from __future__ import annotations

import asyncio
import json
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

from ebbflow.domain import records
from ebbflow.domain.errors import Fenced, PermanentPublishError
from ebbflow.engine.position import Position
from ebbflow.nats.bulk import EXPECTED
from ebbflow.nats.client import SecuredClient
from ebbflow.nats.publish import BUFFER, PublishRetry, Tally, publish
from ebbflow.nats.stored import read_last, read_one
from ebbflow.streams.names import Names, bucket_stream
from ebbflow.streams.provision import explain_missing

# For records that people or the driver write: gives up when NATS does not answer for long.
_PATIENT = PublishRetry(attempts=-1, ack_wait=20)
_OTHER_REVISION = 10071
# On a cluster: another write to this subject, perhaps this one's first copy, is being stored.
_IN_PROCESS = 10164


class Record:
    """The record under one key, as this writer last saw it. Used on the client's loop.

    ``revision`` is the revision that was read or written last; 0 if there was no record.
    """

    def __init__(
        self,
        client: SecuredClient,
        bucket: str,
        key: str,
        retry: PublishRetry = _PATIENT,
        tally: Tally | None = None,
    ) -> None:
        self.revision = 0
        self._client = client
        self._stream = bucket_stream(bucket)
        self._subject = f"$KV.{bucket}.{key}"
        self._retry = retry
        self._tally = tally

    async def read(self) -> bytes | None:
        """Returns the stored record; ``None`` if there is none. ``ApiError`` without a bucket."""
        # From the leader, not by direct get: a follower may lag behind the last write.
        stored = await read_one(self._client, self._stream, last_by_subj=self._subject)
        if stored is None:
            return None
        self.revision = stored.seq
        return stored.payload

    async def replace(self, payload: bytes) -> bool:
        """Stores the payload in place of ``revision``; ``False`` if there is a newer revision.

        ``revision`` is then the newer one.
        """
        while (is_stored := await self._try_replace(payload)) is None:
            await asyncio.sleep(self._retry.wait)
        return is_stored

    async def update(self, change: Callable[[bytes | None], bytes | None]) -> bytes | None:
        """Replaces the record with the result of ``change``, and returns the stored record.

        ``change`` is called again whenever another writer was faster. It returns ``None`` to leave
        the record as it is.
        """
        while True:
            before = await self.read()
            after = change(before)
            if after is None:
                return before
            if await self.replace(after):
                return after

    async def _try_replace(self, payload: bytes) -> bool | None:
        """Returns whether it is stored; ``None`` while a copy of it may still be stored."""
        replaced = self.revision
        try:
            ack = await publish(
                self._client,
                self._subject,
                payload,
                {EXPECTED: str(replaced)},
                retry=self._retry,
                tally=self._tally,
            )
        except PermanentPublishError as error:
            if error.code not in (_OTHER_REVISION, _IN_PROCESS):
                raise
            # It may have been sent twice, and this answer may be about the second copy. Taking its
            # own write for another writer's would end a healthy task; the opposite mistake would
            # let two tasks write.
            if await self.read() == payload:
                return True
            return None if error.code == _IN_PROCESS and self.revision == replaced else False
        self.revision = ack.seq
        return True


class PositionStore:
    """The position of one partition, as its owner sees it."""

    def __init__(
        self,
        client: SecuredClient,
        names: Names,
        vertex: str,
        partition: int,
        retry: PublishRetry = BUFFER,
        tally: Tally | None = None,
    ) -> None:
        key = names.position_key(vertex, partition)
        self._record = Record(client, names.positions, key, retry, tally)
        self._owner = (vertex, partition)

    async def claim(self, run: str = "") -> Position:
        """Takes the partition over; its previous task can no longer write.

        The owner's name begins with the run's name.
        """
        stored = await self._record.read()
        before = Position(secrets.token_hex(6)) if stored is None else Position.from_json(stored)
        position = before.claimed(f"{run}{secrets.token_hex(6)}", run)
        # Written before anything is read: from now on the previous owner's writes name an outdated
        # revision and fail, so two tasks never record the same partition.
        await self.write(position)
        return position

    async def write(self, position: Position) -> None:
        """Replaces the record; ``Fenced`` when another task has replaced it before."""
        if not await self._record.replace(position.to_json()):
            raise Fenced(*self._owner)


async def read_positions(client: SecuredClient, names: Names) -> dict[tuple[str, int], Position]:
    """Returns every position of the pipeline by vertex and partition, no older than this call."""
    prefix = names.record_subject("")
    positions = {}
    for record in await read_last(client, names.positions_stream, prefix + "*.*"):
        vertex, _, partition = record.subject.removeprefix(prefix).rpartition(".")
        positions[vertex, int(partition)] = Position.from_json(record.payload)
    return positions


# --- pauses -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Pauses:
    """What is paused, and since when. ``revision`` is the record's; a higher one is newer.

    ``everything`` is set while the whole pipeline is paused, except the vertices in ``released``.
    """

    everything: datetime | None = None
    vertices: Mapping[str, datetime] = field(default_factory=dict)
    released: frozenset[str] = frozenset()
    revision: int = field(default=0, compare=False, metadata=records.stored_as(None))

    def since(self, vertex: str) -> datetime | None:
        """Returns when the vertex was paused; ``None`` if it is not."""
        whole = None if vertex in self.released else self.everything
        return self.vertices.get(vertex, whole)

    def pausing(self, vertex: str | None, at: datetime) -> Pauses:
        """Returns the record with a vertex, or all, paused; paused ones keep their time."""
        if vertex is None:
            return replace(self, everything=self.everything or at, released=frozenset())
        if self.since(vertex) is not None:
            return self
        return replace(self, vertices={**self.vertices, vertex: at})

    def resuming(self, vertex: str | None) -> Pauses:
        """Returns the record with a vertex, or with all, running again."""
        if vertex is None:
            return Pauses(revision=self.revision)
        vertices = {name: at for name, at in self.vertices.items() if name != vertex}
        released = self.released | {vertex} if self.everything else self.released
        return replace(self, vertices=vertices, released=released)

    def to_json(self) -> dict[str, Any]:
        """Returns the record in its stored form."""
        return records.to_plain(self)

    @classmethod
    def from_json(cls, raw: bytes | str, revision: int) -> Pauses:
        """Returns the record from its stored form."""
        return replace(records.from_json(cls, raw), revision=revision)


async def read_pauses(client: SecuredClient, names: Names) -> Pauses:
    """Returns what is paused now; ``SetupError`` if there is no such pipeline."""
    record = _record_of_pauses(client, names)
    async with explain_missing(client, names.pipeline):
        return _to_pauses(await record.read(), record.revision)


async def change_pauses(
    client: SecuredClient, names: Names, change: Callable[[Pauses], Pauses]
) -> Pauses:
    """Changes what is paused, and returns the stored record."""
    record = _record_of_pauses(client, names)

    def change_stored(stored: bytes | None) -> bytes | None:
        before = _to_pauses(stored, record.revision)
        after = change(before)
        return None if after == before else json.dumps(after.to_json()).encode()

    async with explain_missing(client, names.pipeline):
        return _to_pauses(await record.update(change_stored), record.revision)


def _record_of_pauses(client: SecuredClient, names: Names) -> Record:
    return Record(client, names.positions, names.pauses_key)


def _to_pauses(stored: bytes | None, revision: int) -> Pauses:
    return Pauses() if stored is None else Pauses.from_json(stored, revision)
