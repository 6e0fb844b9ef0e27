"""Reading the frames of a stream in order, from a mark on.

``FrameReader`` follows one subject of a stream. It reads frames exactly once and in order, whatever
is lost in transit, and acknowledges nothing: only the position says what is done. A buffer may have
a frame twice after its writer was replaced, and so may the redeliveries after their server died
while it moved a due frame; the reader skips the copy.
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

# A follower requests more by itself when frames arrive, unless half its window is waiting, which is
# at least this many frames. So the reader must call ``ask`` once for every so many frames it takes.
# With fewer calls there might be no request open, and no frame would ever arrive. More calls would
# waste time: each costs as much as a small chunk.
_ASK_EVERY = 32


class _Arrived(NamedTuple):
    """A frame that waits to be taken. ``due`` is the time until which its rows are parked."""

    seq: int
    payload: memoryview
    origin: Origin
    stamp: Stamp | None
    due: str | None

    def decode(self) -> pa.RecordBatch:
        batch = frames.decode(self.payload)
        return batch if self.due is None else with_due(batch, int(self.due))


class FrameReader(Inlet):
    """Follows one subject. ``take`` is called by one thread; the rest runs on the link's thread.

    ``known`` is what was read of each writer's last chunk before ``start``; with it, frames that
    were read before are skipped. ``passed`` is the mark after which only copies were read so far.
    The link waits for NATS, not the reader, so ``waiting`` is always ``None``. It is never
    ``exhausted``: the stream's writers may continue. An arrival wakes the task.
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
        self._taken_since_ask = self._done = self._purged = 0
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
        """Makes the task's next ``take`` raise the error."""
        self._failure = error
        self._wake.set()

    def take(self, limit: int) -> list[pa.RecordBatch]:
        """Returns up to ``limit`` rows that have arrived; moves ``mark`` past them.

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
        # Not past the end of a replay, not even over copies: with another end it is another chunk.
        while self._head is None and self._queue and (end is None or self.mark < end):
            arrived = self._queue.popleft()
            self._ask_now_and_then()
            self._stamp = arrived.stamp if self._drops_copies else None
            # A frame of which some rows are done is not a copy: those rows were its own. Skipping
            # it would lose the rest of its rows.
            if not self.mark.row and self._stamp is not None and is_copy(self.known, self._stamp):
                self._skip(arrived.seq)
                continue
            self._head = (arrived.seq, arrived.decode().slice(self.mark.row))
            self._head_origin = arrived.origin
        if self._head is None and self._failure is not None:
            raise self._failure
        return self._head is not None

    def _ask_now_and_then(self) -> None:
        self._taken_since_ask += 1
        if self._taken_since_ask >= _ASK_EVERY:
            self._taken_since_ask = 0
            self._link.call_soon(self._follower.ask)

    def _skip(self, seq: int) -> None:
        # The mark moves past a copy as if its rows were taken; they were, from the first frame.
        if self.passed is None:
            self.passed = self.mark
        self.mark = Mark(seq)

    def _cut(self, limit: int) -> pa.RecordBatch:
        assert self._head is not None
        seq, batch = self._head
        self._before, self._last_seq = (self.mark, self.known), seq
        self.passed = None
        # For the rest of a frame, too: the next frame's watermark is ahead of these rows.
        self.origins.append(self._head_origin)
        piece = batch.slice(0, limit)
        if piece.num_rows == batch.num_rows:
            self._head, self.mark = None, Mark(seq)
            # Only after its last row: otherwise the rest of the frame would be taken for a copy.
            if self._stamp is not None:
                self.known = with_frame(self.known, self._stamp)
        else:
            self._head = (seq, batch.slice(limit))
            self.mark = Mark(self.mark.seq, self.mark.row + limit)
        return piece

    def give_back(self, piece: pa.RecordBatch, used: int) -> None:
        """Puts back all but ``used`` rows of the piece that was taken last, to be taken again."""
        # Restores ``known``, too: otherwise the frame would be taken for a copy of itself.
        rest = [piece.slice(used), *([self._head[1]] if self._head else [])]
        self._head = (self._last_seq, frames.concat(rest))
        before, self.known = self._before
        self.mark = Mark(before.seq, before.row + used)

    def take_until(self, end: Mark, timeout: float = 60.0) -> list[pa.RecordBatch]:
        """Returns exactly the rows up to ``end``, waiting for them: for replaying a chunk.

        A chunk's ids depend on its rows, so a replay must have neither more nor fewer of them.
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
        """Lets the server delete frames that are done, without waiting: nothing depends on it.

        Called only once the position is recorded, because deleted frames cannot be replayed.
        """
        if done == self.mark:
            self.passed = None
        self._link.submit(self._purge(done.seq))

    async def _purge(self, seq: int) -> None:
        """Runs one purge at a time: the last covers all, and without a leader they pile up."""
        self._done = max(self._done, seq)
        if self._purging:
            return
        self._purging = True
        try:
            while (done := self._done) > self._purged:
                await api.purge_subject(self._link.client, self.stream, self.subject, done)
                self._purged = done
        except AccessError as error:
            self._fail(error)  # a buffer that is never purged becomes full
        except (EbbflowError, api.ApiError, nats.errors.Error):
            return  # the next purge covers it, too
        finally:
            self._purging = False

    def close(self, for_good: bool = False) -> None:
        """Stops following; the consumer is deleted, by the server itself if need be."""
        self._link.run(self._follower.close(), timeout=10)


def _read_stamp(headers: Mapping[str, str], stored: float) -> Stamp | None:
    """Returns the stamp by which copies of a frame are recognised; ``None`` if it has none."""
    moved = Stamp.of_redelivery(redelivery_token(headers), stored, headers.get(REDELIVERED_BY))
    return moved or Stamp.of(headers.get(FROM), headers.get(MSG_ID))


def _read_origin(headers: Mapping[str, str]) -> Origin:
    watermark = headers.get(WATERMARK)
    return headers.get(FROM), datetime.fromisoformat(watermark) if watermark else None
