"""Reading a stream in order, from a mark on, as fast as it can be taken.

``FrameReader`` follows one subject of a stream with a light consumer that keeps no state worth
saving: no acks, no leases, in the memory of one server. If the consumer, its server or the
connection goes away or a message is missing in between, the reader makes a new consumer right after
the last frame it has seen. One that begins earlier, as on a replica that lags behind, is listened
to from there on only. So frames come exactly once and in order, and the position alone says what is
done. A buffer may hold a frame twice, after its writer was replaced; the second one is passed over.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from datetime import datetime

import nats.errors
import pyarrow as pa
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription

from ebbflow.core import frames
from ebbflow.core.copies import NOTHING, Known, Stamp, is_copy, with_frame
from ebbflow.core.inlet import Inlet, Origin
from ebbflow.core.position import Mark
from ebbflow.core.publications import FROM, WATERMARK
from ebbflow.errors import AccessError, EbbflowError, JetStreamUnavailable
from ebbflow.nats import api
from ebbflow.nats.link import Link
from ebbflow.nats.publish import MSG_ID
from ebbflow.nats.pull import Delivery, LightConsumer

# How many frames are asked for ahead: more of small ones, as a slow trickle has left them, so that
# there are enough rows for a full call of user code.
_WINDOW, _WINDOW_BYTES, _MOST_FRAMES = 64, 16 * 1024 * 1024, 1024
_NANOS = 1_000_000_000
_HEARTBEAT = 0.5
_EXPIRES = 20.0
# So many heartbeats in a row have to be missing before a consumer is given up.
_MISSED = 3
_IDLE_CONSUMER = 15
_PAUSE = 0.1


class FrameReader(Inlet):
    """Follows one subject. ``take`` is called by one thread; everything else is on the link's.

    With ``known``, what was read of each writer's last chunk before ``start``, frames that were
    read before are passed over. ``passed`` is the mark behind which there was nothing else so far.
    The link waits for NATS, not the reader, so ``waiting`` is always ``None``.
    """

    def __init__(
        self,
        link: Link,
        stream: str,
        subject: str,
        start: Mark,
        wake: threading.Event,
        known: Known | None = None,
    ) -> None:
        self.mark = start
        self.known = NOTHING if known is None else known
        self._drops_copies = known is not None
        self.stream = stream
        self.subject = subject
        self._link = link
        self._wake = wake
        self.origins: list[Origin] = []
        self._queue: deque[tuple[int, bytes, Origin, str | None]] = deque()
        self._head: tuple[int, pa.RecordBatch] | None = None
        self._head_origin: Origin = (None, None)
        self._stamp: Stamp | None = None
        self._before = start, self.known
        self._last_seq = start.seq
        self._seen = start.seq
        self._next_delivery = 1
        self._asked = 0
        self._frame_size = _WINDOW_BYTES / _WINDOW
        self._arrivals = 0
        self._consumer = LightConsumer(stream)
        self._inbox: Subscription | None = None
        self._watch: asyncio.Task[None] | None = None
        self._renewal: asyncio.Task[None] | None = None
        self._renewing = False
        self._failure: EbbflowError | None = None
        self._unwatch: Callable[[], None] = lambda: None
        self._done = self._purged = 0
        self._purging = False
        link.run(self._begin(), timeout=60)

    async def _begin(self) -> None:
        await self._renew_until_done(unless=(api.ApiError,))
        self._watch = asyncio.get_running_loop().create_task(self._watch_silence())

    async def _renew(self) -> None:
        """Make a new consumer that continues after the last frame seen."""
        await self._drop_consumer()
        inbox = self._link.client.new_inbox()
        self._consumer = LightConsumer(self.stream)
        self._next_delivery, self._asked = 1, 0
        self._unwatch()
        pulls = self._consumer.pull_subject
        self._unwatch = self._link.client.when_denied(pulls, self._fail)
        self._inbox = await self._link.client.subscribe(
            inbox, cb=self._arrived, pending_msgs_limit=-1, pending_bytes_limit=-1
        )
        await self._consumer.make(self._link.client, self.subject, self._seen, _IDLE_CONSUMER)

    async def _drop_consumer(self) -> None:
        inbox, self._inbox = self._inbox, None
        if inbox is not None:
            await inbox.unsubscribe()
            await self._consumer.forget(self._link.client)

    async def _ask(self) -> None:
        """Keep the server supplied with requests, within the window."""
        window = int(min(_MOST_FRAMES, max(_WINDOW, _WINDOW_BYTES / self._frame_size)))
        room = window - len(self._queue) - self._asked
        if room < window // 2 or self._renewing or self._inbox is None:
            return
        self._asked += room
        request = {
            "batch": room,
            "expires": int(_EXPIRES * _NANOS),
            "idle_heartbeat": int(_HEARTBEAT * _NANOS),
        }
        payload, pulls = json.dumps(request).encode(), self._consumer.pull_subject
        await self._link.client.publish(pulls, payload, reply=self._inbox.subject)

    async def _arrived(self, message: Msg) -> None:
        self._arrivals += 1
        delivery = Delivery.of(message)
        if delivery is None:
            await self._status(message)
            return
        if delivery.number != self._next_delivery or self._renewing:
            self._restart()
            return
        self._next_delivery += 1
        self._asked = max(0, self._asked - 1)
        if delivery.seq > self._seen:
            self._seen = delivery.seq
            self._frame_size += (len(message.data) - self._frame_size) / 16
            headers = message.headers or {}
            self._queue.append((delivery.seq, message.data, _origin(headers), headers.get(MSG_ID)))
            self._wake.set()
        await self._ask()

    async def _status(self, message: Msg) -> None:
        headers = message.headers or {}
        status = headers.get("Status", "")
        left = int(headers.get("Nats-Pending-Messages", 0))
        if status == "100":
            if int(headers.get("Nats-Last-Consumer", 0)) >= self._next_delivery:
                self._restart()  # what it has delivered did not all arrive
        elif status == "408" and left:
            self._asked = max(0, self._asked - left)
            await self._ask()
        else:
            self._restart()

    def _restart(self) -> None:
        if not self._renewing:
            # Not from within the subscription's own callback, which ends with the subscription.
            self._renewal = asyncio.get_running_loop().create_task(self._renew_or_fail())
            self._renewing = True

    async def _renew_or_fail(self) -> None:
        try:
            await asyncio.sleep(_PAUSE)  # what ended the last consumer may end the next one at once
            await self._renew_until_done()
        except EbbflowError as error:
            self._fail(error)

    def _fail(self, error: EbbflowError) -> None:
        """Have the task hear of it when it takes what comes next."""
        self._failure = error
        self._wake.set()

    async def _renew_until_done(self, unless: tuple[type[Exception], ...] = ()) -> None:
        self._renewing = True
        while True:
            try:
                await self._renew()
                break
            except unless:
                raise
            except (JetStreamUnavailable, api.ApiError, nats.errors.Error, OSError):
                await asyncio.sleep(_PAUSE)
        self._renewing = False
        await self._ask()

    async def _watch_silence(self) -> None:
        """A consumer that neither delivers nor beats is gone, whatever the reason."""
        arrivals = missed = 0
        client = self._link.client
        connections = client.stats["reconnects"]
        while True:
            await asyncio.sleep(_HEARTBEAT)
            # By looks and not by the clock: a process that was halted finds its arrivals first.
            silent = self._asked and self._arrivals == arrivals
            missed, arrivals = missed + 1 if silent else 0, self._arrivals
            if client.stats["reconnects"] != connections:
                # The consumer may be well, but what was asked for before may have been dropped.
                connections, self._asked = client.stats["reconnects"], 0
                with contextlib.suppress(nats.errors.Error):  # lost again; the next look finds it
                    await self._ask()
            elif missed >= _MISSED and client.is_connected:
                missed = 0
                self._restart()

    def take(self, limit: int) -> list[pa.RecordBatch]:
        """Returns up to ``limit`` rows that are here already; moves ``mark`` behind them.

        ``origins`` then says where the frames came from.
        """
        return self._take(limit, _MOST_FRAMES)

    def take_frame(self, limit: int) -> list[pa.RecordBatch]:
        """Returns up to ``limit`` rows of one frame, which ``give_back`` can undo in part."""
        return self._take(limit, 1)

    def _take(self, limit: int, most_frames: int) -> list[pa.RecordBatch]:
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
        while self._head is None and self._queue:
            seq, payload, origin, msg_id = self._queue.popleft()
            self._stamp = Stamp.of(origin[0], msg_id) if self._drops_copies else None
            # A frame of which some rows are done is no copy: they were its own.
            if self._stamp and not self.mark.row and is_copy(self.known, self._stamp):
                self._pass(seq)
                continue
            batch = frames.decode(payload)
            self._head, self._head_origin = (seq, batch.slice(self.mark.row)), origin
        if self._head is None and self._failure is not None:
            raise self._failure
        return self._head is not None

    def _pass(self, seq: int) -> None:
        if self.passed is None:
            self.passed = self.mark
        self.mark = Mark(seq)

    def _cut(self, limit: int) -> pa.RecordBatch:
        assert self._head is not None
        seq, batch = self._head
        self._before, self._last_seq = (self.mark, self.known), seq
        self.passed = None
        # Of a frame's rest as well: the next frame's watermark is ahead of these rows.
        self.origins.append(self._head_origin)
        piece = batch.slice(0, limit)
        if piece.num_rows == batch.num_rows:
            self._head, self.mark = None, Mark(seq)
            # Only now: known before its last row is done, its rest would pass for a copy.
            if self._stamp:
                self.known = with_frame(self.known, self._stamp)
        else:
            self._head = (seq, batch.slice(limit))
            self.mark = Mark(self.mark.seq, self.mark.row + limit)
        return piece

    def give_back(self, piece: pa.RecordBatch, used: int) -> None:
        """Of the piece that was taken last only ``used`` rows are done; the rest comes again."""
        rest = [piece.slice(used), *([self._head[1]] if self._head else [])]
        self._head = (self._last_seq, frames.concat(rest))
        before, self.known = self._before
        self.mark = Mark(before.seq, before.row + used)

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
        if done == self.mark:
            self.passed = None
        self._link.submit(self._purge(done.seq))

    async def _purge(self, seq: int) -> None:
        """One at a time: without a leader they would pile up, and the last one covers them all."""
        self._done = max(self._done, seq)
        if self._purging:
            return
        self._purging = True
        try:
            while (done := self._done) > self._purged:
                await api.purge(self._link.client, self.stream, self.subject, done)
                self._purged = done
        except AccessError as error:
            self._fail(error)  # a buffer that is never purged ends up full
        except (EbbflowError, api.ApiError, nats.errors.Error):
            return  # the next one covers it, too
        finally:
            self._purging = False

    def close(self, for_good: bool = False) -> None:
        """Stop following; the consumer is deleted, or forgotten by the server after a while."""
        self._link.run(self._end(), timeout=10)

    async def _end(self) -> None:
        for task in (self._watch, self._renewal):
            if task is not None:
                task.cancel()
        self._unwatch()
        await self._drop_consumer()


def _origin(headers: Mapping[str, str]) -> Origin:
    watermark = headers.get(WATERMARK)
    return headers.get(FROM), datetime.fromisoformat(watermark) if watermark else None
