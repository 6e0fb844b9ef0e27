"""A window: the frames that a batch vertex works on next, read by workers into one DataFrame.

The driver asks the server what waits, not Spark: as long as nothing has come, an idle vertex costs
two small requests at each look. What waits is read once and kept by Spark while batches are taken
from it. Rows are counted from 0, what comes back before what is new; any number of rows from the
start on ends at an exact position.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING

from ebbflow.engine.inlet import Origin
from ebbflow.engine.position import Mark, Span, Stamp, is_copy, with_frame
from ebbflow.nats import api
from ebbflow.nats.link import Link
from ebbflow.nats.stored import read_one
from ebbflow.runtime.plan import VertexPlan
from ebbflow.spark.batch.reading import (
    FRAME_OF_PLACE,
    FRESH,
    REDELIVERED,
    SCHEMA,
    FrameRange,
    frame_of,
    place_of,
    place_parts,
    read_on_worker,
)
from ebbflow.streams.names import Names

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row, SparkSession


_MOST_FRAMES = 1_000
_MOST_BYTES = 16 * 1024 * 1024
# Redelivered frames lie among others that are not due yet: so many of both at a time.
_REACH = 5_000


@dataclass(frozen=True, slots=True)
class PendingFrames:
    """Up to where to read next, and about how many bytes that is."""

    end: Span
    size: int


class Pending:
    """The buffer and the redeliveries of one partition, as the driver looks at them."""

    def __init__(self, link: Link, names: Names, vertex: str, partition: int) -> None:
        self._link = link
        self._buffer = names.buffer(vertex, partition)
        self._subject = names.buffer_subject(vertex, partition)
        self._redelivery = names.redelivery(vertex, partition)
        self._due = names.due_subject(vertex, partition)
        self._forgotten = Span()

    def look(self, done: Span) -> PendingFrames | None:
        """Returns the frames that have come since ``done``; ``None`` for none."""
        return self._link.run(self._look(done))

    async def _look(self, done: Span) -> PendingFrames | None:
        redelivery = await self._due_after(done.redelivery)
        inlet, size = await self._stored_after(done.inlet)
        end = Span(inlet, redelivery)
        return None if end == done else PendingFrames(end, size)

    async def _stored_after(self, done: Mark) -> tuple[Mark, int]:
        state = await api.read_info(self._link.client, self._buffer)
        frames = state["last_seq"] - done.seq
        if frames <= 0:
            return done, 0
        average = max(1, state["bytes"] // max(1, state["messages"]))
        taken = min(frames, _MOST_FRAMES, max(1, _MOST_BYTES // average))
        return Mark(done.seq + taken), taken * average

    async def _due_after(self, done: Mark) -> Mark:
        client, stream = self._link.client, self._redelivery
        state = await api.read_info(client, stream, subjects_filter=self._due)
        if state["last_seq"] <= done.seq or not (state.get("subjects") or {}).get(self._due):
            return done
        first = await read_one(client, stream, seq=done.seq + 1, next_by_subj=self._due)
        return done if first is None else Mark(min(state["last_seq"], first.seq + _REACH))

    def forget(self, done: Span) -> None:
        """Let the server delete what is done."""
        self._link.run(self._forget(done))

    async def _forget(self, done: Span) -> None:
        before, self._forgotten = self._forgotten, done
        if done.inlet.seq > before.inlet.seq:
            await api.purge(self._link.client, self._buffer, self._subject, done.inlet.seq)
        if done.redelivery.seq > before.redelivery.seq:
            seq = done.redelivery.seq
            await api.purge(self._link.client, self._redelivery, self._due, seq)


_SPLIT_BYTES = 2 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class _Frame:
    """A frame of the window: its place in its stream, and which of its rows belong here."""

    kind: int
    seq: int
    first: int
    rows: int
    origin: Origin
    stamp: Stamp | None


class Window:
    """The rows of one partition between two spans. ``len`` is their number.

    ``copies`` are the frames, by kind and sequence, that were read before; their rows are not among
    them.
    """

    def __init__(self, spark: SparkSession, plan: VertexPlan, partition: int, start: Span) -> None:
        self._spark = spark
        self._plan = plan
        self._partition = partition
        self.start = self.end = start
        self._base: DataFrame | None = None
        self._frames: list[_Frame] = []
        self._ends: list[int] = []
        self.copies: frozenset[tuple[int, int]] = frozenset()

    def open(self, end: Span, size: int) -> None:
        """Reads up to ``end``, which is about ``size`` bytes."""
        self.end = end
        parts = _split(
            frame_ranges(self._plan, self._partition, self.start, end), size, self._tasks
        )
        read = partial(read_on_worker, plan=self._plan, readings=parts)
        numbers = self._spark.range(0, len(parts), 1, len(parts))
        self._base = numbers.mapInArrow(read, SCHEMA).persist()
        facts = ("__place", "__rows", "__from", "__watermark", "__mark")
        rows = self._base.where("__rows IS NOT NULL").select(*facts).collect()
        self._leave_out_copies([_frame(row) for row in sorted(rows, key=lambda row: row[0])])
        self._ends = list(accumulate(frame.rows for frame in self._frames))

    def _leave_out_copies(self, frames: list[_Frame]) -> None:
        known, copies = self.start.known, set[tuple[int, int]]()
        for frame in frames:
            if frame.stamp is None:
                continue
            if not frame.first and is_copy(known, frame.stamp):
                copies.add((frame.kind, frame.seq))
            else:
                known = with_frame(known, frame.stamp)
        self.end = replace(self.end, known=known)
        self.copies = frozenset(copies)
        self._frames = [f for f in frames if (f.kind, f.seq) not in copies]

    @property
    def _tasks(self) -> int:
        return max(1, self._spark.sparkContext.defaultParallelism)

    def __len__(self) -> int:
        return self._ends[-1] if self._ends else 0

    def rows(self, low: int, high: int) -> DataFrame:
        """The messages from ``low`` up to ``high``, with their places."""
        assert self._base is not None
        if low >= high:
            return self._base.where("false")
        first, last = self._place(low), self._place(high - 1)
        within = f"__place BETWEEN {first} AND {last}"
        copies = sorted(place_of(kind, seq, 0) for kind, seq in self.copies)
        copies = [place for place in copies if first <= place <= last]
        # One condition however many there are: Spark looks them up in a set.
        listed = ", ".join(str(frame_of(place)) for place in copies)
        return self._base.where(
            f"{within} AND {FRAME_OF_PLACE} NOT IN ({listed})" if copies else within
        )

    def _place(self, index: int) -> int:
        number = bisect_right(self._ends, index)
        frame = self._frames[number]
        row = index - (self._ends[number] - frame.rows)
        return place_of(frame.kind, frame.seq, frame.first + row)

    def index(self, place: int) -> int:
        """Returns the number of the row at a place of the window."""
        kind, seq, row = place_parts(place)
        number = bisect_left(self._frames, (kind, seq), key=_key)
        frame = self._frames[number]
        return self._ends[number] - frame.rows + row - frame.first

    def span(self, count: int) -> Span:
        """Returns how far the partition is when the first ``count`` rows are done."""
        if count >= len(self):
            return self.end
        marks = {REDELIVERED: self.start.redelivery, FRESH: self.start.inlet}
        known = self.start.known
        for frame in self._frames:
            if count >= frame.rows:
                marks[frame.kind] = Mark(frame.seq)
                known = with_frame(known, frame.stamp) if frame.stamp else known
                count -= frame.rows
            else:
                used = frame.first + count if count else marks[frame.kind].row
                marks[frame.kind] = Mark(marks[frame.kind].seq, used)
                break
        return Span(marks[FRESH], marks[REDELIVERED], known)

    def origins(self, low: int, high: int) -> list[Origin]:
        """Returns the origins of the frames that hold new rows from ``low`` up to ``high``."""
        origins = []
        for frame, end in zip(self._frames, self._ends, strict=True):
            if frame.kind == FRESH and end > low and end - frame.rows < high:
                origins.append(frame.origin)
        return origins

    def close(self) -> None:
        """Let Spark forget the rows."""
        if self._base is not None:
            self._base.unpersist()


def _key(frame: _Frame) -> tuple[int, int]:
    return frame.kind, frame.seq


def _frame(row: Row) -> _Frame:
    kind, seq, last = place_parts(row[0])
    watermark = datetime.fromisoformat(row[3]) if row[3] else None
    stamp = Stamp.of(row[2], row[4]) if kind == FRESH else Stamp.of_moved(row[4])
    return _Frame(kind, seq, last + 1 - row[1], row[1], (row[2], watermark), stamp)


def frame_ranges(
    plan: VertexPlan,
    partition: int,
    start: Span,
    end: Span,
    copies: frozenset[tuple[int, int]] = frozenset(),
) -> list[FrameRange]:
    """Returns the ranges of frames that hold the rows between two spans, in their order."""
    names, vertex = Names(plan.pipeline), plan.vertex
    redelivered = FrameRange(
        REDELIVERED,
        names.redelivery(vertex, partition),
        names.due_subject(vertex, partition),
        start.redelivery,
        end.redelivery,
        copies,
    )
    fresh = FrameRange(
        FRESH,
        names.buffer(vertex, partition),
        names.buffer_subject(vertex, partition),
        start.inlet,
        end.inlet,
        copies,
    )
    return [reading for reading in (redelivered, fresh) if reading.after != reading.until]


def _split(whole: Sequence[FrameRange], size: int, tasks: int) -> list[FrameRange]:
    """The same in parts that several workers can read at once."""
    parts: list[FrameRange] = []
    for reading in whole:
        frames = reading.until.seq - reading.after.seq
        count = min(frames, tasks, -(-size // _SPLIT_BYTES)) if reading.kind == FRESH else 1
        if count < 2:
            parts.append(reading)
            continue
        cuts = [reading.after.seq + frames * number // count for number in range(1, count)]
        marks = [reading.after, *map(Mark, cuts), reading.until]
        parts += [
            FrameRange(reading.kind, reading.stream, reading.subject, after, until)
            for after, until in pairwise(marks)
        ]
    return parts
