"""What is kept in the bucket of a pipeline: the positions of its partitions, and what is paused.

A task claims its partition and from then on replaces only its own record. A write that finds
another revision means that another task has claimed the partition: ``Fenced``. The record names its
owner, so a task knows its own write again.

Pauses are one record beside the positions. Two people who pause at once both have their way: whose
write finds another revision reads the record again and changes that.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable

from ebbflow.domain.errors import Fenced
from ebbflow.engine.pauses import Pauses
from ebbflow.engine.position import NOTHING, Known, Position
from ebbflow.nats.client import SecuredClient
from ebbflow.nats.publish import BUFFER, PublishRetry, Tally
from ebbflow.nats.stored import read_last
from ebbflow.streams.names import Names
from ebbflow.streams.provision import explain_missing
from ebbflow.streams.record import Record


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
        """Takes the partition over; the task that had it can write no more.

        The owner's name begins with that of the run.
        """
        stored = await self._record.read()
        before = Position(secrets.token_hex(6)) if stored is None else Position.from_json(stored)
        position = before.claimed(f"{run}{secrets.token_hex(6)}", run)
        # Written before anything is read: from here on the writes of the last owner find another
        # revision than they name, so two tasks never record the same partition.
        await self.write(position)
        return position

    async def write(self, position: Position) -> None:
        """Replaces the record; ``Fenced`` when somebody else has replaced it before."""
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


async def read_known(client: SecuredClient, names: Names, vertex: str, partition: int) -> Known:
    """Returns what a task has recorded of the frames it has read, no older than this call."""
    subject = names.record_subject(names.position_key(vertex, partition))
    records = await read_last(client, names.positions_stream, subject)
    return Position.from_json(records[-1].payload).done.known if records else NOTHING


async def read_pauses(client: SecuredClient, names: Names) -> Pauses:
    """Returns what is paused now; ``SetupError`` if there is no such pipeline."""
    record = _record_of_pauses(client, names)
    async with explain_missing(client, names.pipeline):
        return _to_pauses(await record.read(), record.revision)


async def change_pauses(
    client: SecuredClient, names: Names, change: Callable[[Pauses], Pauses]
) -> Pauses:
    """Changes what is paused, and returns it as it is stored."""
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
