"""Ids that were taken in lately: remembered for as long as JetStream knows copies.

JetStream recognises the copy of a message that its stream still holds, or that it has seen since
its server was started. A buffer is emptied as its messages are done, so after a restart of the
server those would not be recognised. Therefore ids are written down in a stream of their own before
anybody hears that they are taken, and read again by the next run. Ids that come at the same time
are written together. All of it is on the link's loop.
"""

from __future__ import annotations

import asyncio
import json
import secrets
import time
from dataclasses import replace
from itertools import islice

from ebbflow.buffers.names import Names
from ebbflow.buffers.streams import DUPLICATE_WINDOW
from ebbflow.nats.link import Link
from ebbflow.nats.publish import BUFFER, publish
from ebbflow.nats.stored import read_subject

_AT_ONCE = 200


class KnownIds:
    """The ids of one vertex. ``within`` is how many seconds a write may take."""

    def __init__(self, link: Link, names: Names, vertex: str, within: float) -> None:
        self._link = link
        self._stream = names.seen
        self._subject = names.seen_subject(vertex)
        self._retry = replace(BUFFER, ack_wait=within)
        self._times: dict[str, float] = {}
        """When each was taken, the oldest first."""
        self._waiting: dict[str, asyncio.Future[None]] = {}
        self._writing: asyncio.Task[None] | None = None

    def __contains__(self, message_id: str) -> bool:
        self._forget()
        return message_id in self._times

    def _forget(self) -> None:
        oldest = time.time() - DUPLICATE_WINDOW
        while self._times:
            first = next(iter(self._times))
            if self._times[first] > oldest:
                return
            del self._times[first]

    async def load(self) -> None:
        """Reads what earlier runs have written down."""
        for message in await read_subject(self._link.client, self._stream, self._subject):
            entry = json.loads(message.payload)
            self._times |= dict.fromkeys(entry["ids"], entry["at"])

    async def add(self, message_id: str) -> None:
        """Writes an id down; returns when that is confirmed, else a ``PublishError`` is raised."""
        loop = asyncio.get_running_loop()
        written = self._waiting.setdefault(message_id, loop.create_future())
        if self._writing is None:
            self._writing = loop.create_task(self._write_all())
        # Whoever is cancelled leaves the others, who may wait for the same id, waiting.
        await asyncio.shield(written)

    async def _write_all(self) -> None:
        try:
            while self._waiting:
                some = dict(islice(self._waiting.items(), _AT_ONCE))
                for message_id in some:
                    del self._waiting[message_id]
                await self._write(some)
        finally:
            self._writing = None

    async def _write(self, waiting: dict[str, asyncio.Future[None]]) -> None:
        now = time.time()
        payload = json.dumps({"at": now, "ids": list(waiting)}).encode()
        try:
            await publish(
                self._link.client,
                self._subject,
                payload,
                msg_id=secrets.token_hex(16),
                retry=self._retry,
            )
        except Exception as error:
            for future in waiting.values():
                future.set_exception(error)
        else:
            self._times |= dict.fromkeys(waiting, now)
            for future in waiting.values():
                future.set_result(None)
