"""The interface between the web server and its applications: requests, answers, refusals.

Nothing here depends on how a connection is read: the HTTP parser passes on an ``HttpRequest`` with
an ``Exchange``, gets a ``Receiver`` for them, and feeds it the body.

An answer is sent as a whole, or piece by piece as a stream, at any time. It is written after the
earlier answers on the connection. A stream waits for a client that reads slowly, so it never
buffers more than the connection does. When the client disconnects, ``on_disconnect`` is called to
cancel the work for it.

A ``Refusal`` rejects a request. Its sender may try again after a 429 or a 503; all other refusals
are about the request itself.
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
    """Returns a value as compact JSON."""
    return json.dumps(value, separators=(",", ":")).encode()


# --- requests -----------------------------------------------------------------------------------


class HttpRequest:
    """The head of a request. Header names are in lower case.

    ``client`` is the client's address without the port. ``names`` are the parts of the path that
    the template of its route names. ``body`` is set by applications that read it as a whole.
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
        """Returns the first header of a lower-case name; empty if there is none."""
        return next((text for key, text in self.headers if key == name), b"")

    @cached_property
    def query(self) -> Mapping[str, str]:
        """The query parameters; raises ``Refusal`` for a duplicate."""
        text = self.target.partition(b"?")[2].decode("latin-1")
        pairs = parse_qsl(text, keep_blank_values=True)
        query = dict(pairs)
        if len(query) < len(pairs):
            raise Refusal(400, "duplicate query parameter")
        return query

    def json(self) -> dict[str, Any]:
        """Returns the body, a JSON object; an empty body is an object without fields."""
        return _read_object(self.body) if self.body.strip() else {}

    def form(self) -> dict[str, Any]:
        """Returns the fields of a form that a browser sent."""
        return dict(parse_qsl(self.body.decode("latin-1"), keep_blank_values=True))


def _read_object(body: bytes) -> dict[str, Any]:
    try:
        value = json.loads(body)
        # JSON allows half of a surrogate pair, which cannot be encoded as UTF-8.
        json.dumps(value, ensure_ascii=False).encode()
    except (ValueError, RecursionError):
        raise Refusal(400, "the body is not JSON") from None
    if not isinstance(value, dict):
        raise Refusal(400, "the body must be a JSON object")
    return value


class Receiver(Protocol):
    """Receives the body of one request. ``feed`` and ``finish`` may raise ``Refusal``."""

    def feed(self, piece: bytes) -> None:
        """Receives the next piece of the body."""

    def finish(self) -> None:
        """Called when the body is complete. Has to make sure that the request is answered."""

    def abandon(self) -> None:
        """Called when the body will not be completed. Never called after ``finish``."""


Opener = Callable[["HttpRequest", "Exchange"], Receiver]
"""Returns the receiver of a request's body, or raises ``Refusal``."""


# --- refusals -----------------------------------------------------------------------------------


class Refusal(Exception):
    """Rejects a request, with a reason for its sender.

    ``retry`` is when to try again, in seconds. ``headers`` are added to the answer. ``next_step``
    tells people what to do about it.
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
    """Returns a 429: a limit is reached, and the sender should try again."""
    return Refusal(429, reason, retry=_RETRY_AFTER)


def unavailable(reason: str) -> Refusal:
    """Returns a 503: the server cannot do it at the moment, and the sender should try again."""
    return Refusal(503, reason, retry=_RETRY_AFTER)


def refusal_of(error: Exception) -> Refusal:
    """Returns the refusal to send for an error of the client or of the server."""
    if isinstance(error, Refusal):
        return error
    return Refusal(500, f"the server failed: {type(error).__name__}")


def reason_body(refusal: Refusal) -> bytes:
    """Returns the body of a refusal in the format of the HTTP source."""
    return encode_json({"reason": refusal.reason})


# --- answers ------------------------------------------------------------------------------------


class ResponseWriter(Protocol):
    """The connection that an answer is written to."""

    def flush(self) -> None:
        """Writes the answers that are ready, in order."""

    def has_room_for(self, exchange: Exchange) -> bool:
        """Returns whether it is the exchange's turn and the client keeps up."""

    def abort(self) -> None:
        """Closes the connection at once."""


class Exchange:
    """A request and its answer, which begins once, at any time.

    ``ready`` has the bytes to write, and ``is_complete`` is true if none will follow. Every answer
    has the lines of ``extra_headers``. ``error_body`` makes the body of a refusal.
    ``on_disconnect`` is called if the client disconnects before the answer is complete.
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
        """``is_current`` is true if the client speaks HTTP 1.1, which supports chunks."""
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
        """Sends a complete answer."""
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
        """Answers with a refusal."""
        self.closes |= refusal.status == HTTPStatus.INTERNAL_SERVER_ERROR
        self.respond(refusal.status, self.error_body(refusal), refusal.headers)

    # --- piece by piece -------------------------------------------------------------------------

    def begin(self, status: int, headers: Mapping[str, str] | None, content_type: str) -> None:
        """Begins an answer of unknown length: ``send`` and ``end`` follow."""
        self._has_begun = True
        self._is_chunked = self._is_current
        self.closes |= not self._is_current
        coding = b"transfer-encoding: chunked\r\n" if self._is_chunked else b""
        lines = self._head_lines(headers)
        self.ready = b"%b%b%b\r\n" % (_opening(status, content_type), lines, coding)
        self._writer.flush()

    @property
    def has_room(self) -> bool:
        """True while the client keeps up with the answer."""
        return self._writer.has_room_for(self)

    def put(self, piece: bytes) -> None:
        """Sends a non-empty piece without waiting. Call it only while ``has_room`` is true."""
        self.ready += b"%x\r\n%b\r\n" % (len(piece), piece) if self._is_chunked else piece
        self._writer.flush()

    async def send(self, piece: bytes) -> None:
        """Sends a non-empty piece, and waits until the client keeps up."""
        self.put(piece)
        while not self._writer.has_room_for(self):
            self._room = asyncio.get_running_loop().create_future()
            await self._room

    def end(self) -> None:
        """Ends an answer that was begun."""
        if self._is_chunked:
            self.ready += b"0\r\n\r\n"
        self.is_complete = True
        self._writer.flush()

    def fail(self, refusal: Refusal) -> None:
        """Refuses the request. An answer that has begun is aborted, so that it looks incomplete."""
        if self._has_begun:
            self._writer.abort()
        elif not self.is_complete:
            self.refuse(refusal)

    # --- called by the connection ---------------------------------------------------------------

    def make_room(self) -> None:
        """Lets ``send`` continue."""
        if self._room is not None and not self._room.done():
            self._room.set_result(None)

    def disconnect(self) -> None:
        """Called when the client has disconnected."""
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
    """Returns the first lines of answers with a status and type, cached for a second."""
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
