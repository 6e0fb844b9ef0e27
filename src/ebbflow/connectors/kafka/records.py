"""Kafka records as columns of messages and back: keys, headers, deleted values.

A record has one key, but a message can have several. As in Numaflow, headers carry them
(``__key_len``, ``__key_0`` and so on). A record without a value, which deletes its key from a
compacted topic, becomes an empty message with the header ``__tombstone``.

Keys and headers of messages are text. Bytes that are not UTF-8 are written as ``\\xff``, so
different bytes stay different.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from itertools import accumulate, chain, repeat
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

KEY_COUNT = "__key_len"
KEY = "__key_{}"
TOMBSTONE = "__tombstone"

Headers = Sequence[tuple[str, bytes | str | None]] | None
"""The headers of a record, as Kafka's client returns them."""

_Raw = bytes | str | None


def read_columns(
    keys: Sequence[_Raw], headers: Sequence[Headers], deleted: Sequence[int] = ()
) -> dict[str, pa.Array]:
    """Returns the columns ``keys`` and ``headers`` of messages, from those of records.

    If a header name occurs twice, the last one wins. ``deleted`` lists the rows without a value. A
    column that is empty in every row is left out.
    """
    some = any(headers) or len(deleted) > 0
    mappings = [dict(pairs) if pairs else {} for pairs in headers] if some else []
    lists = _take_keys(keys, mappings)
    for row in deleted:
        mappings[row][TOMBSTONE] = b"true"
    columns = {}
    if any(lists):
        columns["keys"] = pa.ListArray.from_arrays(_ends(lists), _texts(_chain(lists)))
    if any(mappings):
        names = pa.array(_chain(mappings), pa.string())
        values = _texts(_chain(map(dict.values, mappings)))
        columns["headers"] = pa.MapArray.from_arrays(_ends(mappings), names, values)
    return columns


def _take_keys(keys: Sequence[_Raw], mappings: Sequence[dict[str, _Raw]]) -> list[Sequence[_Raw]]:
    """Returns the keys of each message, and removes those that headers carry from the headers."""
    if any(KEY_COUNT in mapping for mapping in mappings):
        return list(map(_take_numbered, keys, mappings))
    if keys.count(None) == len(keys):
        return []
    return [() if key is None else (key,) for key in keys]


def _take_numbered(key: _Raw, headers: dict[str, _Raw]) -> Sequence[_Raw]:
    count = _count(headers.get(KEY_COUNT))
    # Headers that only look like keys stay headers.
    if not 0 <= count < len(headers) or not all(map(headers.__contains__, _names(count))):
        return () if key is None else (key,)
    del headers[KEY_COUNT]
    return [headers.pop(name) for name in _names(count)]


@lru_cache
def _count(text: _Raw) -> int:
    """Returns the number of keys in the count header; -1 if it is not a number."""
    digits = _text(text)
    return int(digits) if digits.isdecimal() and len(digits) < 10 else -1


@lru_cache
def _names(count: int) -> Sequence[str]:
    return [KEY.format(number) for number in range(count)]


def _ends(groups: Sequence[Any]) -> pa.Array:
    return pa.array(accumulate(map(len, groups), initial=0), pa.int32())


def _chain(groups: Iterable[Iterable[Any]]) -> list[Any]:
    return list(chain.from_iterable(groups))


def _texts(values: list[_Raw]) -> pa.Array:
    """Returns the values as texts; in the usual case of valid UTF-8 without a Python loop."""
    try:
        return pa.array(values, pa.binary()).fill_null(b"").cast(pa.string())
    except pa.ArrowInvalid:
        return pa.array(list(map(_text, values)), pa.string())


def _text(value: _Raw) -> str:
    if value is None or isinstance(value, str):
        return value or ""
    return value.decode(errors="backslashreplace")


class Records(NamedTuple):
    """Records to write, as columns.

    A timestamp is in milliseconds; 0 means the time of sending.
    """

    values: Sequence[bytes | None]
    keys: Iterable[bytes | None]
    headers: Iterable[Mapping[str, bytes]]
    timestamps: Iterable[int] = repeat(0)


_WITHOUT_KEYS = {KEY_COUNT: b"0"}


def write_records(
    messages: pa.RecordBatch, set_key: bool = False, set_timestamp: bool = False
) -> Records:
    """Returns the records for messages.

    With ``set_key``, a message's keys also become the record's key. With ``set_timestamp``, its
    event time becomes the timestamp.
    """
    records = _write_fields(messages, set_key)
    if not set_timestamp:
        return records
    times = messages.column("event_time").cast(pa.timestamp("ms", "UTC"), safe=False)
    return records._replace(timestamps=times.cast(pa.int64()).fill_null(0).to_pylist())


def _write_fields(messages: pa.RecordBatch, set_key: bool) -> Records:
    values = messages.column("value").to_pylist()
    keys, headers = messages.column("keys"), messages.column("headers")
    if _is_empty(keys) and _is_empty(headers):
        return Records(values, repeat(None), repeat(_WITHOUT_KEYS))
    lists = _slices(keys, keys.values.cast(pa.binary()))
    names = _slices(headers, headers.keys)
    texts = _slices(headers, headers.items.cast(pa.binary()))
    mappings: list[dict[str, bytes]] = list(map(dict, map(zip, names, texts)))
    for row in [row for row, mapping in enumerate(mappings) if TOMBSTONE in mapping]:
        del mappings[row][TOMBSTONE]
        values[row] = values[row] or None
    joined = [b":".join(texts) if texts else None for texts in lists] if set_key else repeat(None)
    return Records(values, joined, list(map(_write_headers, lists, mappings)))


def _is_empty(column: pa.Array) -> bool:
    """Returns whether every row of a column of lists or maps is empty or null."""
    if column.null_count == len(column):
        return True
    ends = column.offsets
    return bool(ends[0] == ends[-1])


def _slices(column: pa.Array, values: pa.Array) -> list[Sequence[Any]]:
    """Returns the values of each row of a column of lists or maps; none where it is null."""
    if _is_empty(column):
        return [()] * len(column)
    offsets = column.offsets
    flat = values.slice(offsets[0].as_py(), offsets[-1].as_py() - offsets[0].as_py()).to_pylist()
    ends = pc.subtract(offsets, offsets[0]).to_pylist()
    rows: list[Sequence[Any]] = list(map(flat.__getitem__, map(slice, ends, ends[1:])))
    for row in pc.indices_nonzero(pc.is_null(column)).to_pylist() if column.null_count else ():
        rows[row] = ()  # Arrow may hold values even where a row is null
    return rows


def _write_headers(keys: Sequence[bytes], headers: dict[str, bytes]) -> dict[str, bytes]:
    """Returns the headers of a record. The message's own headers must not pass for keys."""
    count = len(keys)
    headers[KEY_COUNT] = b"%d" % count
    headers.update(zip(_names(count), keys, strict=True))
    return headers
