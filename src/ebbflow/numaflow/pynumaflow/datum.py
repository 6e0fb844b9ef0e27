"""The datums for pynumaflow's code: its own ``Datum``, with fields filled in on first access.

The class is a subclass of pynumaflow's, so that it behaves exactly like the original. Fields that a
handler does not read are never converted.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from datetime import datetime
from functools import cache
from typing import Any

import pyarrow as pa

from ebbflow.engine.frames import Rows
from ebbflow.numaflow.pynumaflow.recognition import Surface
from ebbflow.numaflow.services import RETRY_COUNT, SINK_GROUP

# Times in pynumaflow are naive and in UTC.
_EPOCH = datetime(1970, 1, 1)
# Numaflow's value for an unknown watermark.
_NO_WATERMARK = datetime(1969, 12, 31, 23, 59, 59, 999_000)
_NAIVE = pa.timestamp("us")


class RowFacts:
    """The fields of the datums of one chunk, converted once and only on access.

    ``has_keys`` if any row has keys. ``has_more`` if outputs may differ from their inputs in more
    than value and keys.
    """

    __slots__ = ("_metadata", "_retries", "_times", "has_keys", "has_more", "rows")

    def __init__(self, rows: Rows, surface: Surface) -> None:
        self.rows = rows
        self.has_keys = _has_entries(rows.batch.column("keys"))
        timed = surface is Surface.TRANSFORMER
        self.has_more = timed or _has_entries(rows.batch.column("metadata"))
        self._times: list[datetime | None] | None = None
        self._metadata = sys.modules["pynumaflow._metadata"] if _has_metadata_classes() else None
        self._retries = surface is Surface.SINK

    def event_time(self, index: int) -> datetime:
        """Returns the event time; for a message without one, the time of an empty field."""
        if self._times is None:
            self._times = self.rows.batch.column("event_time").cast(_NAIVE).to_pylist()
        return self._times[index] or _EPOCH

    def watermark(self, _index: int) -> datetime:
        """Returns the watermark."""
        known = self.rows.watermark
        return _NO_WATERMARK if known is None else known.replace(tzinfo=None)

    def keys(self, index: int) -> list[str]:
        """Returns a new list of the keys, which the handler may change."""
        return list(self.rows.column("keys")[index]) if self.has_keys else []

    def headers(self, index: int) -> dict[str, str]:
        """Returns the headers."""
        return self.rows.column("headers")[index]  # type: ignore[no-any-return]

    def id(self, index: int) -> str:
        """Returns the id."""
        return self.rows.column("id")[index]  # type: ignore[no-any-return]

    def user_metadata(self, index: int) -> Any:
        """Returns a copy of the message's metadata, which the handler may change and forward."""
        own = self.rows.column("metadata")[index]
        entries = {group: dict(entries) for group, entries in own.items()}
        return self._metadata and self._metadata.UserMetadata(entries)

    def system_metadata(self, index: int) -> Any:
        """Returns the platform's metadata: in sinks, how often the message has been retried."""
        retries = b"%d" % self.rows.column("retries")[index]
        entries = {SINK_GROUP: {RETRY_COUNT: retries}} if self._retries else {}
        return self._metadata and self._metadata.SystemMetadata(entries)


def _has_entries(column: pa.MapArray | pa.ListArray) -> bool:
    offsets = column.offsets
    return bool(len(offsets)) and offsets[0] != offsets[-1]


def _has_metadata_classes() -> bool:
    return hasattr(sys.modules.get("pynumaflow._metadata"), "SystemMetadata")


_LOOK_UP: dict[str, Callable[[RowFacts, int], Any]] = {
    f"_{fact.__name__}": fact
    for fact in (
        RowFacts.event_time,
        RowFacts.watermark,
        RowFacts.keys,
        RowFacts.headers,
        RowFacts.id,
        RowFacts.user_metadata,
        RowFacts.system_metadata,
    )
}


_ANSWERED_BY_ID = (Surface.BATCH_MAP, Surface.SINK)


def list_datums(rows: Rows, surface: Surface) -> list[Any]:
    """Returns every row as a datum for handlers of that surface."""
    # Looked up each time, as code of another vertex may have imported pynumaflow meanwhile.
    base = getattr(sys.modules.get(f"pynumaflow.{surface.value}"), "Datum", _Bare)
    kind, facts = _make_lazy(base), RowFacts(rows, surface)
    values = rows.column("value")
    if surface not in _ANSWERED_BY_ID:
        return [kind(facts, index, value) for index, value in enumerate(values)]
    named = zip(values, rows.column("id"), strict=True)
    return [kind(facts, index, value, id) for index, (value, id) in enumerate(named)]


@cache
def _make_lazy(base: type) -> type:
    """Returns a subclass whose objects fill in their slots on first access."""
    body = {"__slots__": ("_facts", "_index"), "__init__": _begin, "__getattr__": _look_up}
    return type("Datum", (base,), {**body, "__module__": base.__module__})


def _begin(self: Any, facts: RowFacts, index: int, value: bytes, id: str | None = None) -> None:
    """Fills in the fields that nearly every handler reads."""
    self._facts = facts
    self._index = index
    self._value = value
    if id is not None:
        self._id = id


def _look_up(self: Any, name: str) -> Any:
    """Fills in an empty slot of pynumaflow's class on first access."""
    if name not in _LOOK_UP:
        raise AttributeError(f"'Datum' object has no attribute {name!r}")
    fact = _LOOK_UP[name](self._facts, self._index)
    setattr(self, name, fact)
    return fact


class _Bare:
    """The datum of code that takes keys and datum and has not imported pynumaflow."""

    __slots__ = ("_event_time", "_headers", "_id", "_keys", "_value", "_watermark")

    value = property(lambda self: self._value)
    keys = property(lambda self: self._keys)
    event_time = property(lambda self: self._event_time)
    watermark = property(lambda self: self._watermark)
    headers = property(lambda self: self._headers)
    id = property(lambda self: self._id)
