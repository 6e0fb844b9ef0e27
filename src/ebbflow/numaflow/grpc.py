"""gRPC on a unix socket, made for sending and receiving many messages at a time.

``GrpcConnection`` is a blocking client: it reads while it writes, so that neither side ever waits
for the other to make room, and it uses the socket only during a call. ``GrpcStream`` is one
bidirectional call. Many messages share a frame, and all data that has arrived is split at once.

If nothing arrives for ``RUNNING.limit`` seconds, or for the timeout of a call, the call raises
``CallTimeout``. Every other failure is ``StreamBroken``, with the details that the function sent:
status, message, stack and how long to wait. A detail that cannot be decoded is left out, because a
second failure must not hide the first.
"""

from __future__ import annotations

import base64
import binascii
import select
import socket
import struct
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from google.protobuf.message import DecodeError

from ebbflow.domain.errors import CallTimeout, StreamBroken
from ebbflow.numaflow.http2 import Headers, Http2, Http2Exchange
from ebbflow.numaflow.proto import rpc_status_pb2
from ebbflow.numaflow.services import LARGEST
from ebbflow.usercode.call_watch import RUNNING

PREFIX = struct.Struct(">BI")
"""The prefix of each message: whether it is compressed, and its size."""

OK = "0"
UNKNOWN, UNAVAILABLE = 2, 14
CODES = (
    "OK", "CANCELLED", "UNKNOWN", "INVALID_ARGUMENT", "DEADLINE_EXCEEDED", "NOT_FOUND",
    "ALREADY_EXISTS", "PERMISSION_DENIED", "RESOURCE_EXHAUSTED", "FAILED_PRECONDITION", "ABORTED",
    "OUT_OF_RANGE", "UNIMPLEMENTED", "INTERNAL", "UNAVAILABLE", "DATA_LOSS", "UNAUTHENTICATED",
)  # fmt: skip
_READ = 256 * 1024
_BEATS = 8
_USER_AGENT = "ebbflow"


@dataclass(slots=True)
class Arrived:
    """Messages in the order of their arrival, as slices of the buffer that they arrived in.

    ``edges`` has the start and the end of each message.
    """

    buffer: bytes = b""
    edges: list[int] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.edges) // 2

    def messages(self) -> list[bytes]:
        """Returns a copy of each message."""
        buffer, ends = self.buffer, iter(self.edges)
        return [buffer[start:end] for start, end in zip(ends, ends, strict=True)]


class Splitter:
    """Splits the data of frames into messages. ``fault`` says what is wrong with them, if set."""

    def __init__(self) -> None:
        self.fault: str | None = None
        self._pieces: list[bytes] = []
        self._size = 0
        self._needed = PREFIX.size

    def split(self, buffer: bytes, edges: list[int]) -> list[Arrived]:
        """Returns the messages that are complete with the data of these frames."""
        if not self._size and (whole := _whole_frames(buffer, edges)) is not None:
            return [Arrived(buffer, whole)] if whole else []
        ends = iter(edges)
        piece = b"".join([buffer[start:end] for start, end in zip(ends, ends, strict=True)])
        self._pieces.append(piece)
        self._size += len(piece)
        if self._size < self._needed or self.fault is not None:
            return []
        arrived = self._split_joined(b"".join(self._pieces))
        return [arrived] if arrived.edges else []

    def _split_joined(self, data: bytes) -> Arrived:
        arrived, at, end = Arrived(data), 0, len(data)
        self._needed = PREFIX.size
        while end - at >= PREFIX.size:
            compressed, size = PREFIX.unpack_from(data, at)
            if compressed or size > LARGEST:
                self.fault = "it is compressed" if compressed else f"it has {size:,} bytes"
                self.fault = f"the function sent a message that cannot be decoded: {self.fault}"
                break
            start = at + PREFIX.size
            if start + size > end:
                self._needed = PREFIX.size + size
                break
            arrived.edges += (start, start + size)
            at = start + size
        self._pieces, self._size = [data[at:]], end - at
        return arrived


def _whole_frames(buffer: bytes, edges: list[int]) -> list[int] | None:
    """Returns the edges of the messages if each frame holds exactly one, as is common."""
    whole: list[int] = []
    unpack, ends = PREFIX.unpack_from, iter(edges)
    for start, end in zip(ends, ends, strict=True):
        if end - start < 5 or unpack(buffer, start) != (0, end - start - 5):
            return None
        whole += (start + 5, end)
    return whole


class GrpcConnection:
    """A connection to a function's socket, for the thread that made it.

    Making one raises ``StreamBroken`` if no process listens there.
    """

    def __init__(self, path: str | Path) -> None:
        self._path = str(path)
        self._http2 = Http2()
        self._unwritten = memoryview(b"")
        self._can_write = True
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            self._socket.connect(self._path)
        except OSError as error:
            self._socket.close()
            raise StreamBroken(f"nothing listens at {self._path}: {error}") from error
        self._socket.setblocking(False)
        self._poll = select.poll()
        self._poll.register(self._socket, select.POLLIN)

    def open_stream(self, method: str) -> GrpcStream:
        """Begins a call of a method such as ``/map.v1.Map/MapFn``."""
        return GrpcStream(self, self._http2.request(_request_headers(method)))

    def call(self, method: str, request: bytes, timeout: float | None = None) -> bytes:
        """Returns the response to a single request, as for ``IsReady``."""
        stream = self.open_stream(method)
        stream.send([request])
        stream.end()
        responses: list[bytes] = []
        while more := stream.receive(timeout):
            responses += more
        if len(responses) != 1:
            raise StreamBroken(f"{method} was answered {len(responses)} times instead of once")
        return responses[0]

    def close(self) -> None:
        """Ends all streams. Later calls on them raise."""
        self._http2.close()
        self._write()
        self._socket.close()

    def cancel(self, exchange: Http2Exchange) -> None:
        """Ends one exchange from this side."""
        self._http2.cancel(exchange)
        self._write()

    @property
    def is_lost(self) -> bool:
        """Whether the connection is known to be lost."""
        return self._http2.lost is not None

    def catch_up(self) -> None:
        """Reads what has arrived since the last call, without waiting."""
        while not self.is_lost and self._read():
            self._write()

    def flush(self) -> None:
        """Writes as much as the socket accepts at once."""
        self._write()

    def wait(self, ready: Callable[[], bool], timeout: float | None = None) -> None:
        """Reads and writes until ``ready``; ``CallTimeout`` when nothing arrives for too long."""
        limit = RUNNING.limit if timeout is None else timeout
        since = time.monotonic()
        while not ready():
            wrote = self._write()
            if self._read():
                since = time.monotonic()
            elif not wrote and not ready():
                self._sleep(limit, since)

    def _sleep(self, limit: float | None, since: float) -> None:
        """Waits for the socket; keeps the call watch quiet, because this wait has its own limit."""
        left = None if limit is None else since + limit - time.monotonic()
        if left is not None and left <= 0:
            assert limit is not None
            raise CallTimeout(limit)
        if left is not None and RUNNING.limit is not None:
            left = min(left, RUNNING.limit / _BEATS)
        RUNNING.beat += 1
        self._poll.modify(self._socket, select.POLLIN | (select.POLLOUT * bool(self._unwritten)))
        self._poll.poll(None if left is None else left * 1000)
        RUNNING.beat += 1

    def _write(self) -> bool:
        """Writes as much as the peer and the socket accept; returns whether they accepted any."""
        wrote = False
        while self._can_write:
            if not self._unwritten:
                self._unwritten = memoryview(self._http2.take())
            if not self._unwritten:
                return wrote
            try:
                size = self._socket.send(self._unwritten, socket.MSG_NOSIGNAL)
            except BlockingIOError:
                return wrote
            except OSError:  # responses that were sent before the end are still to be read
                self._unwritten, self._can_write = memoryview(b""), False
                return wrote
            self._unwritten = self._unwritten[size:]
            wrote = True
        return wrote

    def _read(self) -> bool:
        """Reads available data; returns whether there was any, or the connection has ended."""
        try:
            data = self._socket.recv(_READ)
        except BlockingIOError:
            return False
        except OSError as error:
            self._http2.lose(f"the function's process is gone: {error}")
            return True
        if data:
            self._http2.receive(data)
        else:
            self._http2.lose("the function's process closed the connection")
        return True


def _request_headers(method: str) -> Headers:
    return [
        (":method", "POST"),
        (":scheme", "http"),
        (":path", method),
        (":authority", "localhost"),
        ("te", "trailers"),
        ("content-type", "application/grpc"),
        ("user-agent", _USER_AGENT),
        ("grpc-accept-encoding", "identity"),
    ]


class GrpcStream:
    """One call, with any number of messages both ways."""

    def __init__(self, connection: GrpcConnection, exchange: Http2Exchange) -> None:
        self._connection = connection
        self._exchange = exchange
        self._splitter = Splitter()

    def send(self, messages: Iterable[bytes]) -> None:
        """Queues messages in order, writes as much as the socket accepts, and returns at once."""
        pack, unsent = PREFIX.pack, self._exchange.unsent
        for message in messages:
            unsent += pack(0, len(message))
            unsent += message
        self._connection.flush()

    def send_packed(self, packed: bytes | memoryview) -> None:
        """Does the same for concatenated messages, each with its ``PREFIX``."""
        self._exchange.unsent += packed
        self._connection.flush()

    def end(self) -> None:
        """Ends the requests; responses may still arrive."""
        self._exchange.finishing = True
        self._connection.flush()

    def cancel(self) -> None:
        """Ends the call: neither side sends any more."""
        self._connection.cancel(self._exchange)

    def receive(self, timeout: float | None = None) -> list[bytes]:
        """Waits for messages and returns all that have arrived; none after a successful end.

        Raises ``StreamBroken`` after a failure, once all earlier messages have been returned, and
        ``CallTimeout`` when nothing arrives for ``timeout`` or ``RUNNING.limit`` seconds.
        """
        return [message for part in self.receive_parts(timeout) for message in part.messages()]

    def receive_parts(self, timeout: float | None = None) -> list[Arrived]:
        """Does the same without copying the messages; returns one part for each read."""
        while True:
            self._connection.wait(self._has_news, timeout)
            parts = self._take_arrived()
            if parts:
                return parts
            if self._exchange.ended:
                if (failure := self._failure()) is not None:
                    raise failure
                return []

    @property
    def ended(self) -> bool:
        """Whether the function is known to have ended the call, successfully or not."""
        return self._exchange.ended

    @property
    def is_broken(self) -> bool:
        """Whether the function is known to have ended the call with an error."""
        return self._exchange.ended and self._failure() is not None

    def raise_if_ended(self) -> None:
        """Raises ``StreamBroken`` if the function is known to have ended the call."""
        if self._exchange.ended:
            raise self._failure() or StreamBroken("the function has ended the stream")

    def _has_news(self) -> bool:
        return bool(self._exchange.arrived) or self._exchange.ended

    def _take_arrived(self) -> list[Arrived]:
        pieces, self._exchange.arrived = self._exchange.arrived, []
        parts = [part for piece in pieces for part in self._splitter.split(*piece)]
        if self._splitter.fault is not None:
            self.cancel()
            self._exchange.broken = self._splitter.fault
        return parts

    def _failure(self) -> StreamBroken | None:
        """Returns the error of an ended call, if it failed."""
        exchange = self._exchange
        trailers = exchange.trailers or {}
        if exchange.broken is not None:
            return StreamBroken(exchange.broken)
        if trailers.get("grpc-status") != OK:
            return read_failure(exchange.headers or {}, trailers)
        return None


# --- the status of a call that failed -------------------------------------------------------------


def read_failure(headers: Mapping[str, str], trailers: Mapping[str, str]) -> StreamBroken:
    """Returns the error that the headers and trailers of a failed call describe."""
    if "grpc-status" not in trailers:
        http = headers.get(":status", "no status")
        return StreamBroken(f"the function ended the stream without a result (HTTP {http})")
    text = trailers["grpc-status"]
    code = int(text) if text.isdecimal() else UNKNOWN
    name = CODES[code] if code < len(CODES) else f"status {code}"
    message = unquote(trailers.get("grpc-message", ""))
    stack, wait = read_details(trailers.get("grpc-status-details-bin", ""))
    return StreamBroken(f"{name}: {message}" if message else name, code, stack, wait)


def read_details(details: str) -> tuple[str, timedelta | None]:
    """Returns the stack and the wait in the details of a status, if there are any."""
    try:
        raw = base64.b64decode(details + "=" * (-len(details) % 4), validate=True)
        infos = rpc_status_pb2.Status.FromString(raw).details
        stack = "\n".join(line for info in infos for line in _read_debug_info(info))
        return stack, next(filter(None, map(_read_retry_info, infos)), None)
    except (binascii.Error, DecodeError, ValueError):
        return "", None


def _read_debug_info(detail: Any) -> list[str]:
    info = rpc_status_pb2.DebugInfo()
    if not detail.Unpack(info):
        return []
    lines = [*info.stack_entries, info.detail] if info.detail else info.stack_entries
    return [line.decode("utf-8", "replace") for line in lines]


def _read_retry_info(detail: Any) -> timedelta | None:
    """Returns the time after which the function asks to be called again."""
    info = rpc_status_pb2.RetryInfo()
    return info.retry_delay.ToTimedelta() if detail.Unpack(info) else None
