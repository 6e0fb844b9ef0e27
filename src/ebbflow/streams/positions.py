"""Positions in JetStream's key-value store, replaced only by whoever owns them.

A task claims its partition by a compare-and-set and from then on every write names the revision
it replaces. A write that finds another revision means another task has claimed the partition:
``Fenced``. A write that was sent again after silence may find its own first copy; the record
names its owner, which tells the two cases apart.
"""

from __future__ import annotations

import asyncio
import json
import secrets
from collections.abc import Callable

from ebbflow.domain.errors import Fenced, PermanentPublishError
from ebbflow.engine.pauses import Pauses
from ebbflow.engine.position import Position
from ebbflow.nats import api
from ebbflow.nats.client import SecuredClient
from ebbflow.nats.link import Link
from ebbflow.nats.publish import BUFFER, PublishRetry, Tally, publish
from ebbflow.nats.stored import read_last, read_one
from ebbflow.streams.names import Names
from ebbflow.streams.streams import explain_unknown

_IN_PROCESS = 10164
_WRONG_REVISION = frozenset({10071, _IN_PROCESS})


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
        self._client = client
        self._retry = retry
        self._tally = tally
        self._bucket = names.positions
        self._subject = f"$KV.{names.positions}.{names.position_key(vertex, partition)}"
        self._owner = (vertex, partition)
        self._revision = 0

    async def claim(self, run: str = "") -> Position:
        """Takes the partition over; the task that had it can write no more.

        The owner's name begins with that of the run.
        """
        stored = await self._load()
        owner = f"{run}{secrets.token_hex(6)}"
        position = (stored or Position(lineage=secrets.token_hex(6))).claimed(owner, run)
        # Written before anything is read: from here on the writes of the last owner find another
        # revision than they name, so two tasks never record the same partition.
        await self.write(position)
        return position

    async def _load(self) -> Position | None:
        # From the leader, not by direct get: a follower may lag behind the last owner's writes.
        record = await read_one(self._client, f"KV_{self._bucket}", last_by_subj=self._subject)
        if record is None:
            return None
        self._revision = record.seq
        return Position.from_json(record.payload)

    async def write(self, position: Position) -> None:
        """Replaces the record; ``Fenced`` when somebody else has replaced it before."""
        while not await self._try_write(position):
            await asyncio.sleep(self._retry.wait)

    async def _try_write(self, position: Position) -> bool:
        """Returns ``True`` once it is stored; ``False`` while a copy of it may still be stored."""
        replaced = self._revision
        try:
            ack = await publish(
                self._client,
                self._subject,
                position.to_json(),
                {"Nats-Expected-Last-Subject-Sequence": str(replaced)},
                retry=self._retry,
                tally=self._tally,
            )
        except PermanentPublishError as error:
            if error.code not in _WRONG_REVISION:
                raise
            # The write may have been sent twice and this answer be about the second copy. The
            # record names its owner, so an equal one is ours. To take it for somebody else's
            # would end a healthy task; to take another's for ours would have two write.
            if await self._load() == position:
                return True
            if error.code == _IN_PROCESS and self._revision == replaced:
                return False
            raise Fenced(*self._owner) from error
        self._revision = ack.seq
        return True


async def read_all(link: Link, names: Names) -> dict[tuple[str, int], Position]:
    """Returns every position of the pipeline by vertex and partition, no older than this call."""
    return await load_all(link.client, names)


async def load_all(client: SecuredClient, names: Names) -> dict[tuple[str, int], Position]:
    """Returns the same, by a client."""
    prefix = f"$KV.{names.positions}."
    positions = {}
    for record in await read_last(client, f"KV_{names.positions}", prefix + "*.*"):
        vertex, _, partition = record.subject.removeprefix(prefix).rpartition(".")
        if vertex:  # the record of the audit table is kept beside the positions
            positions[vertex, int(partition)] = Position.from_json(record.payload)
    return positions


_WRONG_TOO = frozenset({10071, 10164})
_PATIENT = PublishRetry(attempts=-1, ack_wait=20)


async def read_pauses(client: SecuredClient, names: Names) -> Pauses:
    """Returns what is paused now; ``SetupError`` if there is no such pipeline."""
    stream = f"KV_{names.positions}"
    try:
        # From the leader: a follower may lag behind, and a task would take messages once more.
        record = await read_one(client, stream, last_by_subj=names.pauses_subject)
    except api.ApiError as error:
        if error.code != api.NOT_FOUND:
            raise
        existing = await api.list_streams(client, "ebb_")
        raise explain_unknown(names.pipeline, existing) from None
    return Pauses() if record is None else Pauses.from_json(record.payload, record.seq)


async def change_pauses(
    client: SecuredClient, names: Names, change: Callable[[Pauses], Pauses]
) -> Pauses:
    """Changes what is paused, and returns it as it is stored."""
    while True:
        before = await read_pauses(client, names)
        after = change(before)
        if after == before:
            return before
        payload = json.dumps(after.to_json()).encode()
        expected = {"Nats-Expected-Last-Subject-Sequence": str(before.revision)}
        try:
            ack = await publish(client, names.pauses_subject, payload, expected, retry=_PATIENT)
        except PermanentPublishError as error:
            if error.code not in _WRONG_TOO:
                raise
            continue
        return Pauses.from_json(payload, ack.seq)
