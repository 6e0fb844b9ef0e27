"""Frames, in which messages travel between vertices.

A frame is one JetStream message that holds an Arrow record batch of up to ``MAX_ROWS`` rows, one
row per message. Rows keep everything that must survive a redelivery: how often the message was
delivered, how often user code failed on it, when it was first seen and why it was last nacked.
The codec is bit-exact: a decoded batch equals the encoded one.
"""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from operator import attrgetter
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ebbflow.domain.message import Datum

MAX_ROWS = 2_000
MAX_BYTES = 256 * 1024
MAX_VALUE = 2**31 - 2**20
"""The most bytes of a message that a batch can hold: Arrow's offsets have 32 bits."""
# The least bytes of a row besides its texts and values: times, counts, and the offsets of texts.
_ROW_BYTES = 48
TRACEPARENT = "traceparent"
"""The header that says which trace a message belongs to."""
FEW = 32
"""Up to this many rows Python is faster than a call into Arrow, whose fixed cost is high."""

TIME = pa.timestamp("us", tz="UTC")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
SCHEMA = pa.schema(
    [
        pa.field("id", pa.string(), nullable=False),
        pa.field("keys", pa.list_(pa.string())),
        pa.field("value", pa.binary(), nullable=False),
        pa.field("event_time", TIME),
        pa.field("headers", pa.map_(pa.string(), pa.string())),
        pa.field("metadata", pa.map_(pa.string(), pa.map_(pa.string(), pa.binary()))),
        pa.field("deliveries", pa.uint32(), nullable=False),
        pa.field("failures", pa.uint32(), nullable=False),
        pa.field("retries", pa.uint32(), nullable=False),
        pa.field("first_seen", TIME),
        pa.field("nack_reason", pa.string()),
    ]
)

# Eight bytes keep the Arrow buffers behind them aligned. The fifth is the version of the schema,
# the sixth is 1 if the buffers are compressed.
_PLAIN = b"EBBF\x01\x00\x00\x00"
_PACKED = b"EBBF\x01\x01\x00\x00"
# Without threads: passing the few buffers of a frame to a pool takes longer than the work itself.
_LZ4 = pa.ipc.IpcWriteOptions(compression="lz4", use_threads=False)
_READ = pa.ipc.IpcReadOptions(use_threads=False)
_WORTH_COMPRESSING = 4096
_CODEC = pa.Codec("lz4")
_SAMPLE, _MOSTLY_VALUES, _STAYS_LARGE = 16 * 1024, 0.8, 0.9
_SCHEMA = SCHEMA.serialize().to_pybytes()
_END_BYTES = 8


def encode(batch: pa.RecordBatch) -> bytes:
    """Returns the batch as the payload of one JetStream message."""
    size = size_of(batch)
    if size <= _WORTH_COMPRESSING or _stays_large(batch, size):
        return b"".join((_PLAIN, batch.serialize()))
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, SCHEMA, options=_LZ4) as writer:
        writer.write_batch(batch)
    # Both sides know the schema, so only the batch message between it and the end mark is sent.
    return b"".join((_PACKED, sink.getvalue()[len(_SCHEMA) : -_END_BYTES]))


def _stays_large(batch: pa.RecordBatch, size: int) -> bool:
    """Returns whether compression is useless: the values are already compressed or encrypted.

    A sample decides. Compressing such a frame takes ten times as long as sending it as it is.
    """
    values = join_bytes(batch.column("value"))
    if len(values) < _MOSTLY_VALUES * size:
        return False
    sample = values[:_SAMPLE]
    packed = _CODEC.compress(pa.py_buffer(sample), asbytes=False)
    return bool(packed.size > _STAYS_LARGE * len(sample))


def decode(payload: bytes | memoryview) -> pa.RecordBatch:
    """Returns the batch of an encoded frame; ``ValueError`` if this version cannot read it."""
    kind = bytes(payload[:8])
    if kind not in (_PLAIN, _PACKED):
        raise ValueError(f"not an Ebbflow frame of version 1: starts with {kind!r}")
    try:
        if kind == _PLAIN:
            return pa.ipc.read_record_batch(pa.py_buffer(payload).slice(8), SCHEMA)
        # Only for a stream, which begins with its schema, can threads be switched off.
        stream = b"".join((_SCHEMA, memoryview(payload)[8:]))
        with pa.ipc.open_stream(stream, options=_READ) as reader:
            return reader.read_next_batch()
    except (pa.ArrowException, EOFError, OSError, StopIteration) as error:
        raise ValueError(f"a damaged Ebbflow frame of {len(payload)} bytes: {error}") from error


def size_of(batch: pa.RecordBatch) -> int:
    """Returns the bytes of the batch as an uncompressed frame."""
    # Not ``nbytes``: that takes ten times as long, as it visits every nested buffer.
    return int(pa.ipc.get_record_batch_size(batch))


_FIELDS = [(field.name, field.type) for field in SCHEMA]
_ABSENT = {"deliveries": 1, "failures": 0, "retries": 0}


def batch_of(columns: dict[str, Any], rows: int) -> pa.RecordBatch:
    """Returns a batch of columns, Arrow arrays or lists; defaults are those of a first delivery."""
    arrays = [_array(columns.get(name), name, kind, rows) for name, kind in _FIELDS]
    return pa.RecordBatch.from_arrays(arrays, schema=SCHEMA)


def _array(column: Any, name: str, kind: pa.DataType, rows: int) -> pa.Array:
    if column is None:
        return _make_absent(name, rows)
    if isinstance(column, pa.Array):
        return column
    if isinstance(column, pa.ChunkedArray):
        return column.combine_chunks()
    return pa.array(column, kind)


@lru_cache(maxsize=256)
def _make_absent(name: str, rows: int) -> pa.Array:
    """Returns the column of a first delivery; cached, as many small chunks have the same size."""
    kind = SCHEMA.field(name).type
    if name not in _ABSENT:
        return pa.nulls(rows, kind)
    return pa.repeat(pa.scalar(_ABSENT[name], kind), rows)


def empty() -> pa.RecordBatch:
    """Returns a batch without rows."""
    return batch_of({"id": [], "value": []}, 0)


def with_columns(batch: pa.RecordBatch, **columns: Any) -> pa.RecordBatch:
    """Returns the batch with some columns replaced."""
    kept = {name: batch.column(name) for name in batch.schema.names}
    return batch_of(kept | columns, batch.num_rows)


def take_rows(batch: pa.RecordBatch, indexes: Sequence[int]) -> pa.RecordBatch:
    """Returns the rows at the indexes, in their order."""
    chosen = pa.array(indexes, pa.int64())  # typed: an empty list would have no type
    if len(chosen) <= FEW:
        return batch.take(chosen)
    # Gathering a column of maps takes as long as all others together, and most are all null.
    used = [name for name in batch.schema.names if batch.column(name).null_count < batch.num_rows]
    taken = batch.select(used).take(chosen)
    columns = [
        taken.column(name) if name in used else pa.nulls(len(chosen), batch.schema.field(name).type)
        for name in batch.schema.names
    ]
    return pa.RecordBatch.from_arrays(columns, schema=batch.schema)


def concat(batches: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
    """Returns one batch of all rows, in order."""
    if len(batches) == 1:
        return batches[0]
    return pa.concat_batches(batches) if batches else empty()


def split(batch: pa.RecordBatch, most: int = MAX_BYTES) -> Iterator[pa.RecordBatch]:
    """Yields the batch cut into frames of about ``most`` bytes, the same way for the same rows."""
    # A replay must cut where the first attempt did. Frames with other rows would have other ids,
    # and rows that both attempts published would be stored twice.
    if not batch.num_rows:
        return
    size = _measure(batch, most)
    if batch.num_rows <= MAX_ROWS and size <= most:
        yield batch
        return
    step = max(1, min(MAX_ROWS, most // max(1, size // batch.num_rows)))
    for start in range(0, batch.num_rows, step):
        yield from _halve_if_large(batch.slice(start, step), 2 * most)


def _halve_if_large(frame: pa.RecordBatch, most: int) -> Iterator[pa.RecordBatch]:
    """Yields pieces: the average can hide a few huge rows, which must not share a frame."""
    if frame.num_rows == 1 or _measure(frame, most) <= most:
        yield frame
    else:
        half = frame.num_rows // 2
        yield from _halve_if_large(frame.slice(0, half), most)
        yield from _halve_if_large(frame.slice(half), most)


def _measure(batch: pa.RecordBatch, limit: int) -> int:
    """Returns a size that is always on the same side of the limit for the same rows.

    What Arrow stores for a column besides its content, say for a column of nulls, depends on how it
    was made. So a size over the limit is computed again, from the content of the rows.
    """
    size = size_of(batch)
    if size <= limit:
        return size
    content = sum(map(count_content, batch.columns)) - _count_traces(batch.column("headers"))
    return content + _ROW_BYTES * int(batch.num_rows)


def _count_traces(headers: pa.MapArray) -> int:
    """Returns the bytes that tracing adds to headers: a replay may trace other messages."""
    if headers.null_count == len(headers):
        return 0
    start, end = headers.offsets.take([0, len(headers)]).to_pylist()
    names, texts = (part.slice(start, end - start) for part in (headers.keys, headers.items))
    traces = pc.equal(pc.utf8_lower(names), TRACEPARENT)
    return sum(count_content(column.filter(traces)) for column in (names, texts))


def count_content(column: pa.Array) -> int:
    """Returns the bytes of the texts and values in a column."""
    if column.null_count == len(column):
        return 0
    if pa.types.is_list(column.type):
        return count_content(column.flatten())
    if pa.types.is_map(column.type):
        start, end = column.offsets.take([0, len(column)]).to_pylist()
        parts = (column.keys, column.items)
        return sum(count_content(part.slice(start, end - start)) for part in parts)
    if pa.types.is_binary(column.type) or pa.types.is_string(column.type):
        if not column.null_count:
            return len(join_bytes(column))
        return int(pc.sum(pc.binary_length(column)).as_py() or 0)
    return 0


def fingerprint(ids: Sequence[str] | pa.StringArray) -> str:
    """Returns a hash of row ids: equal for the same messages only."""
    if len(ids) <= FEW:
        texts = [text.encode() for text in _to_list(ids)]
        # The lengths make the boundaries part of the hash: ("ab", "c") is not ("a", "bc").
        digest = hashlib.blake2b(array("i", map(len, texts)), digest_size=16)
        digest.update(b"".join(texts))
        return digest.hexdigest()
    column = ids if isinstance(ids, pa.StringArray) else pa.array(ids, pa.string())
    digest = hashlib.blake2b(pc.binary_length(column).buffers()[1], digest_size=16)
    digest.update(join_bytes(column))
    return digest.hexdigest()


def _to_list(ids: Sequence[str] | pa.StringArray) -> Sequence[str]:
    return ids.to_pylist() if isinstance(ids, pa.StringArray) else ids


def join_bytes(column: pa.StringArray | pa.BinaryArray) -> memoryview:
    """Returns the bytes of all values, concatenated, without copying them."""
    _, offsets, values = column.buffers()
    if values is None or not len(column):
        return memoryview(b"")
    ends = memoryview(offsets).cast("B").cast("i")[column.offset : column.offset + len(column) + 1]
    return memoryview(values)[ends[0] : ends[-1]]


FIRST_TIME = (datetime.min.replace(tzinfo=UTC) - _EPOCH) // _MICROSECOND
LAST_TIME = (datetime.max.replace(tzinfo=UTC) - _EPOCH) // _MICROSECOND
"""The times that Python can represent, in microseconds: the years 1 to 9999."""


def to_list(column: pa.Array) -> list[Any]:
    """Returns the values of a column; times that Python cannot represent become the nearest.

    One row must not keep the others of its chunk from being read, and a stored row must be read in
    order to be settled, if only as a dead letter.
    """
    if not pa.types.is_timestamp(column.type):
        values: list[Any] = column.to_pylist()
        return values
    try:
        return column.to_pylist()  # type: ignore[no-any-return]
    except (OverflowError, ValueError):
        times = column.cast(pa.int64())
        shown = pc.min_element_wise(
            pc.max_element_wise(times, FIRST_TIME, skip_nulls=False), LAST_TIME, skip_nulls=False
        )
        return shown.cast(column.type).to_pylist()  # type: ignore[no-any-return]


def to_time(scalar: pa.Scalar) -> datetime | None:
    """Returns one time, as ``to_list`` returns it."""
    times: list[datetime | None] = to_list(pa.array([scalar], scalar.type))
    return times[0]


class Rows:
    """A batch with its columns as Python lists, converted once and only on first use.

    ``values`` are its values, if they are already a list.
    """

    __slots__ = ("_columns", "batch", "watermark")

    def __init__(
        self, batch: pa.RecordBatch, watermark: Any = None, values: list[bytes] | None = None
    ) -> None:
        self.batch = batch
        self.watermark = watermark
        self._columns: dict[str, list[Any]] = {} if values is None else {"value": values}

    def __len__(self) -> int:
        return int(self.batch.num_rows)

    def column(self, name: str) -> list[Any]:
        """Returns the column as a list; headers and metadata as dictionaries."""
        try:
            return self._columns[name]
        except KeyError:
            return self._columns.setdefault(name, self._convert(name))

    def _convert(self, name: str) -> list[Any]:
        if name == "watermark":
            return [self.watermark] * len(self)
        values = to_list(self.batch.column(name))
        if name == "headers":
            return [dict(row or ()) for row in values]
        if name == "metadata":
            return [{group: dict(entries) for group, entries in row or ()} for row in values]
        if name == "keys":
            return [row or [] for row in values]
        return values

    def count_failed(self) -> int:
        """Returns the number of rows on which user code has raised before."""
        if len(self) <= FEW:
            return len(self) - self.column("failures").count(0)
        return int(np.count_nonzero(self.batch.column("failures").to_numpy()))

    def nacked_before(self) -> set[int]:
        """Returns the rows that user code has nacked on an earlier delivery."""
        if len(self) <= FEW:
            calls = zip(self.column("deliveries"), self.column("failures"), strict=True)
            return {index for index, (number, failed) in enumerate(calls) if number > failed + 1}
        deliveries, failures = self.batch.column("deliveries"), self.batch.column("failures")
        if not len(self) or pc.max(deliveries).as_py() == 1:
            return set()
        nacked = pc.greater(deliveries, pc.add(failures, pa.scalar(1, failures.type)))
        return set(pc.indices_nonzero(nacked).to_pylist())

    def data(self) -> list[Datum]:
        """Returns every row as user code sees it."""
        return [RowDatum(self, index, value) for index, value in enumerate(self.column("value"))]


class RowDatum(Datum):
    """A ``Datum`` that reads from its row only what user code asks for.

    Nearly all user code asks for the value, so that is stored here.
    """

    __slots__ = ("_index", "_rows", "_value")

    def __init__(self, rows: Rows, index: int, value: bytes) -> None:
        self._rows = rows
        self._index = index
        self._value = value

    value = property(attrgetter("_value"), doc="The payload.")  # without a call in Python

    def _get(self, name: str) -> Any:
        return self._rows.column(name)[self._index]

    # The next most used, without the cost of ``_get``.
    @property
    def id(self) -> str:
        """The id of the message."""
        try:
            return self._rows._columns["id"][self._index]  # type: ignore[no-any-return]
        except KeyError:
            return self._get("id")  # type: ignore[no-any-return]

    @property
    def deliveries(self) -> int:
        """How many times the message was delivered, this time included."""
        try:
            return self._rows._columns["deliveries"][self._index]  # type: ignore[no-any-return]
        except KeyError:
            return self._get("deliveries")  # type: ignore[no-any-return]

    @property
    def event_time(self) -> datetime:
        """When it happened; if the message has no event time, that of an empty Numaflow field."""
        return self._get("event_time") or _EPOCH

    def __reduce__(self) -> Any:
        names = ("id", "keys", "watermark", "headers", "metadata", "deliveries")
        state = {name: self._get(name) for name in (*names, "nack_reason", "retries")}
        state["event_time"] = self.event_time
        return _rebuild, (self.value, state)


RowDatum.__name__ = Datum.__name__  # the name in Python's errors about user code


def _rebuild(value: bytes, state: dict[str, Any]) -> Datum:
    return Datum(value, **state)


REQUEST_ID = "x-numaflow-id"


def request_id(rows: Rows, index: int) -> str:
    """Returns the id under which an answer is stored: the request's, or the source message's."""
    headers: dict[str, str] = rows.column("headers")[index]
    own = next((value for key, value in headers.items() if key.lower() == REQUEST_ID), None)
    return own or str(rows.column("id")[index]).partition("/")[0]
