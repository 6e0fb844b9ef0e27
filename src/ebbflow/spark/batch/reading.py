"""Reads the frames of a batch on a worker: exactly the rows between two marks.

A batch is planned on the driver as marks in the streams of a partition. Whoever reads it, and
however often, gets the same rows in the same order, or an error. Nothing is read ahead and nothing
is kept on the server for it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa

from ebbflow.domain.errors import EbbflowError
from ebbflow.engine import frames
from ebbflow.engine.position import Mark
from ebbflow.engine.publications import FROM, MOVED_FROM, WATERMARK
from ebbflow.nats.link import Link, worker_link
from ebbflow.nats.publish import MSG_ID
from ebbflow.nats.stored import StoredMessage, StreamSnapshot, read_one, read_page
from ebbflow.runtime.plan import VertexPlan

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
"""What queries see of a message, as Spark's types."""

_FACTS = {
    "__place": "bigint",
    "__rows": "int",
    "__from": "string",
    "__watermark": "string",
    "__mark": "string",
}
SCHEMA = ", ".join(f"{name} {kind}" for name, kind in (COLUMNS | _FACTS).items())
"""What is read: beside the message its place, and on the last row of a frame facts about it."""


FRAME_OF_PLACE = f"shiftright(__place, {_ROW_BITS})"
"""What ``frame_of`` says of a place, in Spark SQL."""


@dataclass(frozen=True, slots=True)
class FrameRange:
    """The rows of one stream behind ``after``, up to ``until``.

    Redelivered rows are only some of their stream's messages; of a buffer every one is read, but
    for the ``copies``, by kind and sequence, of frames that were read before.
    """

    kind: int
    stream: str
    subject: str
    after: Mark
    until: Mark
    copies: frozenset[tuple[int, int]] = frozenset()


@dataclass(frozen=True, slots=True)
class Frame:
    """The rows of a frame that belong to a reading; ``first`` is the number of the first one."""

    kind: int
    first: int
    message: StoredMessage
    rows: pa.RecordBatch


def place_of(kind: int, seq: int, row: int) -> int:
    """A number for a row that orders the rows of a batch: what comes back before what is new."""
    return (kind << (_SEQ_BITS + _ROW_BITS)) | (seq << _ROW_BITS) | row


def place_parts(place: int) -> tuple[int, int, int]:
    """Kind, sequence and row of a place."""
    seq = (place >> _ROW_BITS) & ((1 << _SEQ_BITS) - 1)
    return place >> (_SEQ_BITS + _ROW_BITS), seq, place & ((1 << _ROW_BITS) - 1)


def frame_of(place: int) -> int:
    """Returns a number that the rows of a frame share, and no others."""
    return place >> _ROW_BITS


def read_frames(link: Link, reading: FrameRange) -> Iterator[Frame]:
    """The frames of a reading, in order; ``EbbflowError`` if some are not there."""
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
    there = StreamSnapshot(start, last, frozenset())
    count = 0
    while start <= last:
        page = link.run(read_page(link.client, reading.stream, reading.subject, start, there))
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
    """Called by Spark with the numbers of the readings that this task has to do."""
    link = worker_link(plan.server)
    for batch in numbers:
        for number in batch.column(0).to_pylist():
            for frame in read_frames(link, readings[number]):
                if frame.rows.num_rows:
                    yield _columns(frame)


def _columns(frame: Frame) -> pa.RecordBatch:
    rows, count = frame.rows, frame.rows.num_rows
    columns = {name: rows.column(name) for name in COLUMNS}
    columns["deliveries"] = columns["deliveries"].cast(pa.int64())
    start = place_of(frame.kind, frame.message.seq, frame.first)
    columns["__place"] = pa.array(range(start, start + count), pa.int64())
    columns["__rows"] = _on_last_row(count, count, pa.int32())
    headers = frame.message.headers
    columns["__from"] = _on_last_row(headers.get(FROM), count, pa.string())
    columns["__watermark"] = _on_last_row(headers.get(WATERMARK), count, pa.string())
    mark = headers.get(MSG_ID if frame.kind == FRESH else MOVED_FROM)
    columns["__mark"] = _on_last_row(mark, count, pa.string())
    return pa.RecordBatch.from_pydict(columns)


def _on_last_row(value: object, count: int, kind: pa.DataType) -> pa.Array:
    return pa.array([None] * (count - 1) + [value], kind)
