"""The protocol between a vertex's task and its source's process, as plain pickled data."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from ebbflow.core import frames
from ebbflow.core.blame import Outage
from ebbflow.core.system_errors import SystemErrors
from ebbflow.source import SourceMessage

# What can stand in an id as it is; ids are shown to people and end up in headers.
_READABLE = re.compile(rb"[!-.0-~]{1,80}")
_LONGEST = 90


@dataclass(frozen=True, slots=True)
class Order:
    """What a source process is to do; comes through its standard input."""

    vertex: str
    partition: int
    code: bytes
    search: str | None
    path: list[str]
    socket: str
    systems: SystemErrors
    keeper: int
    """The process whose end ends the source's."""


@dataclass(frozen=True, slots=True)
class Hello:
    """What a task is told first: whether nacks go to the source, and what it reads.

    ``exhausted`` when it has nothing more to give and all it gave is settled.
    """

    redelivers: bool
    exhausted: bool
    partitions: list[int]


@dataclass(frozen=True, slots=True)
class Given:
    """Messages as a frame, none if there are none, and what the source printed meanwhile."""

    frame: bytes | None
    offsets: list[bytes]
    deliveries: list[int | None]
    exhausted: bool
    printed: list[str]


@dataclass(frozen=True, slots=True)
class Failed:
    """The source raised in the method that was asked for: ``what``, in words.

    With an ``outage`` its system is away: it has been closed and is opened anew when it is next
    asked for something.
    """

    what: str
    trace: str
    outage: Outage | None = None


def frame_of(messages: Sequence[SourceMessage], vertex: str, partition: int) -> bytes | None:
    """The messages as rows, each with the id it has whenever it is given."""
    if not messages:
        return None
    now = datetime.now(UTC)
    columns = {
        "id": [message_id(one, vertex, partition) for one in messages],
        "value": [one.value for one in messages],
        "keys": [list(one.keys) or None for one in messages],
        "headers": [list(one.headers.items()) or None for one in messages],
        "event_time": [one.event_time or now for one in messages],
        "first_seen": [now] * len(messages),
    }
    return frames.encode(frames.batch_of(columns, len(messages)))


def message_id(message: SourceMessage, vertex: str, partition: int) -> str:
    """The message's id in the pipeline: vertex, partition and offset."""
    where = partition if message.partition is None else message.partition
    return f"{vertex}-{where}-{_offset_text(message.offset)}"


def _offset_text(offset: bytes) -> str:
    """Different offsets have different texts; short and readable ones stay as they are."""
    if _READABLE.fullmatch(offset) and not offset.startswith(b"="):
        return offset.decode()
    encoded = "=" + base64.urlsafe_b64encode(offset).decode().rstrip("=")
    if len(encoded) <= _LONGEST:
        return encoded
    return "==" + hashlib.blake2b(offset, digest_size=32).hexdigest()
