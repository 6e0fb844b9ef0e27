"""A window: the frames that a batch vertex works on next, read by workers into one DataFrame.

The driver asks the server and not Spark for waiting frames, so an idle vertex costs only two small
requests per check. Frames are read once, and Spark keeps them while batches are taken from them.
Rows are numbered from 0, redelivered rows before new ones; any number of rows from the start ends
at an exact position.

A batch is planned on the driver as marks in the streams of a partition. Every reading of it returns
the same rows in the same order, or an error. No rows are read ahead, and the server keeps no state
for it.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING

import pyarrow as pa

from ebbflow.domain.errors import EbbflowError
from ebbflow.engine import frames
from ebbflow.engine.inlet import Origin
from ebbflow.engine.position import Mark, Span, Stamp, is_copy, with_awaited, with_frame
from ebbflow.engine.publications import FROM, REDELIVERED_BY, WATERMARK, redelivery_token
from ebbflow.nats import api
from ebbflow.nats.link import Link, worker_link
from ebbflow.nats.publish import MSG_ID
from ebbflow.nats.stored import StoredMessage, StreamSnapshot, read_one, read_page
from ebbflow.runtime.plan import VertexPlan
from ebbflow.streams.names import Names

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row, SparkSession

REDELIVERED, FRESH = 0, 1
_SEQ_BITS, _ROW_BITS = 42, 20
COLUMNS = {
    "id": "string",
    "keys": "array<string>",
    "value": "binary",
    "event_time": "timestamp",
    "headers": "map<string, string>",
    "metadata": "map<string, map<string, binary>>",
    "deliveries": "bigint",
    "nack_reason": "string",
}
"""The columns of a message in queries, with their Spark types."""
_FACTS = {
    "__place": "bigint",
    "__rows": "int",
    "__from": "string",
    "__watermark": "string",
    "__mark": "string",
}
SCHEMA = ", ".join(f"{name} {kind}" for name, kind in (COLUMNS | _FACTS).items())
"""The columns that are read: message, place, and on the last row of a frame facts about it."""
FRAME_OF_PLACE = f"shiftright(__place, {_ROW_BITS})"
"""``frame_number`` of a place, in Spark SQL."""
_MOST_FRAMES = 1_000
_MOST_BYTES = 16 * 1024 * 1024
# Redelivered frames lie between others that are not due yet: at most that many of both at a time.
_REACH = 5_000
_SPLIT_BYTES = 2 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class PendingFrames:
    """The end of the next frames to read, and about how many bytes they have."""

    end: Span
    size: int


class Pending:
    """The buffer and the redeliveries of one partition, as seen by the driver."""

    def __init__(self, link: Link, names: Names, vertex: str, partition: int) -> None:
        self._link = link
        self._buffer = names.buffer(vertex, partition)
        self._subject = names.buffer_subject(vertex, partition)
        self._redelivery = names.redelivery(vertex, partition)
        self._due = names.due_subject(vertex, partition)
        self._forgotten = Span()

    def look(self, done: Span) -> PendingFrames | None:
        """Returns the frames that have arrived since ``done``; ``None`` for none."""
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
        """Lets the server delete frames that are done."""
        self._link.run(self._forget(done))

    async def _forget(self, done: Span) -> None:
        before, self._forgotten = self._forgotten, done
        if done.inlet.seq > before.inlet.seq:
            await api.purge_subject(self._link.client, self._buffer, self._subject, done.inlet.seq)
        if done.redelivery.seq > before.redelivery.seq:
            seq = done.redelivery.seq
            await api.purge_subject(self._link.client, self._redelivery, self._due, seq)


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

    ``copies`` are the frames, by kind and sequence, that were read before; their rows are excluded.
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
        """Returns the messages from ``low`` up to ``high``, with their places."""
        assert self._base is not None
        if low >= high:
            return self._base.where("false")
        first, last = self._place(low), self._place(high - 1)
        within = f"__place BETWEEN {first} AND {last}"
        copies = sorted(place_number(kind, seq, 0) for kind, seq in self.copies)
        copies = [place for place in copies if first <= place <= last]
        # One condition for any number of copies, because Spark looks them up in a set.
        listed = ", ".join(str(frame_number(place)) for place in copies)
        return self._base.where(
            f"{within} AND {FRAME_OF_PLACE} NOT IN ({listed})" if copies else within
        )

    def _place(self, index: int) -> int:
        number = bisect_right(self._ends, index)
        frame = self._frames[number]
        row = index - (self._ends[number] - frame.rows)
        return place_number(frame.kind, frame.seq, frame.first + row)

    def index(self, place: int) -> int:
        """Returns the number of the row at a place in the window."""
        kind, seq, row = place_parts(place)
        number = bisect_left(self._frames, (kind, seq), key=_key)
        frame = self._frames[number]
        return self._ends[number] - frame.rows + row - frame.first

    def await_redeliveries(self, lineage: str, chunk: int, tokens: Sequence[str]) -> None:
        """Notes that a chunk has sent redeliveries, which arrive in a later window."""
        sent = partial(with_awaited, lineage=lineage, chunk=chunk, rows=tokens)
        self.start = replace(self.start, known=sent(self.start.known))
        self.end = replace(self.end, known=sent(self.end.known))

    def span(self, count: int) -> Span:
        """Returns the span that is done after the first ``count`` rows."""
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
        """Lets Spark drop the rows."""
        if self._base is not None:
            self._base.unpersist()


def _key(frame: _Frame) -> tuple[int, int]:
    return frame.kind, frame.seq


def _stamp_of_redelivery(mark: str | None) -> Stamp | None:
    """Returns the stamp of a redelivery, whose mark includes the time when it was stored."""
    if not mark:
        return None
    stored, token, sent_by = mark.split(" ")
    at = datetime.fromisoformat(stored).timestamp()
    return Stamp.of_redelivery(token, at, sent_by or None)


def _frame(row: Row) -> _Frame:
    kind, seq, last = place_parts(row[0])
    watermark = datetime.fromisoformat(row[3]) if row[3] else None
    stamp = Stamp.of(row[2], row[4]) if kind == FRESH else _stamp_of_redelivery(row[4])
    return _Frame(kind, seq, last + 1 - row[1], row[1], (row[2], watermark), stamp)


def frame_ranges(
    plan: VertexPlan,
    partition: int,
    start: Span,
    end: Span,
    copies: frozenset[tuple[int, int]] = frozenset(),
) -> list[FrameRange]:
    """Returns the ranges of frames that hold the rows between two spans, in their order."""
    names, place = Names(plan.pipeline), (plan.vertex, partition)
    redelivered = (REDELIVERED, names.redelivery(*place), names.due_subject(*place))
    fresh = (FRESH, names.buffer(*place), names.buffer_subject(*place))
    ranges = (
        FrameRange(*redelivered, start.redelivery, end.redelivery, copies),
        FrameRange(*fresh, start.inlet, end.inlet, copies),
    )
    return [reading for reading in ranges if reading.after != reading.until]


def _split(whole: Sequence[FrameRange], size: int, tasks: int) -> list[FrameRange]:
    """Returns the ranges in parts that several workers can read at once."""
    parts: list[FrameRange] = []
    for reading in whole:
        frames = reading.until.seq - reading.after.seq
        count = min(frames, tasks, -(-size // _SPLIT_BYTES)) if reading.kind == FRESH else 1
        if count < 2:
            parts.append(reading)
            continue
        cuts = [reading.after.seq + frames * number // count for number in range(1, count)]
        marks = [reading.after, *map(Mark, cuts), reading.until]
        parts += [replace(reading, after=after, until=until) for after, until in pairwise(marks)]
    return parts


# --- reading, on a worker ----------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class FrameRange:
    """The rows of one stream after ``after``, up to ``until``.

    Redelivered rows are only some of their stream's messages. From a buffer all frames are read,
    except the ``copies``, by kind and sequence, of frames that were read before.
    """

    kind: int
    stream: str
    subject: str
    after: Mark
    until: Mark
    copies: frozenset[tuple[int, int]] = frozenset()


@dataclass(frozen=True, slots=True)
class Frame:
    """The rows of a frame that belong to a range; ``first`` is the number of the first row."""

    kind: int
    first: int
    message: StoredMessage
    rows: pa.RecordBatch


def place_number(kind: int, seq: int, row: int) -> int:
    """Returns a number that orders the rows of a batch: redelivered rows before new ones."""
    return (kind << (_SEQ_BITS + _ROW_BITS)) | (seq << _ROW_BITS) | row


def place_parts(place: int) -> tuple[int, int, int]:
    """Returns kind, sequence and row of a place."""
    seq = (place >> _ROW_BITS) & ((1 << _SEQ_BITS) - 1)
    return place >> (_SEQ_BITS + _ROW_BITS), seq, place & ((1 << _ROW_BITS) - 1)


def frame_number(place: int) -> int:
    """Returns the number that all rows of a frame share; it is unique to the frame."""
    return place >> _ROW_BITS


def read_range_of_frames(link: Link, reading: FrameRange) -> Iterator[Frame]:
    """Yields the frames of a range, in order; ``EbbflowError`` if some are missing."""
    skip = reading.after.row
    for message in _whole_frames(link, reading):
        if (reading.kind, message.seq) not in reading.copies:
            rows = frames.decode(message.payload)
            yield Frame(reading.kind, skip, message, rows.slice(skip))
        skip = 0
    if reading.until.row:
        seq, subject = reading.until.seq + 1, reading.subject
        last = link.run(read_one(link.client, reading.stream, seq=seq, next_by_subj=subject))
        if last is None:
            raise _missing(reading)
        rows = frames.decode(last.payload).slice(skip, reading.until.row - skip)
        yield Frame(reading.kind, skip, last, rows)


def _whole_frames(link: Link, reading: FrameRange) -> Iterator[StoredMessage]:
    start, last = reading.after.seq + 1, reading.until.seq
    snapshot = StreamSnapshot(start, last, frozenset())
    count = 0
    while start <= last:
        page = link.run(read_page(link.client, reading.stream, reading.subject, start, snapshot))
        if not page:
            break
        yield from page
        count += len(page)
        start = page[-1].seq + 1
    if reading.kind == FRESH and count < last - reading.after.seq:
        raise _missing(reading)


def _missing(reading: FrameRange) -> EbbflowError:
    return EbbflowError(
        f"{reading.stream}: not all frames after {reading.after} up to {reading.until} are there"
    )


def read_on_worker(
    numbers: Iterator[pa.RecordBatch], plan: VertexPlan, readings: Sequence[FrameRange]
) -> Iterator[pa.RecordBatch]:
    """Reads frames. Spark calls this with the numbers of the ranges that the task has to read."""
    link = worker_link(plan.run.server)
    for batch in numbers:
        for number in batch.column(0).to_pylist():
            for frame in read_range_of_frames(link, readings[number]):
                if frame.rows.num_rows:
                    yield _to_columns(frame)


def _to_columns(frame: Frame) -> pa.RecordBatch:
    rows, count = frame.rows, frame.rows.num_rows
    columns = {name: rows.column(name) for name in COLUMNS}
    columns["deliveries"] = columns["deliveries"].cast(pa.int64())
    start = place_number(frame.kind, frame.message.seq, frame.first)
    columns["__place"] = pa.array(range(start, start + count), pa.int64())
    columns["__rows"] = _on_last_row(count, count, pa.int32())
    headers = frame.message.headers
    columns["__from"] = _on_last_row(headers.get(FROM), count, pa.string())
    columns["__watermark"] = _on_last_row(headers.get(WATERMARK), count, pa.string())
    columns["__mark"] = _on_last_row(_mark_of(frame), count, pa.string())
    return pa.RecordBatch.from_pydict(columns)


def _mark_of(frame: Frame) -> str | None:
    """Returns what identifies a frame: its id, or a redelivery's time of storage and token."""
    headers = frame.message.headers
    if frame.kind == FRESH:
        return headers.get(MSG_ID)
    token = redelivery_token(headers)
    if token is None:
        return None
    return f"{frame.message.stored} {token} {headers.get(REDELIVERED_BY, '')}"


def _on_last_row(value: object, count: int, kind: pa.DataType) -> pa.Array:
    return pa.array([None] * (count - 1) + [value], kind)
