"""The ids of recent posts, remembered for as long as JetStream recognises copies.

JetStream recognises the copy of a frame, not of a single post, and a frame may hold many posts. So
the ids of posts are written to their own stream before the posts are confirmed, and the next run
reads them. Ids that arrive at the same time are written together.

A killed run may have stored a frame without writing its ids. So before it stores a frame with
several posts, it announces which ids the frame will hold, and the next run asks the buffer whether
frames with unwritten ids were stored. Everything runs on the link's loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import secrets
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import nats.errors

from ebbflow.domain.errors import EbbflowError
from ebbflow.nats.link import Link
from ebbflow.nats.publish import BUFFER, publish
from ebbflow.nats.stored import read_subject
from ebbflow.streams.catalogue import DUPLICATE_WINDOW
from ebbflow.streams.names import Names

_AT_ONCE = 200
_ASKING = 64


class RecentIds:
    """Ids of the last two minutes."""

    def __init__(self) -> None:
        self._times: dict[str, float] = {}
        self._oldest_first: deque[tuple[float, Sequence[str]]] = deque()

    def __contains__(self, message_id: str) -> bool:
        taken = self._times.get(message_id)
        return taken is not None and taken > time.time() - DUPLICATE_WINDOW

    def add(self, ids: Sequence[str], taken: float) -> None:
        """Remembers ids with the time of their posts, and forgets old ones."""
        self._times |= dict.fromkeys(ids, taken)
        self._oldest_first.append((taken, ids))
        # A stream deletes messages late, so ids may be too old as soon as they are read.
        too_old = time.time() - DUPLICATE_WINDOW
        while self._oldest_first and self._oldest_first[0][0] < too_old:
            then, old = self._oldest_first.popleft()
            for message_id in old:
                if self._times.get(message_id) == then:
                    del self._times[message_id]


class KnownIds:
    """The ids of one vertex. ``within`` is how many seconds a write may take."""

    def __init__(self, link: Link, names: Names, vertex: str, within: float) -> None:
        self._link = link
        self._stream = names.seen
        self._subject = names.seen_subject(vertex)
        self._retry = replace(BUFFER, ack_wait=within)
        self._written = RecentIds()
        self._unwritten = RecentIds()
        self._waiting: list[str] = []
        self._next_write: asyncio.Future[None] | None = None
        self._writing: asyncio.Task[None] | None = None

    def __contains__(self, message_id: str) -> bool:
        return message_id in self._written

    def is_unwritten(self, message_id: str) -> bool:
        """Returns whether writing the id has failed."""
        return message_id in self._unwritten

    async def load(self, is_stored: Callable[[str], Awaitable[bool]]) -> None:
        """Reads the ids of earlier runs; ``is_stored`` returns whether a frame was stored."""
        announced: dict[str, list[str]] = {}
        for message in await read_subject(self._link.client, self._stream, self._subject):
            entry = json.loads(message.payload)
            if frame := entry.get("frame"):
                announced.setdefault(frame, []).extend(entry["ids"])
            else:
                self._written.add(entry["ids"], entry["at"])
        gate = asyncio.Semaphore(_ASKING)

        async def settle(frame: str, ids: list[str]) -> None:
            async with gate:
                if await is_stored(frame):
                    await self.add(ids)

        open_frames = {
            frame: left
            for frame, ids in announced.items()
            if (left := [message_id for message_id in ids if message_id not in self])
        }
        await asyncio.gather(*(settle(frame, ids) for frame, ids in open_frames.items()))

    async def announce(self, frame: str, ids: Sequence[str]) -> None:
        """Announces which frame will hold the ids, without waiting for an answer."""
        with contextlib.suppress(nats.errors.Error, EbbflowError):
            for entry in _entries(ids, frame=frame):
                await self._link.client.publish(self._subject, entry)

    async def add(self, ids: Sequence[str]) -> None:
        """Writes ids; returns when that is confirmed, or raises ``PublishError``.

        Their messages must be stored already: a post with a known id is confirmed as stored.
        """
        loop = asyncio.get_running_loop()
        self._waiting += ids
        if self._next_write is None:
            self._next_write = loop.create_future()
        written = self._next_write
        if self._writing is None:
            self._writing = loop.create_task(self._write_all())
        # A cancelled caller must not cancel the write, which has other callers' ids, too.
        await asyncio.shield(written)

    async def _write_all(self) -> None:
        try:
            while self._next_write is not None:
                ids, self._waiting = self._waiting, []
                written, self._next_write = self._next_write, None
                await self._write(ids, written)
        finally:
            self._writing = None

    async def _write(self, ids: list[str], written: asyncio.Future[None]) -> None:
        now = time.time()
        try:
            for entry in _entries(ids, at=now):
                await publish(
                    self._link.client,
                    self._subject,
                    entry,
                    msg_id=secrets.token_hex(16),
                    retry=self._retry,
                )
        except Exception as error:
            self._unwritten.add(ids, now)
            written.set_exception(error)
        else:
            self._written.add(ids, now)
            written.set_result(None)


def _entries(ids: Sequence[str], **facts: Any) -> Iterator[bytes]:
    for start in range(0, len(ids), _AT_ONCE):
        yield json.dumps({**facts, "ids": ids[start : start + _AT_ONCE]}).encode()
