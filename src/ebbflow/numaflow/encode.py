"""Encodes messages in columns as requests of functions, a whole batch at once.

Requests to maps, transformers and sinks differ in a few fields, which a ``Shape`` describes. They
are built column by column, without a Python object for each message. Sizes are padded to a fixed
width, which protobuf allows: the bytes before a value then have the same length in every row. A few
rows go through protobuf's own classes, which is faster for them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cache, lru_cache
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ebbflow.engine.frames import FEW, Rows
from ebbflow.numaflow.grpc import PREFIX
from ebbflow.numaflow.services import (
    DELIVERIES,
    HISTORY,
    NACK_REASON,
    RETRY_COUNT,
    SINK_GROUP,
    Service,
)

Numbers = np.ndarray[Any, np.dtype[Any]]

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_NOTHING_YET = _EPOCH - timedelta(milliseconds=1)
"""The watermark while none is known, the same as in Numaflow."""

_KEYS = 1
_ENTRY_KEY, _ENTRY_VALUE = 1, 2
_GROUP_ENTRIES, _USER = 1, 3


@dataclass(frozen=True, slots=True)
class Shape:
    """A service's request, and the numbers of the fields that differ between services.

    ``outside`` if the id is next to the request and not in it. ``retried`` if functions receive the
    retry count also when it is 0.
    """

    request: Any
    id: int
    headers: int
    metadata: int
    outside: bool = False
    retried: bool = False


@cache
def _shape_of(service: Service) -> Shape:
    message = service.stream.request
    numbers = {field.name: field.number for field in message.Request.DESCRIPTOR.fields}
    outside = "id" not in numbers
    return Shape(
        message,
        message.DESCRIPTOR.fields_by_name["id"].number if outside else numbers["id"],
        numbers["headers"],
        numbers["metadata"],
        outside,
        retried=service.proto == "sink",
    )


History = tuple[int, str | None, int | None]
"""How often a message was delivered, why it was nacked last, and how often it was tried before."""


def encode_requests(
    rows: pa.RecordBatch, ids: pa.StringArray, service: Service, watermark: datetime | None
) -> pa.BinaryArray:
    """Returns a request for each row, with the prefix that gRPC puts before a message.

    Responses refer to ``ids``. The rows have the columns that a columnar map or sink receives.
    """
    few = len(rows) <= FEW or not _fit_five_bytes(rows.column("event_time"))
    encode = _encode_few if few else _encode_many
    return encode(rows, ids, _shape_of(service), watermark or _NOTHING_YET)


# --- few rows -------------------------------------------------------------------------------------


def _encode_few(
    batch: pa.RecordBatch, ids: pa.StringArray, shape: Shape, watermark: datetime
) -> pa.BinaryArray:
    rows, written = Rows(batch), []
    histories = _histories(rows, shape)
    for index, row_id in enumerate(ids.to_pylist()):
        message = shape.request()
        request = message.request
        (message if shape.outside else request).id = row_id
        request.keys.extend(rows.column("keys")[index])
        request.value = rows.column("value")[index]
        request.event_time.FromDatetime(rows.column("event_time")[index] or _EPOCH)
        request.watermark.FromDatetime(watermark)
        request.headers.update(rows.column("headers")[index])
        for group, entries in rows.column("metadata")[index].items():
            request.metadata.user_metadata[group].key_value.update(entries)
        _add_history(request, histories[index])
        payload = message.SerializeToString()
        written.append(PREFIX.pack(0, len(payload)) + payload)
    return pa.array(written, pa.binary())


def _histories(rows: Rows, shape: Shape) -> list[History]:
    # A sink also receives a count of 0 on the first try, as in Numaflow.
    tried: list[int | None] = rows.column("retries")
    retries = tried if shape.retried else [number or None for number in tried]
    return list(zip(rows.column("deliveries"), rows.column("nack_reason"), retries, strict=True))


def _add_history(request: Any, history: History) -> None:
    """Adds deliveries, nack reason and retry count, in the groups where functions read them."""
    deliveries, reason, retries = history
    if deliveries != 1:
        group = request.metadata.sys_metadata[HISTORY].key_value
        group[DELIVERIES] = b"%d" % deliveries
    if reason is not None:
        group = request.metadata.sys_metadata[HISTORY].key_value
        group[NACK_REASON] = reason.encode()
    if retries is not None:
        request.metadata.sys_metadata[SINK_GROUP].key_value[RETRY_COUNT] = b"%d" % retries


# --- many rows ------------------------------------------------------------------------------------

_START = np.dtype(
    [
        ("compressed", "u1"),
        ("whole", ">u4"),
        ("request_tag", "u1"),
        ("request_size", "<u4"),
        ("value_tag", "u1"),
        ("value_size", "<u4"),
    ]
)
"""The bytes before the value: gRPC's prefix, then the starts of the request and its value."""

_FIELD = np.dtype([("tag", "u1"), ("size", "<u4")])

_TIME = np.dtype(
    [
        ("tag", "u1"),
        ("size", "u1"),
        ("seconds_tag", "u1"),
        ("seconds", "<u4"),
        ("more_seconds", "u1"),
        ("nanos_tag", "u1"),
        ("nanos", "<u4"),
        ("more_nanos", "u1"),
    ]
)
"""A time as a field; its size excludes the first two bytes."""

_LATEST = (1 << 35) * 1_000_000
"""The first time, in microseconds since 1970, whose seconds do not fit into five bytes."""


def _encode_many(
    rows: pa.RecordBatch, ids: pa.StringArray, shape: Shape, watermark: datetime
) -> pa.BinaryArray:
    value, named = rows.column("value"), [_enclose(shape.id, ids.cast(pa.binary()))]
    body = [
        _encode_times(rows.column("event_time")),
        _encode_watermark(shape, watermark),
        *_encode_facts(rows, shape),
        _encode_histories(rows, shape),
        *([] if shape.outside else named),
    ]
    after = named if shape.outside else []
    start, sizes = np.empty(len(rows), _START), _sizes(value)
    request = sum(map(_sizes, body), sizes + _FIELD.itemsize)
    start["compressed"] = 0
    start["whole"] = sum(map(_sizes, after), request + _FIELD.itemsize)
    start["request_tag"], start["request_size"] = _tag(1), _varints(request)
    start["value_tag"], start["value_size"] = _tag(2), _varints(sizes)
    return pc.binary_join_element_wise(_as_column(start), value, *body, *after, b"")


def _encode_facts(rows: pa.RecordBatch, shape: Shape) -> list[pa.BinaryArray]:
    """Returns the keys, headers and metadata, each as a column unless no row has any."""
    facts = []
    keys, headers, metadata = (rows.column(name) for name in ("keys", "headers", "metadata"))
    if keys.null_count < len(keys):
        texts, ends = _children(keys)
        facts.append(_join(_enclose(_KEYS, texts.cast(pa.binary())), ends))
    if headers.null_count < len(headers):
        facts.append(_encode_map(shape.headers, headers, lambda texts: texts.cast(pa.binary())))
    if metadata.null_count < len(metadata):
        facts.append(_enclose(shape.metadata, _encode_map(_USER, metadata, _encode_group)))
    return facts


def _encode_watermark(shape: Shape, watermark: datetime) -> pa.BinaryScalar:
    request = shape.request.Request()
    request.watermark.FromDatetime(watermark)
    return pa.scalar(request.SerializeToString(), pa.binary())


def _encode_histories(rows: pa.RecordBatch, shape: Shape) -> pa.BinaryArray | pa.BinaryScalar:
    """Returns the engine's metadata as its own field: readers merge it with the user's."""

    @cache
    def encode(history: History) -> bytes:
        request = shape.request.Request()
        _add_history(request, history)
        text: bytes = request.SerializeToString()
        return text

    if _are_first(rows):
        return pa.scalar(encode((1, None, 0 if shape.retried else None)), pa.binary())
    return pa.array([encode(history) for history in _histories(Rows(rows), shape)], pa.binary())


def _are_first(rows: pa.RecordBatch) -> bool:
    """Returns whether no row has been delivered or tried before."""
    tried = pc.max(rows.column("retries")).as_py()
    reasons = rows.column("nack_reason")
    delivered = pc.max(rows.column("deliveries")).as_py() > 1 or reasons.null_count < len(reasons)
    return not (tried or delivered)


def _encode_times(column: pa.TimestampArray) -> pa.BinaryArray:
    seconds, micros = np.divmod(_since_epoch(column), 1_000_000)
    written = np.empty(len(column), _TIME)
    written["tag"], written["size"] = _tag(3), _TIME.itemsize - 2
    for name, tag, numbers in (("seconds", 1 << 3, seconds), ("nanos", 2 << 3, micros * 1_000)):
        written[f"{name}_tag"], written[f"more_{name}"] = tag, numbers >> 28
        written[name] = _varints(numbers) | 0x80000000
    return _as_column(written)


def _since_epoch(column: pa.TimestampArray) -> Numbers:
    """Returns microseconds since 1970; 0 for a row without a time, as in protobuf."""
    micros = column.cast(pa.int64())
    numbers: Numbers = (micros.fill_null(0) if micros.null_count else micros).to_numpy()
    return numbers


def _fit_five_bytes(column: pa.TimestampArray) -> bool:
    """Returns whether the seconds of all times fit into the five bytes of ``_TIME``."""
    numbers = _since_epoch(column)
    return bool(numbers.min() >= 0 and numbers.max() < _LATEST)


# --- nested columns -------------------------------------------------------------------------------


def _encode_group(entries: pa.MapArray) -> pa.BinaryArray:
    return _encode_map(_GROUP_ENTRIES, entries, lambda values: values)


def _encode_map(
    number: int, column: pa.MapArray, encode: Callable[[pa.Array], pa.BinaryArray]
) -> pa.BinaryArray:
    """Returns the entries of each row's map, concatenated; ``encode`` writes the values."""
    entries, ends = _children(column)
    names, values = entries.field(0).cast(pa.binary()), encode(entries.field(1))
    both = _enclose(_ENTRY_KEY, names), _enclose(_ENTRY_VALUE, values)
    return _join(_enclose(number, *both), ends)


def _children(column: pa.ListArray | pa.MapArray) -> tuple[pa.Array, pa.Int32Array]:
    """Returns the values of all rows, and the offsets of each row's values."""
    if column.null_count:  # a null may still refer to values, which do not count
        column = column.take(pa.array(range(len(column)), pa.int32()))
    ends = column.offsets
    first, last = ends[0].as_py(), ends[-1].as_py()
    return column.values.slice(first, last - first), pc.subtract(ends, ends[0])


def _join(items: pa.BinaryArray, ends: pa.Int32Array) -> pa.BinaryArray:
    return pc.binary_join(pa.ListArray.from_arrays(ends, items), b"")


def _enclose(number: int, *parts: pa.BinaryArray) -> pa.BinaryArray:
    """Returns the parts of each row as one field."""
    field = np.empty(len(parts[0]), _FIELD)
    field["tag"], field["size"] = _tag(number), _varints(sum(map(_sizes, parts)))
    return pc.binary_join_element_wise(_as_column(field), *parts, b"")


# --- numbers --------------------------------------------------------------------------------------


def _tag(number: int) -> int:
    return number << 3 | 2


def _varints(numbers: Any) -> Numbers:
    """Returns numbers below 2**28 as varints of four bytes each, with seven bits a byte."""
    low = numbers.astype(np.uint32)
    spread = low & 0x7F | low << 1 & 0x7F00 | low << 2 & 0x7F0000 | low << 3 & 0x7F000000
    written: Numbers = spread | 0x808080
    return written


def _sizes(column: pa.BinaryArray | pa.BinaryScalar) -> Any:
    """Returns the sizes of the values, or the size of the one value that all rows have."""
    sizes = pc.binary_length(column)
    return sizes.as_py() if isinstance(column, pa.Scalar) else sizes.to_numpy()


def _as_column(written: Numbers) -> pa.BinaryArray:
    """Returns records of a fixed size as a column without copying."""
    ends = _ends(len(written), written.itemsize)
    return pa.Array.from_buffers(pa.binary(), len(written), [None, ends, pa.py_buffer(written)])


@lru_cache(maxsize=256)
def _ends(rows: int, size: int) -> pa.Buffer:
    return pa.py_buffer(np.arange(rows + 1, dtype=np.int32) * np.int32(size))
