"""Positions in JetStream's key-value store, replaced only by whoever owns them.

A task claims its partition by a compare-and-set and from then on every write names the revision
it replaces. A write that finds another revision means another task has claimed the partition:
``Fenced``. A write that was sent again after silence may find its own first copy; the record
names its owner, which tells the two cases apart.
"""

from __future__ import annotations

import secrets
from base64 import b64decode

from nats.aio.client import Client

from ebbflow.core.position import Position
from ebbflow.errors import Fenced, PermanentPublishError
from ebbflow.jetstream.connection import Link
from ebbflow.jetstream.names import Names
from ebbflow.jetstream.publisher import BUFFER, Retry, Tally, publish
from ebbflow.jetstream.reader import read_last
from ebbflow.jetstream.streams import ApiError, api

_WRONG_REVISION = frozenset({10071, 10164})
_NO_MESSAGE = 10037


class PositionStore:
    """The position of one partition, as its owner sees it."""

    def __init__(
        self,
        client: Client,
        names: Names,
        vertex: str,
        partition: int,
        retry: Retry = BUFFER,
        tally: Tally | None = None,
    ) -> None:
        self._client = client
        self._retry = retry
        self._tally = tally
        self._bucket = names.positions
        self._subject = f"$KV.{names.positions}.{names.position_key(vertex, partition)}"
        self._owner = (vertex, partition)
        self._revision = 0

    async def claim(self) -> Position:
        """Take the partition over; the task that had it can write no more."""
        stored = await self._load()
        position = (stored or Position(lineage=secrets.token_hex(6))).claimed(secrets.token_hex(6))
        await self.write(position)
        return position

    async def _load(self) -> Position | None:
        # From the leader, not by direct get: a follower may lag behind the last owner's writes.
        try:
            call = f"STREAM.MSG.GET.KV_{self._bucket}"
            answer = await api(self._client, call, {"last_by_subj": self._subject})
        except ApiError as error:
            if error.code == _NO_MESSAGE:
                return None
            raise
        self._revision = answer["message"]["seq"]
        return Position.from_json(b64decode(answer["message"]["data"]))

    async def write(self, position: Position) -> None:
        """Replace the record; ``Fenced`` when somebody else has replaced it before."""
        headers = {"Nats-Expected-Last-Subject-Sequence": str(self._revision)}
        record = position.to_json()
        try:
            ack = await publish(
                self._client,
                self._subject,
                record,
                headers,
                retry=self._retry,
                tally=self._tally,
            )
        except PermanentPublishError as error:
            if error.code not in _WRONG_REVISION:
                raise
            if await self._load() != position:
                raise Fenced(*self._owner) from error
        else:
            self._revision = ack.seq


async def read_all(link: Link, names: Names) -> dict[tuple[str, int], Position]:
    """Every position of the pipeline, by vertex and partition."""
    prefix = f"$KV.{names.positions}."
    found = await read_last(link, f"KV_{names.positions}", [prefix + ">"])
    positions = {}
    for subject, payload in found.items():
        vertex, _, partition = subject.removeprefix(prefix).rpartition(".")
        positions[vertex, int(partition)] = Position.from_json(payload)
    return positions
