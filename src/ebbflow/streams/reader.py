"""Reading the frames of a stream in order, from a mark on.

``FrameReader`` follows one subject of a stream. Frames come exactly once and in order, whatever is
lost on the way, and nothing is acknowledged: the position alone says what is done. A buffer may
hold a frame twice, after its writer was replaced, and the redeliveries too, after their server died
while it moved one that was due; the reader passes over the second one.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Mapping
from datetime import datetime
from typing import NamedTuple

import nats.errors
import pyarrow as pa
from typing_extensions import override

from ebbflow.domain.errors import AccessError, EbbflowError
from ebbflow.engine import frames
from ebbflow.engine.inlet import Inlet, Origin
from ebbflow.engine.position import NOTHING, Known, Mark, Stamp, is_copy, with_frame
from ebbflow.engine.publications import (
    DUE,
    FROM,
    REDELIVERED_BY,
    WATERMARK,
    redelivery_token,
    with_due,
)
from ebbflow.nats import api
from ebbflow.nats.link import Link
from ebbflow.nats.publish import MSG_ID
from ebbflow.nats.pull import MOST_MESSAGES, NANOS, Deliveries, Follower

# A follower asks for more by itself when frames arrive, unless half its window is waiting, which is
# this many or more. So it has to be told once while that many are taken: told more seldom, it could
# have nothing asked for, and nothing would ever arrive. To tell it costs as much as a small chunk.
_ASK_EVERY = 32


class _Arrived(NamedTuple):
    """A frame that waits to be taken. ``due`` is until when its rows are parked, if at all."""

    seq: int
    payload: memoryview
    origin: Origin
    stamp: Stamp | None
    due: str | None

    def decode(self) -> pa.RecordBatch:
        batch = frames.decode(self.payload)
        return batch if self.due is None else with_due(batch, int(self.due))


class FrameReader(Inlet):
    """Follows one subject. ``take`` is called by one thread; everything else is on the link's.

    With ``known``, what was read of each writer's last chunk before ``start``, frames that were
    read before are passed over. ``passed`` is the mark behind which there was nothing else so far.
    The link waits for NATS, not the reader, so ``waiting`` is always ``None``. It is never
    ``exhausted``: whatever feeds the stream may continue. An arrival wakes the task.
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
        self._queue: deque[_Arrived] = deque()
        self._head: tuple[int, pa.RecordBatch] | None = None
        self._head_origin: Origin = (None, None)
        self._stamp: Stamp | None = None
        self._before = start, self.known
        self._last_seq = start.seq
        self._failure: EbbflowError | None = None
        self._unasked = self._done = self._purged = 0
        self._purging = False
        self._follower = Follower(
            link.client,
            stream,
            subject,
            start.seq,
            take=self._receive,
            fail=self._fail,
            waiting=self._queue.__len__,
        )
        link.run(self._follower.open(), timeout=60)

    @property
    @override
    def frames_waiting(self) -> int:
        return len(self._queue)

    def _receive(self, deliveries: Deliveries) -> None:
        """Queues frames for the task; called on the link's loop."""
        parcel = deliveries.parcel
        for row, seq in enumerate(deliveries.seqs):
            headers = parcel.headers(row) or {}
            stamp = _read_stamp(headers, deliveries.nanos[row] / NANOS)
            arrived = _Arrived(
                seq, parcel.view(row), _read_origin(headers), stamp, headers.get(DUE)
            )
            self._queue.append(arrived)
        self._wake.set()

    def _fail(self, error: EbbflowError) -> None:
        """Has the task learn of it when it takes what comes next."""
        self._failure = error
        self._wake.set()

    def take(self, limit: int) -> list[pa.RecordBatch]:
        """Returns up to ``limit`` rows that are here already; moves ``mark`` behind them.

        ``origins`` then says where the frames came from.
        """
        return self._take(limit, MOST_MESSAGES)

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
        return taken

    def _load_head(self, end: Mark | None = None) -> bool:
        # Not beyond the end of a replay, not even over copies: another end is another chunk.
        while self._head is None and self._queue and (end is None or self.mark < end):
            arrived = self._queue.popleft()
            self._ask_now_and_then()
            self._stamp = arrived.stamp if self._drops_copies else None
            # A frame of which some rows are done is not a copy: they were its own. To pass over it
            # would lose the rest of its rows.
            if not self.mark.row and self._stamp is not None and is_copy(self.known, self._stamp):
                self._pass(arrived.seq)
                continue
            self._head = (arrived.seq, arrived.decode().slice(self.mark.row))
            self._head_origin = arrived.origin
        if self._head is None and self._failure is not None:
            raise self._failure
        return self._head is not None

    def _ask_now_and_then(self) -> None:
        self._unasked += 1
        if self._unasked >= _ASK_EVERY:
            self._unasked = 0
            self._link.call_soon(self._follower.ask)

    def _pass(self, seq: int) -> None:
        # The mark moves over a copy as if its rows were taken; they were, from the first one.
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
            if self._stamp is not None:
                self.known = with_frame(self.known, self._stamp)
        else:
            self._head = (seq, batch.slice(limit))
            self.mark = Mark(self.mark.seq, self.mark.row + limit)
        return piece

    def give_back(self, piece: pa.RecordBatch, used: int) -> None:
        """Takes back all but ``used`` rows of the piece that was taken last; they come again."""
        # What is known goes back as well: a frame that is known to be done would pass for a copy.
        rest = [piece.slice(used), *([self._head[1]] if self._head else [])]
        self._head = (self._last_seq, frames.concat(rest))
        before, self.known = self._before
        self.mark = Mark(before.seq, before.row + used)

    def take_until(self, end: Mark, timeout: float = 60.0) -> list[pa.RecordBatch]:
        """Returns exactly the rows up to ``end``, waiting for them: for replaying a chunk.

        A chunk's ids are made of its rows, so a replay must have neither more nor fewer of them.
        """
        taken: list[pa.RecordBatch] = []
        self.origins = []
        deadline = time.monotonic() + timeout
        while self.mark < end:
            self._wake.clear()
            if self._load_head(end):
                assert self._head is not None
                rows = self._head[1].num_rows
                whole = self._head[0] <= end.seq
                taken.append(self._cut(rows if whole else end.row - self.mark.row))
            elif self.mark < end:
                if time.monotonic() > deadline:
                    raise EbbflowError(f"{self.stream}: no frames after {self.mark} up to {end}")
                self._wake.wait(0.2)
        return taken

    def forget(self, done: Mark) -> None:
        """Lets the server delete what is done, without waiting: nothing depends on it.

        Called when the position is recorded, never before: what is deleted cannot be replayed.
        """
        if done == self.mark:
            self.passed = None
        self._link.submit(self._purge(done.seq))

    async def _purge(self, seq: int) -> None:
        """Purges one at a time: without a leader they would pile up, and the last covers all."""
        self._done = max(self._done, seq)
        if self._purging:
            return
        self._purging = True
        try:
            while (done := self._done) > self._purged:
                await api.purge_subject(self._link.client, self.stream, self.subject, done)
                self._purged = done
        except AccessError as error:
            self._fail(error)  # a buffer that is never purged ends up full
        except (EbbflowError, api.ApiError, nats.errors.Error):
            return  # the next one covers it, too
        finally:
            self._purging = False

    def close(self, for_good: bool = False) -> None:
        """Stops following; the consumer is deleted, or forgotten by the server after a while."""
        self._link.run(self._follower.close(), timeout=10)


def _read_stamp(headers: Mapping[str, str], stored: float) -> Stamp | None:
    """Returns what a copy of a frame is known by, if by anything."""
    moved = Stamp.of_redelivery(redelivery_token(headers), stored, headers.get(REDELIVERED_BY))
    return moved or Stamp.of(headers.get(FROM), headers.get(MSG_ID))


def _read_origin(headers: Mapping[str, str]) -> Origin:
    watermark = headers.get(WATERMARK)
    return headers.get(FROM), datetime.fromisoformat(watermark) if watermark else None
