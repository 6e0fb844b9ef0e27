"""The NATS protocol, many messages at a time.

``BulkParser`` reads all that the socket has and splits it at once. Messages of a subscription that
wants them in bulk become one ``Parcel``: columns over the buffer that they arrived in, without an
object for each payload. Everything else is handled by nats-py. The order of arrival is kept within
a subscription, and relative to each control line of the server, such as a pong.
"""

from __future__ import annotations

import asyncio
import json
from array import array
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, count, repeat
from typing import Any, Protocol

import pyarrow as pa
from nats.errors import ProtocolError

_LINE_END = b"\r\n"
# The server's limit for a line is 4 KiB, but its own INFO line about a large cluster may be longer.
_LONGEST_LINE = 1024 * 1024
_VERSION = "NATS/1.0"
_EDGES = 3
_MSG, _HMSG = [b"MSG"], [b"HMSG"]


@dataclass(slots=True)
class Parcel:
    """Messages of one subscription that arrived together, in their order.

    ``edges`` has three offsets into the buffer for each message: the start of its headers, the
    start of its payload, which is the end of its headers, and the end of its payload.
    """

    buffer: bytes
    subjects: list[bytes] = field(default_factory=list)
    replies: list[bytes] = field(default_factory=list)
    edges: list[int] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.subjects)

    @classmethod
    def join(cls, parcels: Sequence[Parcel]) -> Parcel:
        """Returns the messages of several parcels as one."""
        if len(parcels) == 1:
            return parcels[0]
        joined, start = cls(b"".join([parcel.buffer for parcel in parcels])), 0
        for parcel in parcels:
            joined.subjects += parcel.subjects
            joined.replies += parcel.replies
            joined.edges += [start + edge for edge in parcel.edges]
            start += len(parcel.buffer)
        return joined

    def cut(self, first: int, end: int) -> Parcel:
        """Returns some of the messages, over the same buffer."""
        edges = self.edges[_EDGES * first : _EDGES * end]
        return Parcel(self.buffer, self.subjects[first:end], self.replies[first:end], edges)

    def pick(self, rows: Sequence[int]) -> Parcel:
        """Returns the messages in some rows, over the same buffer."""
        edges = [edge for row in rows for edge in self.edges[_EDGES * row : _EDGES * (row + 1)]]
        subjects = [self.subjects[row] for row in rows]
        return Parcel(self.buffer, subjects, [self.replies[row] for row in rows], edges)

    def block(self, row: int) -> bytes:
        """Returns the raw headers of a message; empty if it has none."""
        return self.buffer[self.edges[_EDGES * row] : self.edges[_EDGES * row + 1]]

    def headers(self, row: int) -> dict[str, str] | None:
        """Returns the headers of a message; ``None`` if it has none."""
        block = self.block(row)
        return read_headers(block) if block else None

    def rows_with_headers(self) -> list[int]:
        """Returns the rows of the messages that have headers."""
        pairs = zip(self.edges[::_EDGES], self.edges[1::_EDGES], strict=True)
        return [row for row, (start, end) in enumerate(pairs) if end > start]

    def payload(self, row: int) -> bytes:
        """Returns a copy of the payload of a message."""
        return self.buffer[self.edges[_EDGES * row + 1] : self.edges[_EDGES * row + 2]]

    def view(self, row: int) -> memoryview:
        """Returns the payload of a message without a copy; the view keeps the whole buffer."""
        start, end = self.edges[_EDGES * row + 1], self.edges[_EDGES * row + 2]
        return memoryview(self.buffer)[start:end]

    def sizes(self) -> list[int]:
        """Returns the sizes of the payloads."""
        pairs = zip(self.edges[1::_EDGES], self.edges[2::_EDGES], strict=True)
        return [end - start for start, end in pairs]

    def whole_sizes(self) -> list[int]:
        """Returns the sizes of the messages, with their subjects and headers."""
        edges = zip(self.subjects, self.edges[::_EDGES], self.edges[2::_EDGES], strict=True)
        return [len(subject) + end - start for subject, start, end in edges]

    def payloads(self) -> pa.BinaryArray:
        """Returns the payloads as a column, without an object for each."""
        # The buffer is one column of pieces: headers, payload, the bytes between two messages.
        pieces = max(0, _EDGES * len(self) - 1)
        offsets = pa.py_buffer(array("i", self.edges or (0,)))
        buffers = [None, offsets, pa.py_buffer(self.buffer)]
        column = pa.BinaryArray.from_buffers(pa.binary(), pieces, buffers)
        return column.take(pa.array(range(1, pieces, _EDGES), pa.int32()))


def read_headers(block: bytes) -> dict[str, str]:
    """Returns the headers of a message; a server's status has ``Status`` and ``Description``.

    Of several headers with the same name the first counts.
    """
    lines = block.decode("utf-8", "surrogateescape").split("\r\n")
    headers: dict[str, str] = {}
    for line in lines[1:]:
        name, colon, value = line.partition(":")
        if colon and name:
            headers.setdefault(name, value.strip())
    code, _, text = lines[0].removeprefix(_VERSION).strip().partition(" ")
    status = {"Status": code, "Description": text.strip()}
    return headers | {name: value for name, value in status.items() if value}


TakeParcel = Callable[[Parcel], None]


class Owner(Protocol):
    """The client that a parser works for, with nats-py's method names."""

    def _process_msg(
        self, sid: int, subject: bytes, reply: bytes, data: bytes, headers: bytes
    ) -> Awaitable[None]: ...

    def _process_err(self, err_msg: str) -> Awaitable[None]: ...

    def _process_ping(self) -> Awaitable[None]: ...

    def _process_pong(self) -> Awaitable[None]: ...

    def _process_info(self, info: dict[str, Any]) -> Awaitable[None]: ...


class BulkParser:
    """Replaces nats-py's parser. ``in_bulk`` maps subscriptions to the takers of their parcels."""

    def __init__(self, owner: Owner) -> None:
        self.in_bulk: dict[bytes, TakeParcel] = {}
        self.line = b""
        """The control line of the server that is being processed, without its line end."""
        self._owner = owner
        self.reset()

    def reset(self) -> None:
        """Discards incomplete data: another connection begins."""
        self._pieces: list[bytes] = []
        self._size = self._needed = 0

    async def parse(self, data: bytes = b"") -> None:
        """Processes everything that is complete; the rest waits for more data."""
        if (buffer := self._join_pieces(data)) is None:
            return
        end = 0
        while True:
            end = self._take_messages(buffer, end)
            if self._needed:
                break
            start, end = end, buffer.find(_LINE_END, end) + len(_LINE_END)
            line = buffer[start : end - len(_LINE_END)]
            if line.split(None, 1)[:1] in (_MSG, _HMSG):
                end = await self._deliver(buffer, line, end)
            else:
                self.line = line
                await self._obey(line)
        self._keep(buffer[end:])

    def parse_at_once(self, data: bytes) -> bytes:
        """Processes data that needs no waiting; returns the rest, which is for ``parse``.

        Usually there is no rest: messages in bulk are delivered, and an incomplete message is kept.
        Anything else is returned with all data after it, including data that is not protocol.
        """
        if (buffer := self._join_pieces(data)) is None:
            return b""
        rest = buffer[self._take_messages(buffer, 0) :]
        if not self._needed or self._never_ends(rest):
            self._needed = 0
            return rest
        self._keep(rest)
        return b""

    def _join_pieces(self, data: bytes) -> bytes | None:
        """Returns all unprocessed data; ``None`` while a message is not complete."""
        self._pieces.append(data)
        self._size += len(data)
        # A large message is joined once, when all of it has arrived.
        if self._size < self._needed:
            return None
        buffer = data if len(self._pieces) == 1 else b"".join(self._pieces)
        self.reset()
        return buffer

    def _keep(self, rest: bytes) -> None:
        if self._never_ends(rest):
            raise ProtocolError("nats: a line does not end")
        self._pieces, self._size = ([rest] if rest else []), len(rest)

    def _never_ends(self, rest: bytes) -> bool:
        return len(rest) > _LONGEST_LINE and self._needed == len(rest) + 1 and _LINE_END not in rest

    def _take_messages(self, buffer: bytes, start: int) -> int:
        """Delivers the messages in bulk; returns where they end.

        If ``_needed`` is set, an incomplete line or message begins there, else something else.
        """
        parcels: dict[bytes, Parcel] = {}
        end = self._cut(buffer, start, parcels)
        for sid, parcel in parcels.items():
            self._deliver_parcel(sid, parcel)
        return end

    def _deliver_parcel(self, sid: bytes, parcel: Parcel) -> None:
        take = self.in_bulk.get(sid)
        try:
            if take is not None:  # an earlier parcel may have ended the subscription
                take(parcel)
        except Exception as error:
            # Raised any further it would stop the reading for the whole connection.
            context = {"message": "a batch of messages could not be handled", "exception": error}
            asyncio.get_running_loop().call_exception_handler(context)

    def _cut(self, buffer: bytes, start: int, parcels: dict[bytes, Parcel]) -> int:
        # Every message of the data path passes here: hence the local names and the plain loop.
        find, size, in_bulk = buffer.find, len(buffer), self.in_bulk
        sid, parcel = b"", Parcel(buffer)
        while True:
            line_end = find(_LINE_END, start)
            if line_end < 0:
                self._needed = size - start + 1
                return start
            parts = buffer[start:line_end].split()
            body = payload = line_end + 2
            try:
                if parts[:1] == _MSG:
                    has_reply = len(parts) == 5
                elif parts[:1] == _HMSG:
                    has_reply = len(parts) == 6
                    payload += int(parts[-2])
                else:
                    return start
                end = body + int(parts[-1])
            except ValueError:
                return start  # ``_deliver`` raises the error
            if end + 2 > size:
                self._needed = end + 2 - start
                return start
            if parts[2] != sid:
                sid = parts[2]
                if sid not in in_bulk:
                    return start
                parcel = parcels.setdefault(sid, Parcel(buffer))
            start = end + 2
            parcel.subjects.append(parts[1])
            parcel.replies.append(parts[3] if has_reply else b"")
            parcel.edges += (body, payload, end)

    async def _deliver(self, buffer: bytes, line: bytes, body: int) -> int:
        """Passes a message to nats-py, which delivers it; returns where it ends."""
        parts = line.split()
        has_headers = parts[:1] == _HMSG
        try:
            payload = body + (int(parts[-2]) if has_headers else 0)
            end, sid = body + int(parts[-1]), int(parts[2])
        except ValueError:
            raise ProtocolError("nats: malformed MSG") from None
        reply = parts[3] if len(parts) == 5 + has_headers else b""
        block, data = buffer[body:payload], buffer[payload:end]
        await self._owner._process_msg(sid, parts[1], reply, data, block)
        return end + len(_LINE_END)

    async def _obey(self, line: bytes) -> None:
        """Handles a control line of the server."""
        word, _, rest = line.partition(b" ")
        match word.upper():
            case b"PING":
                await self._owner._process_ping()
            case b"PONG":
                await self._owner._process_pong()
            case b"+OK":
                return
            case b"-ERR":
                await self._owner._process_err(rest.decode("utf-8", "replace").strip().lower())
            case b"INFO":
                await self._owner._process_info(json.loads(rest))
            case _:
                raise ProtocolError("nats: unknown protocol")


@dataclass(frozen=True, slots=True)
class Publishes:
    """Many publishes, ready for the wire except for their reply subjects.

    ``headers`` are encoded by ``write_headers``; empty for a message without headers.
    """

    subjects: Sequence[bytes]
    headers: Sequence[bytes]
    payloads: Sequence[bytes]

    @classmethod
    def of(cls, messages: Iterable[tuple[str, Mapping[str, str] | None, bytes]]) -> Publishes:
        """Encodes messages, each a subject, its headers and a payload."""
        rows = [(s.encode(), write_headers(headers or {}), data) for s, headers, data in messages]
        subjects, headers, payloads = zip(*rows, strict=True) if rows else ((), (), ())
        return cls(subjects, headers, payloads)

    @classmethod
    def plain(cls, subjects: Sequence[bytes], payloads: Sequence[bytes]) -> Publishes:
        """Returns messages without headers."""
        return cls(subjects, [b""] * len(subjects), payloads)

    def __len__(self) -> int:
        return len(self.subjects)

    def pick(self, rows: Sequence[int]) -> Publishes:
        """Returns some of the rows."""
        columns = (self.subjects, self.headers, self.payloads)
        return Publishes(*([column[row] for row in rows] for column in columns))

    def encode(self, inbox: bytes, first: int) -> tuple[memoryview, list[int]]:
        """Returns one buffer with all rows, and where each begins and the last one ends.

        Answers go to the inbox followed by a number, which is ``first`` for the first row.
        """
        lines = self._lines(b" %b%d" % (inbox, n) for n in count(first))
        return memoryview(b"".join(lines)), list(accumulate(map(len, lines), initial=0))

    def encode_unanswered(self) -> bytes:
        """Returns one buffer with all rows, without reply subjects."""
        return b"".join(self._lines(repeat(b"")))

    def _lines(self, replies: Iterable[bytes]) -> list[bytes]:
        rows = zip(self.subjects, replies, self.headers, self.payloads, strict=False)
        return [encode_publish(*row) for row in rows]


def encode_publish(subject: bytes, reply: bytes, headers: bytes, payload: bytes) -> bytes:
    """Returns one publish for the wire. ``reply`` is empty, or begins with a space."""
    if headers:
        size = len(headers)
        parts = (subject, reply, size, size + len(payload), headers, payload)
        return b"HPUB %b%b %d %d\r\n%b%b\r\n" % parts
    return b"PUB %b%b %d\r\n%b\r\n" % (subject, reply, len(payload), payload)


def write_headers(headers: Mapping[str, str]) -> bytes:
    """Returns headers encoded for the wire, with a final empty line; empty for no headers.

    A line break in a value becomes a space: it would begin another header.
    """
    if not headers:
        return b""
    lines = "".join([f"{name}: {value}\r\n" for name, value in headers.items()])
    if lines.count("\n") + lines.count("\r") > 2 * len(headers):
        return write_headers({n: " ".join(value.splitlines()) for n, value in headers.items()})
    return f"{_VERSION}\r\n{lines}\r\n".encode()
