"""Protobuf decoded in bulk: the fields of thousands of messages at a time, as columns.

No code runs per message: ``Messages`` takes the next field from every message at once, until none
is left. No bytes are copied before they become a column. A message that is not valid protobuf is a
``ValueError``. Nested fields become columns of lists, maps and times; a message without such a
field has a null.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

import numpy as np
import pyarrow as pa
from google.protobuf.timestamp_pb2 import Timestamp
from numpy.typing import NDArray

from ebbflow.engine import frames
from ebbflow.numaflow.grpc import Arrived

Numbers = NDArray[np.int64]
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_LONGEST_VARINT = 10
_SIZES = np.array([0, 8, 0, -1, -1, 4, -1, -1])
_USER_METADATA, _KEY_VALUES, _KEY, _VALUE = 3, 1, 1, 2
_SECONDS, _NANOS = 1, 2
# The first and the last second that ``datetime`` can hold.
_FIRST, _LAST = -62_135_596_800, 253_402_300_799


@dataclass(frozen=True, slots=True)
class Places:
    """Where pieces of a buffer begin and end, in ascending order."""

    buffer: bytes
    starts: Numbers
    ends: Numbers

    def __len__(self) -> int:
        return len(self.starts)

    @property
    def has_content(self) -> bool:
        """Whether any of the pieces is not empty."""
        return bool((self.ends > self.starts).any())

    def at(self, rows: Numbers) -> Places:
        """Returns some of the pieces."""
        return Places(self.buffer, self.starts[rows], self.ends[rows])

    def column(self, order: Numbers | None = None) -> pa.BinaryArray:
        """Returns the pieces as a column, in their order or in ``order``."""
        if not len(self):
            return pa.array([], pa.binary())
        # The buffer is a column in which pieces and the gaps between them alternate.
        offsets = np.empty(2 * len(self), np.int32)
        offsets[::2], offsets[1::2] = self.starts, self.ends
        buffers = [None, pa.py_buffer(offsets), pa.py_buffer(self.buffer)]
        whole = pa.BinaryArray.from_buffers(pa.binary(), len(offsets) - 1, buffers)
        return whole.take(pa.array(2 * (np.arange(len(self)) if order is None else order)))

    def texts(self, order: Numbers | None = None) -> pa.StringArray:
        """Returns the pieces as texts; ``ValueError`` if any is not valid UTF-8."""
        return self.column(order).cast(pa.string())


def join_parts(parts: Sequence[Arrived]) -> Places:
    """Returns the places of all messages that have arrived in some parts, in one buffer."""
    edges, shift = [np.empty(0, np.int64)], 0
    for part in parts:
        edges.append(np.array(part.edges, np.int64) + shift)
        shift += len(part.buffer)
    joined = np.concatenate(edges)
    return Places(b"".join([part.buffer for part in parts]), joined[::2], joined[1::2])


@dataclass(frozen=True, slots=True)
class Fields:
    """Fields of messages, ordered by message: the message of each, and the place of its content."""

    owners: Numbers
    places: Places

    def __len__(self) -> int:
        return len(self.owners)

    def offsets(self, count: int) -> pa.Int32Array:
        """Returns the offset in these fields at which each of ``count`` messages begins."""
        ends = np.bincount(self.owners, minlength=count).cumsum()
        return pa.array(np.concatenate(([0], ends)).astype(np.int32))

    def last(self, messages: Places) -> Places:
        """Returns the last of these fields for each message, an empty piece if it has none."""
        starts, ends = messages.starts.copy(), messages.starts.copy()
        starts[self.owners], ends[self.owners] = self.places.starts, self.places.ends
        return Places(messages.buffer, starts, ends)

    def last_numbers(self, count: int) -> Numbers:
        """Returns the last of these fields for each message as a number, 0 if it has none."""
        numbers = np.zeros(count, np.int64)
        numbers[self.owners] = _read_varints(self.places)[0].view(np.int64)
        return numbers


class Messages:
    """The fields of messages by their numbers."""

    def __init__(self, places: Places) -> None:
        self.places = places
        self._numbers, self._owners, self._fields = _split(places)

    def __len__(self) -> int:
        return len(self.places)

    def field(self, number: int) -> Fields:
        """Returns the fields with that number."""
        chosen = np.flatnonzero(self._numbers == number)
        return Fields(self._owners[chosen], self._fields.at(chosen))


def _split(places: Places) -> tuple[Numbers, Numbers, Places]:
    """Returns number, message and place of every field, in order."""
    numbers, owners, starts, ends = [], [], [], []
    rest, owner = places, np.arange(len(places))
    while True:
        left = np.flatnonzero(rest.starts < rest.ends)
        if len(left) < len(owner):
            rest, owner = rest.at(left), owner[left]
        if not len(owner):
            break
        number, fields = _first_fields(rest)
        numbers.append(number)
        owners.append(owner)
        starts.append(fields.starts)
        ends.append(fields.ends)
        rest = Places(places.buffer, fields.ends, rest.ends)
    return _in_order(places.buffer, numbers, owners, starts, ends)


def _in_order(
    buffer: bytes,
    numbers: list[Numbers],
    owners: list[Numbers],
    starts: list[Numbers],
    ends: list[Numbers],
) -> tuple[Numbers, Numbers, Places]:
    if not numbers:
        none = np.empty(0, np.int64)
        return none, none, Places(buffer, none, none)
    if len(numbers) == 1:
        return numbers[0], owners[0], Places(buffer, starts[0], ends[0])
    begins = np.concatenate(starts)
    order = np.argsort(begins, kind="stable")
    places = Places(buffer, begins[order], np.concatenate(ends)[order])
    return np.concatenate(numbers)[order], np.concatenate(owners)[order], places


def _first_fields(rest: Places) -> tuple[Numbers, Places]:
    """Returns number and place of the first field of each message, none of which is empty."""
    keys, starts = _read_varints(rest)
    kinds = (keys & np.uint64(7)).astype(np.int64)
    numbers = (keys >> np.uint64(3)).astype(np.int64)
    varint, sized = kinds == _VARINT, kinds == _BYTES
    if sized.all() or (varint | sized).all():
        values, ends = _read_varints(Places(rest.buffer, starts, rest.ends))
        starts = np.where(sized, ends, starts)
        ends = np.where(sized, ends + values.view(np.int64), ends)
    else:
        starts, ends = _mixed_ends(rest, kinds, starts)
    if (ends > rest.ends).any() or (ends < starts).any():
        raise ValueError("a message ends in the middle of a field")
    return numbers, Places(rest.buffer, starts, ends)


def _mixed_ends(rest: Places, kinds: Numbers, starts: Numbers) -> tuple[Numbers, Numbers]:
    """Returns starts and ends of the content of fields, some of which have a fixed size."""
    sizes = _SIZES[kinds]
    if (sizes < 0).any():
        raise ValueError("a message has a field of an unknown kind")
    ends = starts + sizes
    starts = starts.copy()
    read = np.flatnonzero((kinds == _VARINT) | (kinds == _BYTES))
    values, after = _read_varints(Places(rest.buffer, starts[read], rest.ends[read]))
    sized = kinds[read] == _BYTES
    ends[read] = np.where(sized, after + values.view(np.int64), after)
    starts[read] = np.where(sized, after, starts[read])
    return starts, ends


def _read_varints(places: Places) -> tuple[NDArray[np.uint64], Numbers]:
    """Returns the number with which each piece begins, and where it ends."""
    view = np.frombuffer(places.buffer, np.uint8)
    at, last = places.starts, len(view) - 1
    if len(at) and int(at.max()) > last:
        raise ValueError("a message ends in the middle of a field")
    byte = view[at]
    values = (byte & 0x7F).astype(np.uint64)
    more = np.flatnonzero(byte & 0x80)
    ends = at + 1
    shift = 7
    while len(more):
        if shift == 7 * _LONGEST_VARINT or int(ends[more].max()) > last:
            raise ValueError("a message has a number without end")
        byte = view[ends[more]]
        values[more] |= (byte & 0x7F).astype(np.uint64) << np.uint64(shift)
        ends[more] += 1
        more = more[(byte & 0x80) != 0]
        shift += 7
    return values, ends


# --- nested fields as columns ---------------------------------------------------------------------


def list_texts(fields: Fields, count: int, nulls: bool = True) -> pa.ListArray:
    """Returns the texts of each message as a list; for no texts null, or empty if not ``nulls``."""
    offsets, absent = fields.offsets(count), _absent(fields, count) if nulls else None
    return pa.ListArray.from_arrays(offsets, fields.places.texts(), mask=absent)


def map_texts(fields: Fields, count: int) -> pa.MapArray:
    """Returns the texts of each message by their names."""
    names, values = read_entries(fields)
    offsets, absent = fields.offsets(count), _absent(fields, count)
    return pa.MapArray.from_arrays(offsets, names, values.texts(), mask=absent)


def map_groups(fields: Fields, count: int, nulls: bool = True) -> pa.MapArray:
    """Returns the user's groups of ``metadata.Metadata``; for none null, or empty likewise."""
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
    """Returns times; null where there is none, or one that ``datetime`` cannot hold."""
    stamps = Messages(fields.places)
    seconds = stamps.field(_SECONDS).last_numbers(len(fields))
    nanos = stamps.field(_NANOS).last_numbers(len(fields))
    known = (seconds >= _FIRST) & (seconds <= _LAST)
    times, absent = np.zeros(count, np.int64), np.ones(count, bool)
    times[fields.owners] = np.where(known, seconds * 1_000_000 + nanos // 1_000, 0)
    absent[fields.owners] = ~known
    return pa.array(times, mask=absent).cast(pa.timestamp("us")).cast(frames.TIME)


def timestamp_to_time(stamp: Timestamp) -> datetime | None:
    """Returns the time of one message; ``None`` if ``datetime`` cannot hold it."""
    try:
        return stamp.ToDatetime(UTC)
    except (ValueError, OverflowError):
        return None


def _absent(fields: Fields, count: int) -> pa.BooleanArray:
    """Returns which of the messages have none of these fields."""
    return pa.array(np.bincount(fields.owners, minlength=count) == 0)
