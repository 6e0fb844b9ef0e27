"""A source's messages as columns, which ``Source.read`` may return instead of a list.

A record batch has a row for each message. It needs ``offset`` and ``value``, both binary and
without nulls. Optional, and null where a message has no such field: ``event_time`` (a timestamp
with a time zone), ``keys`` (lists of strings), ``headers`` (a map from string to string),
``metadata`` (a map from groups to maps from string to bytes), ``partition`` and ``deliveries``
(integers). Other columns are ignored. From here to the vertex's task everything is columns, even if
it came as ``SourceMessage`` objects: no further Python object is made for a message.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Sequence
from datetime import datetime
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from ebbflow.domain.message import Metadata
from ebbflow.domain.user_source import LONGEST_OFFSET, SourceMessage
from ebbflow.engine import frames

OFFSETS = pa.binary()

TYPES: dict[str, pa.DataType] = {
    "offset": OFFSETS,
    "value": pa.binary(),
    "event_time": frames.TIME,
    "keys": pa.list_(pa.string()),
    "headers": pa.map_(pa.string(), pa.string()),
    "partition": pa.int32(),
    "deliveries": pa.int32(),
    "metadata": frames.SCHEMA.field("metadata").type,
}
"""The columns that a source may return."""

_REQUIRED = ("offset", "value")

ROWS = pa.schema(
    [
        pa.field("offset", OFFSETS, nullable=False),
        *(frames.SCHEMA.field(name) for name in ("id", "keys", "value", "event_time", "headers")),
        frames.SCHEMA.field("metadata"),
        frames.SCHEMA.field("first_seen"),
        pa.field("deliveries", pa.uint32()),
    ]
)
"""A source's messages on the way to the task; deliveries are null unless the source counts them."""

NO_OFFSETS = pa.nulls(0, OFFSETS)  # making an array from a list imports pandas

# The bytes that an id may contain unencoded; ids are shown to people and put into headers.
_READABLE_BYTES = bytes(byte for byte in range(ord("!"), ord("~") + 1) if byte != ord("/"))
_READABLE = re.compile(rb"[!-.0-~]{1,80}")
_LONGEST_READABLE, _LONGEST = 80, 90


def columns_of(messages: Sequence[SourceMessage]) -> pa.RecordBatch:
    """Returns the messages as columns; a field that a message does not have is null."""
    facts: dict[str, list[Any]] = {
        "offset": [message.offset for message in messages],
        "value": [message.value for message in messages],
        "event_time": [message.event_time for message in messages],
        "keys": [message.keys or None for message in messages],
        "headers": [message.headers or None for message in messages],
        "partition": [message.partition for message in messages],
        "deliveries": [message.deliveries or None for message in messages],
        "metadata": [_list_groups(message.metadata) for message in messages],
    }
    facts["headers"] = [headers and list(headers.items()) for headers in facts["headers"]]
    arrays = [pa.array(facts[name], kind) for name, kind in TYPES.items()]
    return pa.RecordBatch.from_arrays(arrays, names=list(TYPES))


def _list_groups(metadata: Metadata) -> list[Any] | None:
    """Returns metadata in the form that Arrow expects."""
    return [(group, list(entries.items())) for group, entries in metadata.items()] or None


def check_columns(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Returns all columns in their types; ``ValueError`` or ``TypeError`` if one is unusable."""
    for name in _REQUIRED:
        if name not in batch.schema.names:
            raise ValueError(f"read() must return a column {name!r}")
    arrays = [_check_column(batch, name, kind) for name, kind in TYPES.items()]
    checked = pa.RecordBatch.from_arrays(arrays, names=list(TYPES))
    for name in _REQUIRED:
        if checked.column(name).null_count:
            raise ValueError(f"read() must return a column {name!r} without nulls")
    _check_offsets(checked.column("offset"))
    fewest = pc.min(checked.column("deliveries")).as_py()
    if fewest is not None and fewest < 1:
        raise ValueError(f"deliveries must be 1 or more, not {fewest}")
    return checked


def _check_column(batch: pa.RecordBatch, name: str, kind: pa.DataType) -> pa.Array:
    if name not in batch.schema.names:
        return pa.nulls(batch.num_rows, kind)
    column = batch.column(name)
    if pa.types.is_timestamp(column.type) and column.type.tz is None:
        raise ValueError("event_time must have a time zone")
    try:
        # Nanoseconds are truncated; any other inexact cast raises.
        exact = not (pa.types.is_timestamp(column.type) and column.type.unit == "ns")
        column = column if column.type == kind else column.cast(kind, safe=exact)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise TypeError(f"read() returned a column {name!r} that cannot be used: {error}") from None
    if _nulls_inside(column):
        raise ValueError(f"read() must return {name} without nulls")
    return column


def _nulls_inside(column: pa.Array) -> bool:
    if pa.types.is_map(column.type):
        # In a slice these are the values of the whole column, so rows are checked if it has nulls.
        inside = column.items
        return _has_nulls(inside) and any(
            value is None or (isinstance(value, list) and None in dict(value).values())
            for row in column.to_pylist()
            for _, value in row or ()
        )
    return pa.types.is_list(column.type) and bool(column.flatten().null_count)


def _has_nulls(values: pa.Array) -> bool:
    return bool(values.null_count or (pa.types.is_map(values.type) and values.items.null_count))


def _check_offsets(offsets: pa.BinaryArray) -> None:
    shortest, longest = _sizes(offsets)
    wrong = 0 if shortest == 0 else longest if longest > LONGEST_OFFSET else None
    if wrong is not None:
        raise ValueError(f"offset must have 1 to {LONGEST_OFFSET} bytes, not {wrong}")


def _sizes(offsets: pa.BinaryArray) -> tuple[int, int]:
    """Returns the lengths of the shortest and the longest; 1 and 1 if there is none."""
    sizes = pc.min_max(pc.binary_length(offsets)).as_py()
    return (1, 1) if sizes["min"] is None else (sizes["min"], sizes["max"])


def rows_of(columns: pa.RecordBatch, vertex: str, partition: int, now: datetime) -> pa.RecordBatch:
    """Returns checked columns as ``ROWS``, with ids that are the same at every redelivery."""
    seen = pa.scalar(now, frames.TIME)
    times = columns.column("event_time")
    arrays = [
        columns.column("offset"),
        ids_of(columns, vertex, partition),
        columns.column("keys"),
        columns.column("value"),
        pc.fill_null(times, seen) if times.null_count else times,
        columns.column("headers"),
        columns.column("metadata"),
        pa.repeat(seen, columns.num_rows),
        columns.column("deliveries").cast(pa.uint32()),
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=ROWS)


def frame_of(rows: pa.RecordBatch) -> pa.RecordBatch:
    """Returns ``ROWS`` as rows of a frame; a row without a count is a first delivery."""
    columns = {name: rows.column(name) for name in ROWS.names if name != "offset"}
    counted = columns.pop("deliveries")
    if counted.null_count < len(counted):
        columns["deliveries"] = pc.fill_null(counted, 1)
    return frames.batch_of(columns, rows.num_rows)


def ids_of(columns: pa.RecordBatch, vertex: str, partition: int) -> pa.StringArray:
    """Returns the ids of the messages in the pipeline: vertex, partition and offset."""
    texts, places = _write_offsets(columns.column("offset")), columns.column("partition")
    if places.null_count == len(places):
        return pc.binary_join_element_wise(f"{vertex}-{partition}", texts, "-")
    places = pc.fill_null(places, pa.scalar(partition, pa.int32())).cast(pa.string())
    return pc.binary_join_element_wise(vertex, places, texts, "-")


def _write_offsets(offsets: pa.BinaryArray) -> pa.StringArray:
    """Returns a text for each offset; different offsets have different texts."""
    if _are_readable(offsets):
        return offsets.cast(pa.string())
    return pa.array([_write_offset(offset) for offset in offsets.to_pylist()], pa.string())


def _are_readable(offsets: pa.BinaryArray) -> bool:
    """Returns whether all may be part of an id unencoded, by checking all bytes at once."""
    if _sizes(offsets)[1] > _LONGEST_READABLE:
        return False
    text = bytes(frames.join_bytes(offsets))
    if text.translate(None, _READABLE_BYTES):
        return False
    return b"=" not in text or not pc.any(pc.starts_with(offsets, "=")).as_py()


def _write_offset(offset: bytes) -> str:
    """Returns a short and readable offset as it is, any other in base64 or as a hash."""
    if _READABLE.fullmatch(offset) and not offset.startswith(b"="):
        return offset.decode()
    encoded = "=" + base64.urlsafe_b64encode(offset).decode().rstrip("=")
    if len(encoded) <= _LONGEST:
        return encoded
    return "==" + hashlib.blake2b(offset, digest_size=32).hexdigest()
