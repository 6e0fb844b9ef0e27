"""The protocol between a vertex's task and its source's process.

The task sends ``Greet`` first. From then on the process reads and sends messages without being
asked, as long as not too many are unsettled, and between two reads it receives acks and nacks. So
neither waits for the other. The task has at most one ``Settle`` in flight. After a ``Failed`` the
process does not read until it receives another request.

Requests and answers are pickled and sent over a unix socket (``Line``). Arrow buffers are sent next
to the object that holds them and are not copied into it. The receiver wakes only two or three times
for an object of any size: in a task whose other threads are busy, each time may take milliseconds.
"""

from __future__ import annotations

import contextlib
import pickle
import select
import socket
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import pyarrow as pa

from ebbflow.engine.blame import SystemOutage
from ebbflow.engine.inlet import NACKS, SourceAcks
from ebbflow.engine.source_columns import OFFSETS, ROWS
from ebbflow.engine.system_errors import SystemErrors
from ebbflow.usercode.printing import Printed

_ACKS = pa.schema([pa.field("offset", OFFSETS, nullable=False)])
_HEAD = struct.Struct("!II")
_ALIGNED = 64
"""Buffers begin at multiples of it, the alignment that Arrow prefers."""


@dataclass(frozen=True, slots=True)
class Order:
    """The parameters of a source's process, sent to its standard input.

    ``limit`` and ``timeout`` (in seconds) are those of one read, ``columns_limit`` is the limit of
    a source that returns columns. When the process ``keeper`` ends, so does the source's process.
    """

    vertex: str
    partition: int
    code: bytes
    search: str | None
    path: list[str]
    socket: str
    systems: SystemErrors
    keeper: int
    limit: int
    columns_limit: int
    timeout: float


# --- sent by the task ---------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Greet:
    """The first request of every task. The answer is ``Hello``."""


@dataclass(frozen=True, slots=True)
class Settle:
    """Messages that are settled, and messages that the source must redeliver, both in columns.

    The answer is ``SettleDone``.
    """

    acks: pa.Buffer
    nacks: pa.Buffer

    @classmethod
    def of(cls, ends: SourceAcks) -> Settle:
        """Returns the request with the acks and nacks of some chunks."""
        acks = pa.RecordBatch.from_arrays([ends.acks], schema=_ACKS)
        return cls(acks.serialize(), ends.nacks.serialize())

    def read_acks(self) -> pa.BinaryArray:
        """Returns the offsets of the messages that are settled."""
        return pa.ipc.read_record_batch(self.acks, _ACKS).column("offset")

    def read_nacks(self) -> pa.RecordBatch:
        """Returns ``NACKS``."""
        return pa.ipc.read_record_batch(self.nacks, NACKS)


@dataclass(frozen=True, slots=True)
class Resume:
    """Continues to read after an outage. The answer is the result of the next read."""


@dataclass(frozen=True, slots=True)
class End:
    """Closes the source and ends the process, which closes the line as its answer."""


ToSource = Greet | Settle | Resume | End

# --- sent by the process ------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Hello:
    """The source is open: whether it redelivers nacked messages, and which partitions it reads.

    ``exhausted`` if it has no more messages and all it delivered are settled.
    """

    redelivers: bool
    exhausted: bool
    partitions: list[int]


@dataclass(frozen=True, slots=True)
class ReadRows:
    """Messages, in columns. The source is not exhausted."""

    rows: pa.Buffer

    @classmethod
    def of(cls, rows: pa.RecordBatch) -> ReadRows:
        """Returns the answer with these ``ROWS``."""
        return cls(rows.serialize())

    def read_rows(self) -> pa.RecordBatch:
        """Returns ``ROWS``."""
        return pa.ipc.read_record_batch(self.rows, ROWS)


@dataclass(frozen=True, slots=True)
class SourceReport:
    """The state of the source after a read, for people and for a drain.

    ``printed`` is what the source has printed since the last report, ``pending`` is how many
    messages wait to be read, as far as the source knows.
    """

    exhausted: bool
    printed: list[Printed]
    pending: int | None


@dataclass(frozen=True, slots=True)
class SettleDone:
    """The source has processed the acks and nacks. ``exhausted`` as in ``Hello``."""

    exhausted: bool


@dataclass(frozen=True, slots=True)
class Failed:
    """The source raised an error: ``what`` as text, in the step ``during``.

    With an ``outage`` its system is down: it has been closed and is opened again at the next
    request.
    """

    during: Literal["greet", "settle", "read"]
    what: str
    trace: str
    outage: SystemOutage | None = None


FromSource = Hello | ReadRows | SourceReport | SettleDone | Failed


class Line:
    """One end of the connection. One thread may send while another receives."""

    def __init__(self, end: socket.socket) -> None:
        self._end = end

    def fileno(self) -> int:
        """Returns the file descriptor, for polling."""
        return self._end.fileno()

    def send(self, item: object, unless: socket.socket | None = None) -> None:
        """Returns when the item is in flight.

        ``OSError`` if the other end is closed, or if a connection arrives at ``unless`` while
        ``send`` has to wait.
        """
        buffers: list[pickle.PickleBuffer] = []
        pickled = pickle.dumps(item, protocol=5, buffer_callback=buffers.append)
        views = [buffer.raw() for buffer in buffers]
        sizes = struct.pack(f"!{len(views)}Q", *(view.nbytes for view in views))
        parts: list[bytes | memoryview] = [_HEAD.pack(len(pickled), len(views)) + sizes + pickled]
        for view in views:
            parts += (view, bytes(-view.nbytes % _ALIGNED))
        self._send(parts, unless)

    def _send(self, parts: Sequence[bytes | memoryview], unless: socket.socket | None) -> None:
        for part in parts:
            rest = memoryview(part)
            while rest:
                try:
                    rest = rest[self._end.send(rest, socket.MSG_DONTWAIT) :]
                except BlockingIOError:
                    self._wait_for_room(unless)

    def _wait_for_room(self, unless: socket.socket | None) -> None:
        poll = select.poll()
        poll.register(self._end, select.POLLOUT)
        if unless is not None:
            poll.register(unless, select.POLLIN)
        ready = dict(poll.poll())
        if unless is not None and unless.fileno() in ready:
            raise ConnectionAbortedError("another task has connected")

    def receive(self) -> Any:
        """Returns the next item; ``EOFError`` or ``OSError`` when there will be none."""
        size, count = _HEAD.unpack(self._read(_HEAD.size))
        rest = self._read(8 * count + size)
        sizes = struct.unpack_from(f"!{count}Q", rest)
        body = self._read(sum(size + -size % _ALIGNED for size in sizes))
        buffers, start = [], 0
        for size in sizes:
            buffers.append(body[start : start + size])
            start += size + -size % _ALIGNED
        return pickle.loads(rest[8 * count :], buffers=buffers)  # noqa: S301 - from our own process

    def _read(self, size: int) -> memoryview:
        whole = memoryview(bytearray(size))
        rest = whole
        while rest:
            count = self._end.recv_into(rest, len(rest), socket.MSG_WAITALL)
            if not count:
                raise EOFError
            rest = rest[count:]
        return whole

    def close(self) -> None:
        """Closes the connection; a ``receive`` that waits at either end raises."""
        with contextlib.suppress(OSError):
            self._end.shutdown(socket.SHUT_RDWR)
        self._end.close()

    def __enter__(self) -> Line:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
