"""What a web server and those who answer have between them: a request, its answer, a refusal.

Nothing here knows how a connection is read: whoever parses HTTP hands on an ``HttpRequest`` with an
``Exchange``, and gives the body to the ``Receiver`` that it gets for them.

An answer is given as a whole, or written piece by piece as a stream, at any time; it leaves when
those before it on the connection have left. A stream waits for a client that reads slowly, so it
never holds more than the connection does. When the client disconnects, ``on_disconnect`` is called:
no one works on for it.

A request that is not taken is a ``Refusal``. Its sender may try again after a 429 and after a 503;
all other refusals are about the request itself.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Mapping, Sequence
from email.utils import formatdate
from functools import cached_property
from http import HTTPStatus
from typing import Any, Protocol
from urllib.parse import parse_qsl

JSON = "application/json"
_RETRY_AFTER = 1
_NO_NAMES: Mapping[str, str] = {}


def encode_json(value: Any) -> bytes:
    """Returns a value as JSON in few bytes."""
    return json.dumps(value, separators=(",", ":")).encode()


# --- requests -----------------------------------------------------------------------------------


class HttpRequest:
    """A request: its head, from when that has arrived. The names of headers are in lower case.

    ``client`` is the address that it came from, without the port. ``names`` are the parts of the
    path that the template of its route names. ``body`` is there for those who have taken it as a
    whole.
    """

    def __init__(
        self,
        method: bytes,
        target: bytes,
        headers: Sequence[tuple[bytes, bytes]],
        client: str = "",
    ) -> None:
        self.method = method
        self.target = target
        self.headers = headers
        self.client = client
        self.names = _NO_NAMES
        self.body = b""

    def header(self, name: bytes) -> bytes:
        """Returns the first header of this name, which is in lower case; empty if there is none."""
        return next((text for key, text in self.headers if key == name), b"")

    @cached_property
    def query(self) -> Mapping[str, str]:
        """The parameters of the address; ``Refusal`` if there is one twice."""
        text = self.target.partition(b"?")[2].decode("latin-1")
        pairs = parse_qsl(text, keep_blank_values=True)
        query = dict(pairs)
        if len(query) < len(pairs):
            raise Refusal(400, "duplicate query parameter")
        return query

    def json(self) -> dict[str, Any]:
        """Returns a body that is a JSON object; an empty one is an object without fields."""
        return _read_object(self.body) if self.body.strip() else {}

    def form(self) -> dict[str, Any]:
        """Returns the fields of a form that a browser has sent."""
        return dict(parse_qsl(self.body.decode("latin-1"), keep_blank_values=True))


def _read_object(body: bytes) -> dict[str, Any]:
    try:
        value = json.loads(body)
        # A half of a surrogate pair is text for JSON, and for no one else.
        json.dumps(value, ensure_ascii=False).encode()
    except (ValueError, RecursionError):
        raise Refusal(400, "the body is not JSON") from None
    if not isinstance(value, dict):
        raise Refusal(400, "the body must be a JSON object")
    return value


class Receiver(Protocol):
    """Takes the body of one request. ``feed`` and ``finish`` may raise ``Refusal``."""

    def feed(self, piece: bytes) -> None:
        """Takes the next piece of the body."""

    def finish(self) -> None:
        """Is told that the body is complete; sees to it that the request is answered."""

    def abandon(self) -> None:
        """Is told that the body will not be completed; never called behind ``finish``."""


Opener = Callable[["HttpRequest", "Exchange"], Receiver]
"""Takes the head of a request and returns who takes its body; ``Refusal`` if no one does."""


# --- refusals -----------------------------------------------------------------------------------


class Refusal(Exception):
    """A request that is not taken, and what its sender is told.

    ``retry`` is when to try again, in seconds. ``headers`` go with the answer. ``next_step`` is for
    people: what to do about it.
    """

    def __init__(
        self,
        status: int,
        reason: str,
        retry: int | None = None,
        headers: Mapping[str, str] | None = None,
        next_step: str = "",
    ) -> None:
        super().__init__(status, reason)
        self.status = status
        self.reason = reason
        self.next_step = next_step
        self.headers = dict(headers or {})
        if retry is not None:
            self.headers["retry-after"] = str(retry)


def too_many(reason: str) -> Refusal:
    """Returns a 429: there is no room at the moment, and the sender is to try again."""
    return Refusal(429, reason, retry=_RETRY_AFTER)


def unavailable(reason: str) -> Refusal:
    """Returns a 503: the server cannot do it at the moment, and the sender is to try again."""
    return Refusal(503, reason, retry=_RETRY_AFTER)


def refusal_of(error: Exception) -> Refusal:
    """Returns what the client is told about an error, be it its own or the server's."""
    if isinstance(error, Refusal):
        return error
    return Refusal(500, f"the server failed: {type(error).__name__}")


def reason_body(refusal: Refusal) -> bytes:
    """Returns the body of a refusal as the HTTP source has it."""
    return encode_json({"reason": refusal.reason})


# --- answers ------------------------------------------------------------------------------------


class ResponseWriter(Protocol):
    """The connection that an answer leaves on."""

    def flush(self) -> None:
        """Writes what is there and whose turn it is."""

    def has_room_for(self, exchange: Exchange) -> bool:
        """Returns whether it is the exchange's turn and its client keeps up."""

    def abort(self) -> None:
        """Closes the connection at once."""


class Exchange:
    """A request and its answer, which begins once, at any time.

    ``ready`` is what has to be written, ``is_complete`` whether nothing follows it. Every answer
    has the lines of ``extra_headers``. ``error_body`` makes the body of a refusal, and
    ``on_disconnect`` is called when the client has gone before the answer was complete.
    """

    __slots__ = (
        "_has_begun",
        "_is_chunked",
        "_is_current",
        "_room",
        "_shows_body",
        "_writer",
        "closes",
        "error_body",
        "extra_headers",
        "is_complete",
        "on_disconnect",
        "ready",
    )  # fmt: skip

    def __init__(
        self, writer: ResponseWriter, method: bytes = b"", is_current: bool = True
    ) -> None:
        """``is_current`` if the client speaks HTTP 1.1, and so understands chunks."""
        self._writer = writer
        self._shows_body = method != b"HEAD"
        self._is_current = is_current
        self._is_chunked = self._has_begun = False
        self._room: asyncio.Future[None] | None = None
        self.ready = b""
        self.is_complete = False
        self.closes = False
        self.extra_headers = b""
        self.error_body: Callable[[Refusal], bytes] = reason_body
        self.on_disconnect: Callable[[], object] | None = None

    # --- as a whole -----------------------------------------------------------------------------

    def respond(
        self,
        status: int,
        body: bytes,
        headers: Mapping[str, str] | None = None,
        content_type: str = JSON,
    ) -> None:
        """Answers."""
        lines = self._head_lines(headers)
        if status in (HTTPStatus.NO_CONTENT, HTTPStatus.NOT_MODIFIED):
            self.ready = b"%b%b\r\n" % (_opening(status, ""), lines)
        else:
            shown = body if self._shows_body else b""
            opening = _opening(status, content_type)
            self.ready = b"%b%bcontent-length: %d\r\n\r\n%b" % (opening, lines, len(body), shown)
        self.is_complete = True
        self._writer.flush()

    def refuse(self, refusal: Refusal) -> None:
        """Answers with the reason of a refusal."""
        self.closes |= refusal.status == HTTPStatus.INTERNAL_SERVER_ERROR
        self.respond(refusal.status, self.error_body(refusal), refusal.headers)

    # --- piece by piece -------------------------------------------------------------------------

    def begin(self, status: int, headers: Mapping[str, str] | None, content_type: str) -> None:
        """Begins an answer whose length no one knows: ``send`` and ``end`` follow."""
        self._has_begun = True
        self._is_chunked = self._is_current
        self.closes |= not self._is_current
        coding = b"transfer-encoding: chunked\r\n" if self._is_chunked else b""
        lines = self._head_lines(headers)
        self.ready = b"%b%b%b\r\n" % (_opening(status, content_type), lines, coding)
        self._writer.flush()

    @property
    def has_room(self) -> bool:
        """True while the client keeps up with what is sent."""
        return self._writer.has_room_for(self)

    def put(self, piece: bytes) -> None:
        """Sends a piece that is not empty, without waiting; only while there ``has_room``."""
        self.ready += b"%x\r\n%b\r\n" % (len(piece), piece) if self._is_chunked else piece
        self._writer.flush()

    async def send(self, piece: bytes) -> None:
        """Sends a piece that is not empty, and waits until the client keeps up."""
        self.put(piece)
        while not self._writer.has_room_for(self):
            self._room = asyncio.get_running_loop().create_future()
            await self._room

    def end(self) -> None:
        """Ends the answer that was begun."""
        if self._is_chunked:
            self.ready += b"0\r\n\r\n"
        self.is_complete = True
        self._writer.flush()

    def fail(self, refusal: Refusal) -> None:
        """Refuses; an answer that has begun is cut off, so that no one takes it for the whole."""
        if self._has_begun:
            self._writer.abort()
        elif not self.is_complete:
            self.refuse(refusal)

    # --- as the connection sees it --------------------------------------------------------------

    def make_room(self) -> None:
        """Lets ``send`` continue."""
        if self._room is not None and not self._room.done():
            self._room.set_result(None)

    def disconnect(self) -> None:
        """Hears that the client has gone."""
        if self.on_disconnect is not None and not self.is_complete:
            self.on_disconnect()

    def _head_lines(self, headers: Mapping[str, str] | None) -> bytes:
        lines = self.extra_headers
        if self.closes:
            lines += b"connection: close\r\n"
        if headers:
            lines += "".join(f"{name}: {text}\r\n" for name, text in headers.items()).encode()
        return lines


_openings: dict[tuple[int, str], tuple[int, bytes]] = {}


def _opening(status: int, content_type: str) -> bytes:
    """Returns the lines that answers of one status and type begin with in the same second."""
    now = int(time.time())
    second, lines = _openings.get((status, content_type), (0, b""))
    if second != now:
        text = (
            f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\n"
            f"date: {formatdate(now, usegmt=True)}\r\n"
        )
        if content_type:
            text += f"content-type: {content_type}\r\n"
        lines = text.encode()
        _openings[status, content_type] = now, lines
    return lines
