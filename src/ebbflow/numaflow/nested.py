"""What is nested in messages becomes columns: lists and maps of texts, metadata and times.

``fields`` are those with one number, of ``count`` messages. A message without one has a null.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import numpy as np
import pyarrow as pa
from google.protobuf.timestamp_pb2 import Timestamp

from ebbflow.engine import frames
from ebbflow.numaflow.fields import Fields, Messages, Places

_USER_METADATA, _KEY_VALUES, _KEY, _VALUE = 3, 1, 1, 2
_SECONDS, _NANOS = 1, 2
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
# The first and the last second that Python's times know.
_FIRST, _LAST = -62_135_596_800, 253_402_300_799


def list_texts(fields: Fields, count: int, nulls: bool = True) -> pa.ListArray:
    """Returns the texts of each message as a list; an empty one for none if not null."""
    offsets, absent = fields.offsets(count), _absent(fields, count) if nulls else None
    return pa.ListArray.from_arrays(offsets, fields.places.texts(), mask=absent)


def map_texts(fields: Fields, count: int) -> pa.MapArray:
    """Returns the texts of each message by their names."""
    names, values = read_entries(fields)
    offsets, absent = fields.offsets(count), _absent(fields, count)
    return pa.MapArray.from_arrays(offsets, names, values.texts(), mask=absent)


def map_groups(fields: Fields, count: int, nulls: bool = True) -> pa.MapArray:
    """Returns the user's groups of ``metadata.Metadata``; no groups for none if not null."""
    groups = Messages(fields.places).field(_USER_METADATA)
    owned = Fields(fields.owners[groups.owners], groups.places)
    names, entries = read_entries(owned)
    pairs = Messages(entries).field(_KEY_VALUES)
    keys, values = read_entries(pairs)
    inner = pa.MapArray.from_arrays(pairs.offsets(len(owned)), keys, values.column())
    offsets, absent = owned.offsets(count), _absent(owned, count) if nulls else None
    return pa.MapArray.from_arrays(offsets, names, inner, mask=absent)


def read_entries(fields: Fields) -> tuple[pa.StringArray, Places]:
    """Returns keys and values of the entries of a map."""
    entries = Messages(fields.places)
    keys, values = (entries.field(number).last(fields.places) for number in (_KEY, _VALUE))
    return keys.texts(), values


def read_times(fields: Fields, count: int) -> pa.TimestampArray:
    """Returns times; null where there is none, or none that Python knows."""
    stamps = Messages(fields.places)
    seconds = stamps.field(_SECONDS).last_numbers(len(fields))
    nanos = stamps.field(_NANOS).last_numbers(len(fields))
    known = (seconds >= _FIRST) & (seconds <= _LAST)
    times, absent = np.zeros(count, np.int64), np.ones(count, bool)
    times[fields.owners] = np.where(known, seconds * 1_000_000 + nanos // 1_000, 0)
    absent[fields.owners] = ~known
    return pa.array(times, mask=absent).cast(pa.timestamp("us")).cast(frames.TIME)


def to_time(stamp: Timestamp) -> datetime | None:
    """Returns the time of one message, likewise."""
    if not _FIRST <= stamp.seconds <= _LAST:
        return None
    return _EPOCH + timedelta(seconds=stamp.seconds, microseconds=stamp.nanos // 1_000)


def _absent(fields: Fields, count: int) -> pa.BooleanArray:
    """Returns which of the messages have none of these fields."""
    return pa.array(np.bincount(fields.owners, minlength=count) == 0)
