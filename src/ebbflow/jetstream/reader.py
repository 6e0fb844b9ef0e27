"""Reading a stream in order, from a mark on, as fast as it can be taken.

``FrameReader`` follows one subject of a stream with a light consumer that keeps no state worth
saving: no acks, no leases, kept in memory. If the consumer, the server or the connection goes away
or a message is missing in between, the reader makes a new consumer right after the last frame it
has seen. So frames come exactly once and in order, and the position alone says what is done.
"""

from __future__ import annotations

import asyncio
import json
import secrets
import threading
import time
from collections import deque
from collections.abc import Sequence
from datetime import datetime

import nats.errors
import pyarrow as pa
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription

from ebbflow import frames
from ebbflow.core.position import Mark
from ebbflow.core.publications import FROM, WATERMARK
from ebbflow.errors import EbbflowError
from ebbflow.jetstream import streams
from ebbflow.jetstream.connection import Link

Origin = tuple[str | None, datetime | None]
"""The task that wrote a frame, and its watermark then."""

WINDOW = 64
_NANOS = 1_000_000_000
_HEARTBEAT = 1.0
_EXPIRES = 20.0
_SILENCE = 3.5
_IDLE_CONSUMER = 15


class FrameReader:
    """Follows one subject. ``take`` is called by one thread; everything else is on the link's."""

    def __init__(
        self, link: Link, stream: str, subject: str, start: Mark, wake: threading.Event
    ) -> None:
        self.mark = start
        self.stream = stream
        self.subject = subject
        self._link = link
        self._wake = wake
        self.origins: list[Origin] = []
        self._queue: deque[tuple[int, bytes, Origin]] = deque()
        self._head: tuple[int, pa.RecordBatch] | None = None
        self._before = start
        self._last_seq = start.seq
        self._seen = start.seq
        self._next_delivery = 1
        self._asked = 0
        self._heard = time.monotonic()
        self._consumer = ""
        self._inbox: Subscription | None = None
        self._watch: asyncio.Task[None] | None = None
        self._renewing = False
        link.run(self._begin(), timeout=60)

    async def _begin(self) -> None:
        await self._renew()
        self._watch = asyncio.get_running_loop().create_task(self._watch_silence())

    async def _renew(self) -> None:
        """Make a new consumer that continues after the last frame seen."""
        self._renewing = True
        try:
            await self._drop_inbox()
            inbox = self._link.client.new_inbox()
            self._consumer = f"r{secrets.token_hex(8)}"
            self._next_delivery, self._asked = 1, 0
            self._inbox = await self._link.client.subscribe(
                inbox, cb=self._arrived, pending_msgs_limit=-1, pending_bytes_limit=-1
            )
            await streams.api(
                self._link.client,
                f"CONSUMER.CREATE.{self.stream}.{self._consumer}",
                {"stream_name": self.stream, "config": self._config(), "action": "create"},
            )
            self._heard = time.monotonic()
        finally:
            self._renewing = False
        await self._ask()

    def _config(self) -> dict[str, object]:
        return {
            "name": self._consumer,
            "deliver_policy": "by_start_sequence",
            "opt_start_seq": self._seen + 1,
            "ack_policy": "none",
            "filter_subject": self.subject,
            "mem_storage": True,
            "num_replicas": 1,
            "inactive_threshold": _IDLE_CONSUMER * _NANOS,
        }

    async def _drop_inbox(self) -> None:
        inbox, self._inbox = self._inbox, None
        if inbox is not None:
            await inbox.unsubscribe()

    async def _ask(self) -> None:
        """Keep the server supplied with requests, within the window."""
        room = WINDOW - len(self._queue) - self._asked
        if room < WINDOW // 2 or self._renewing or self._inbox is None:
            return
        self._asked += room
        request = {
            "batch": room,
            "expires": int(_EXPIRES * _NANOS),
            "idle_heartbeat": int(_HEARTBEAT * _NANOS),
        }
        subject = f"$JS.API.CONSUMER.MSG.NEXT.{self.stream}.{self._consumer}"
        payload = json.dumps(request).encode()
        await self._link.client.publish(subject, payload, reply=self._inbox.subject)

    async def _arrived(self, message: Msg) -> None:
        self._heard = time.monotonic()
        if not message.reply.startswith("$JS.ACK."):
            await self._status(message)
            return
        seq, delivery = _sequences(message.reply)
        if delivery != self._next_delivery or self._renewing:
            await self._restart()
            return
        self._next_delivery += 1
        self._asked -= 1
        self._seen = seq
        self._queue.append((seq, message.data, _origin(message)))
        self._wake.set()
        await self._ask()

    async def _status(self, message: Msg) -> None:
        headers = message.headers or {}
        status = headers.get("Status", "")
        if status == "100":
            return
        left = int(headers.get("Nats-Pending-Messages", 0))
        if status == "408" and left:
            self._asked -= left
            await self._ask()
        else:
            await self._restart()

    async def _restart(self) -> None:
        if not self._renewing:
            self._renewing = True
            # Not from within the subscription's own callback, which ends with the subscription.
            asyncio.get_running_loop().create_task(self._renew_until_done())

    async def _renew_until_done(self) -> None:
        while True:
            try:
                await self._renew()
                return
            except (streams.ApiError, nats.errors.Error, OSError):
                await asyncio.sleep(0.25)

    async def _watch_silence(self) -> None:
        """A consumer that neither delivers nor beats is gone, whatever the reason."""
        while True:
            await asyncio.sleep(_HEARTBEAT)
            quiet = time.monotonic() - self._heard
            if quiet > _SILENCE and self._asked and not self._renewing:
                self._heard = time.monotonic()
                await self._restart()

    @property
    def exhausted(self) -> bool:
        """Never: whatever feeds the stream may go on."""
        return False

    def ready_in(self) -> float:
        """An arrival wakes the task."""
        return 3600.0

    def take(self, limit: int, most_frames: int = WINDOW) -> list[pa.RecordBatch]:
        """Up to ``limit`` rows that are here already; moves ``mark`` behind them.

        ``origins`` then says where the frames came from.
        """
        taken: list[pa.RecordBatch] = []
        self.origins = []
        while limit > 0 and len(taken) < most_frames and self._load_head():
            piece = self._cut(limit)
            taken.append(piece)
            limit -= piece.num_rows
        if taken:
            self._link.submit(self._ask())
        return taken

    def _load_head(self) -> bool:
        if self._head is None and self._queue:
            seq, payload, origin = self._queue.popleft()
            batch = frames.decode(payload)
            self._head = (seq, batch.slice(self.mark.row))
            self.origins.append(origin)
        return self._head is not None

    def _cut(self, limit: int) -> pa.RecordBatch:
        assert self._head is not None
        seq, batch = self._head
        self._before, self._last_seq = self.mark, seq
        piece = batch.slice(0, limit)
        if piece.num_rows == batch.num_rows:
            self._head, self.mark = None, Mark(seq)
        else:
            self._head = (seq, batch.slice(limit))
            self.mark = Mark(self.mark.seq, self.mark.row + limit)
        return piece

    def give_back(self, piece: pa.RecordBatch, used: int) -> None:
        """Of the piece that was taken last only ``used`` rows are done; the rest comes again."""
        rest = [piece.slice(used), *([self._head[1]] if self._head else [])]
        self._head = (self._last_seq, frames.concat(rest))
        self.mark = Mark(self._before.seq, self._before.row + used)

    def take_until(self, end: Mark, timeout: float = 60.0) -> list[pa.RecordBatch]:
        """Exactly the rows up to ``end``, waiting for them to arrive: for replaying a chunk."""
        taken: list[pa.RecordBatch] = []
        self.origins = []
        deadline = time.monotonic() + timeout
        while self.mark < end:
            self._wake.clear()
            if not self._load_head():
                if time.monotonic() > deadline:
                    raise EbbflowError(f"{self.stream}: no frames after {self.mark} up to {end}")
                self._wake.wait(0.2)
                continue
            assert self._head is not None
            whole = self._head[0] <= end.seq
            taken.append(self._cut(self._head[1].num_rows if whole else end.row - self.mark.row))
        return taken

    def forget(self, done: Mark) -> None:
        """Let the server delete what is done; without waiting, for nothing depends on it."""
        self._link.submit(self._purge(done.seq))

    async def _purge(self, seq: int) -> None:
        try:
            await streams.purge(self._link.client, self.stream, self.subject, seq)
        except (TimeoutError, streams.ApiError, nats.errors.Error):
            # The next one covers it: purging is by sequence, not one by one.
            return

    def close(self) -> None:
        """Stop following; the consumer is deleted, or forgotten by the server after a while."""
        self._link.run(self._end(), timeout=10)

    async def _end(self) -> None:
        if self._watch is not None:
            self._watch.cancel()
        await self._drop_inbox()
        subject = f"$JS.API.CONSUMER.DELETE.{self.stream}.{self._consumer}"
        await self._link.client.publish(subject, b"")


def _origin(message: Msg) -> Origin:
    headers = message.headers or {}
    watermark = headers.get(WATERMARK)
    return headers.get(FROM), datetime.fromisoformat(watermark) if watermark else None


def _sequences(reply: str) -> tuple[int, int]:
    """Stream and delivery sequence from a reply subject, in its short or its long form."""
    tokens = reply.split(".")
    first = 5 if len(tokens) == 9 else 7
    return int(tokens[first]), int(tokens[first + 1])


class StoredMessage:
    """One message of a stream as a direct read returns it."""

    __slots__ = ("headers", "payload", "seq", "subject")

    def __init__(self, message: Msg) -> None:
        headers = dict(message.headers or {})
        self.subject = headers.pop("Nats-Subject", "")
        self.seq = int(headers.pop("Nats-Sequence", 0))
        self.headers = headers
        self.payload = message.data


async def direct_read(link: Link, stream: str, request: dict[str, object]) -> list[StoredMessage]:
    """A batched direct read: a snapshot of messages without any consumer."""
    client = link.client
    inbox = client.new_inbox()
    subscription = await client.subscribe(inbox, pending_msgs_limit=-1, pending_bytes_limit=-1)
    found: list[StoredMessage] = []
    try:
        payload = json.dumps(request).encode()
        await client.publish(f"$JS.API.DIRECT.GET.{stream}", payload, reply=inbox)
        while True:
            message = await subscription.next_msg(timeout=5)
            if (message.headers or {}).get("Status"):
                return found
            found.append(StoredMessage(message))
    finally:
        await subscription.unsubscribe()


async def read_last(link: Link, stream: str, subjects: Sequence[str]) -> dict[str, bytes]:
    """The last message on each subject that matches."""
    found = await direct_read(link, stream, {"multi_last": list(subjects)})
    return {message.subject: message.payload for message in found}
