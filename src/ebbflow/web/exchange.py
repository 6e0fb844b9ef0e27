"""A request and its answer: given as a whole, or written piece by piece as a stream.

An answer may be given at any time; it leaves when those before it on the connection have left. A
stream waits for a client that reads slowly, so it never holds more than the connection does. When
the client has gone, ``on_lost`` is called: nobody works on for it.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Mapping
from email.utils import formatdate
from http import HTTPStatus
from typing import Protocol

from ebbflow.web.refusal import Refusal

JSON = "application/json"


class Outlet(Protocol):
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
    has the header ``lines``. ``describe`` makes the body of a refusal, and ``on_lost`` is called
    when the client has gone before the answer was complete.
    """

    __slots__ = (
        "_has_begun", "_is_chunked", "_is_current", "_outlet", "_room", "_shows_body", "closes",
        "describe", "is_complete", "lines", "on_lost", "ready",
    )  # fmt: skip

    def __init__(self, outlet: Outlet, method: bytes = b"", is_current: bool = True) -> None:
        """``is_current`` if the client speaks HTTP 1.1, and so understands chunks."""
        self._outlet = outlet
        self._shows_body = method != b"HEAD"
        self._is_current = is_current
        self._is_chunked = self._has_begun = False
        self._room: asyncio.Future[None] | None = None
        self.ready = b""
        self.is_complete = False
        self.closes = False
        self.lines = b""
        self.describe: Callable[[Refusal], bytes] = describe_reason
        self.on_lost: Callable[[], object] | None = None

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
        self._outlet.flush()

    def refuse(self, refusal: Refusal) -> None:
        """Answers with the reason of a refusal."""
        self.closes |= refusal.status == HTTPStatus.INTERNAL_SERVER_ERROR
        self.respond(refusal.status, self.describe(refusal), refusal.headers)

    # --- piece by piece -------------------------------------------------------------------------

    def begin(self, status: int, headers: Mapping[str, str] | None, content_type: str) -> None:
        """Begins an answer whose length nobody knows: ``send`` and ``end`` follow."""
        self._has_begun = True
        self._is_chunked = self._is_current
        self.closes |= not self._is_current
        coding = b"transfer-encoding: chunked\r\n" if self._is_chunked else b""
        lines = self._head_lines(headers)
        self.ready = b"%b%b%b\r\n" % (_opening(status, content_type), lines, coding)
        self._outlet.flush()

    @property
    def has_room(self) -> bool:
        """True while the client keeps up with what is sent."""
        return self._outlet.has_room_for(self)

    def put(self, piece: bytes) -> None:
        """Sends a piece that is not empty, without waiting; only while there ``has_room``."""
        self.ready += b"%x\r\n%b\r\n" % (len(piece), piece) if self._is_chunked else piece
        self._outlet.flush()

    async def send(self, piece: bytes) -> None:
        """Sends a piece that is not empty, and waits until the client keeps up."""
        self.put(piece)
        while not self._outlet.has_room_for(self):
            self._room = asyncio.get_running_loop().create_future()
            await self._room

    def end(self) -> None:
        """Ends the answer that was begun."""
        if self._is_chunked:
            self.ready += b"0\r\n\r\n"
        self.is_complete = True
        self._outlet.flush()

    def fail(self, refusal: Refusal) -> None:
        """Refuses; an answer that has begun is cut off, so that nobody takes it for the whole."""
        if self._has_begun:
            self._outlet.abort()
        elif not self.is_complete:
            self.refuse(refusal)

    # --- as the connection sees it --------------------------------------------------------------

    def make_room(self) -> None:
        """Lets ``send`` go on."""
        if self._room is not None and not self._room.done():
            self._room.set_result(None)

    def lose(self) -> None:
        """Hears that the client has gone."""
        if self.on_lost is not None and not self.is_complete:
            self.on_lost()

    def _head_lines(self, headers: Mapping[str, str] | None) -> bytes:
        lines = self.lines
        if self.closes:
            lines += b"connection: close\r\n"
        if headers:
            lines += "".join(f"{name}: {text}\r\n" for name, text in headers.items()).encode()
        return lines


def describe_reason(refusal: Refusal) -> bytes:
    """Returns the body of a refusal as the HTTP source has it."""
    return json.dumps({"reason": refusal.reason}, separators=(",", ":")).encode()


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
