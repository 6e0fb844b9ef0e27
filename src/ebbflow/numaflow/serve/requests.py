"""Requests of the runtime as rows, so that functions are called as they are in a pipeline.

Protobuf messages are read only as far as the function asks. What Ebbflow's own runtime knows
beyond the protocol, how often a message was delivered and why it was last nacked, comes in the
group ``ebbflow`` of the system metadata; Numaflow's sends nothing there.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

import pyarrow as pa

from ebbflow.engine import frames
from ebbflow.engine.frames import Rows
from ebbflow.numaflow.proto.metadata_pb2 import Metadata

EPOCH = datetime.fromtimestamp(0, UTC)
OWN_GROUP = "ebbflow"


class Request(NamedTuple):
    """One message: its id, and the ``Request`` of whichever service it came to."""

    id: str
    message: Any


def read_time(timestamp: Any) -> datetime:
    """Returns a protobuf timestamp as a time; what is finer than a microsecond is cut off."""
    return EPOCH + timedelta(seconds=timestamp.seconds, microseconds=timestamp.nanos // 1_000)


def read_metadata(metadata: Metadata) -> dict[str, dict[str, bytes]]:
    """Returns what functions before this one have set."""
    return {group: dict(entries.key_value) for group, entries in metadata.user_metadata.items()}


def _read_watermark(message: Any) -> datetime | None:
    # A time before 1970 says that there is none.
    known = message.HasField("watermark") and message.watermark.seconds >= 0
    return read_time(message.watermark) if known else None


def _read_system(message: Any, group: str, key: str) -> bytes | None:
    groups = message.metadata.sys_metadata
    return groups[group].key_value.get(key) if group in groups else None


def _read_number(message: Any, group: str, key: str, absent: int) -> int:
    text = _read_system(message, group, key) or b""
    return int(text) if text.isdigit() else absent


def _read_reason(message: Any) -> str | None:
    reason = _read_system(message, OWN_GROUP, "nack_reason")
    return None if reason is None else reason.decode("utf-8", "replace")


_READ: dict[str, Callable[[Request], Any]] = {
    "id": lambda request: request.id,
    "value": lambda request: request.message.value,
    "keys": lambda request: list(request.message.keys),
    "event_time": lambda request: read_time(request.message.event_time),
    "watermark": lambda request: _read_watermark(request.message),
    "headers": lambda request: dict(request.message.headers),
    "metadata": lambda request: read_metadata(request.message.metadata),
    "deliveries": lambda request: _read_number(request.message, OWN_GROUP, "deliveries", 1),
    "retries": lambda request: _read_number(request.message, "sink", "retry_count", 0),
    "nack_reason": lambda request: _read_reason(request.message),
    "failures": lambda request: 0,
}

_IN_BATCH = [name for name in _READ if name != "watermark"]


class RequestRows(Rows):
    """Requests as the rows of a chunk. The record batch is made only if somebody wants columns."""

    __slots__ = ("_made", "requests")

    def __init__(self, requests: Sequence[Request]) -> None:
        self.requests = requests
        self.watermark = None
        self._columns = {}
        self._made: pa.RecordBatch | None = None

    def __len__(self) -> int:
        return len(self.requests)

    @property
    def batch(self) -> pa.RecordBatch:
        """The requests as columns."""
        if self._made is None:
            columns = {name: self.column(name) for name in _IN_BATCH}
            columns["headers"] = [list(headers.items()) or None for headers in columns["headers"]]
            columns["metadata"] = [
                [(group, list(entries.items())) for group, entries in metadata.items()] or None
                for metadata in columns["metadata"]
            ]
            self._made = frames.batch_of(columns, len(self))
        return self._made

    def _convert(self, name: str) -> list[Any]:
        read = _READ[name]
        return [read(request) for request in self.requests]
