"""One client's connection to the web server: reads its requests, writes their answers in order.

httptools parses, and this module adds the limits that httptools lacks. A head is limited in bytes
and seconds, a body in seconds. The bytes between two pieces of a body or after the last one (chunk
sizes, their extensions and trailers) are limited like a head; trailers are ignored. An idle
connection is closed after a while, and so is one whose client reads almost nothing of its answers.
A request whose body could end in two places gets 400 and its connection is closed: a proxy that
parses it differently could have hidden another request in it.

A request is passed on when its head is complete, then piece by piece, without its own task. It may
be answered at any later time. Pipelined requests are handled concurrently, and their answers are
sent in the order of the requests.
"""

from __future__ import annotations

import asyncio
import enum
from collections import deque
from typing import Protocol

import httptools

from ebbflow.web.exchange import Exchange, HttpRequest, Receiver, Refusal, refusal_of

_LARGEST_HEAD = 32 * 1024
_STEP = 4 * 1024
_KEEP_ALIVE = 15.0
_DISCARDING = 1.0
_MOST_UNANSWERED = 64
_LEAST_TAKEN = 16 * 1024
_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
_ABOUT_THE_BODY = frozenset((b"host", b"transfer-encoding", b"expect"))


class Host(Protocol):
    """The server of a connection. Head and body each have ``read_timeout`` seconds."""

    read_timeout: float
    most_connections: int
    connections: set[HttpConnection]

    def open(self, request: HttpRequest, exchange: Exchange) -> Receiver:
        """Returns the receiver of the body; raises ``Refusal`` if there is none."""


class Phase(enum.Enum):
    """The part of a request that a connection reads next."""

    BETWEEN = enum.auto()
    HEAD = enum.auto()
    BODY = enum.auto()


class HttpConnection(asyncio.Protocol):
    """A connection, on the loop of its host, which calls ``check_time`` periodically."""

    patience = 15.0
    """A client that reads almost nothing for this many seconds is disconnected."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport
        self._client = ""
        self._parser = httptools.HttpRequestParser(self)
        self._phase = Phase.BETWEEN
        self._deadline: float | None = None
        self._fruitless = 0
        self._target = b""
        self._headers: list[tuple[bytes, bytes]] = []
        self._about_the_body: list[tuple[bytes, bytes]] = []
        self._exchange: Exchange | None = None
        self._receiver: Receiver | None = None
        self._refusal: Refusal | None = None
        self._unanswered: deque[Exchange] = deque()
        self._reads = True
        self._untaken: int | None = None
        self._give_up = 0.0
        self._is_used = self._is_last = self._is_lost = self._is_clogged = False

    # --- called by the transport ----------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Starts waiting for a request."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._client = str((transport.get_extra_info("peername") or ("",))[0])
        self._host.connections.add(self)
        self._set_deadline(self._host.read_timeout)
        if len(self._host.connections) > self._host.most_connections:
            self._end(Refusal(503, "there are too many connections"))
            transport.close()

    def data_received(self, data: bytes) -> None:
        """Reads the data in small steps, so that the limits apply between them."""
        view = memoryview(data)
        for start in range(0, len(data), _STEP):
            if self._reads:
                self._read(view[start : start + _STEP])
        if self._deadline is None and self._reads and self._phase is not Phase.BETWEEN:
            self._set_deadline(self._host.read_timeout)
        if len(self._unanswered) > _MOST_UNANSWERED:
            self._balance()

    def _read(self, step: memoryview) -> None:
        """Reads a few bytes. Refuses too many without a complete head or a piece of a body."""
        self._fruitless += len(step)
        rest: memoryview | bytes = step
        while rest and self._reads:
            rest = self._parse(rest)
        if self._fruitless > _LARGEST_HEAD:
            self._end(_not_http())

    def _parse(self, data: memoryview | bytes) -> bytes:
        """Feeds the parser; returns the data to feed next if it stopped at an upgrade."""
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            return self._without_upgrade(bytes(data[upgrade.args[0] :]))
        except httptools.HttpParserError:
            self._end(_not_http())
        return b""

    def _without_upgrade(self, rest: bytes) -> bytes:
        """Returns a request and the ``rest`` without its upgrade to another protocol.

        Otherwise the parser would treat the body as data of that protocol.
        """
        method = self._parser.get_method()
        if method == b"CONNECT":
            self._end(Refusal(404, "Not Found"))
            return b""
        version = self._parser.get_http_version().encode()
        headers = [pair for pair in self._headers if pair[0] != b"upgrade"]
        lines = [b"%b %b HTTP/%b" % (method, self._target, version)]
        lines += [b"%b: %b" % pair for pair in headers]
        self._parser = httptools.HttpRequestParser(self)
        return b"\r\n".join([*lines, b"\r\n"]) + rest

    def eof_received(self) -> None:
        """Closes the connection: a client that stops sending has usually gone."""

    def connection_lost(self, exc: Exception | None) -> None:
        """Abandons the current request, and breaks the reference cycles of this connection.

        Under attack, memory that only the garbage collector frees would add up.
        """
        self._is_lost = True
        self._reads = False
        self._host.connections.discard(self)
        self._leave_receiver()
        for exchange in self._unanswered:
            exchange.disconnect()
        self._unanswered.clear()
        self._exchange = None
        del self._parser

    def pause_writing(self) -> None:
        """Stops reading from a client that does not read its answers."""
        self._is_clogged = True
        self._balance()

    def resume_writing(self) -> None:
        """Continues reading, and lets a stream continue."""
        self._is_clogged = False
        self._untaken = None
        self._balance()
        if self._unanswered:
            self._unanswered[0].make_room()

    def _balance(self) -> None:
        if self._is_clogged or len(self._unanswered) > _MOST_UNANSWERED:
            self._transport.pause_reading()
        else:
            self._transport.resume_reading()

    # --- called by the parser -------------------------------------------------------------------

    def on_message_begin(self) -> None:
        """Starts a head."""
        self._phase = Phase.HEAD
        self._deadline = None
        self._target = b""
        self._headers = []
        self._about_the_body = []

    def on_url(self, target: bytes) -> None:
        """Adds a piece of the target."""
        self._target += target

    def on_header(self, name: bytes, value: bytes) -> None:
        """Adds a header; trailers after a body are ignored."""
        if self._phase is Phase.BODY:
            return
        header = name.lower(), value
        self._headers.append(header)
        if header[0] in _ABOUT_THE_BODY:
            self._about_the_body.append(header)

    def on_headers_complete(self) -> None:
        """Passes the request on. The parser reports an exception here as a bad request."""
        if not self._reads or self._parser.should_upgrade():
            return
        self._check_framing()
        self._phase = Phase.BODY
        self._deadline = None
        self._fruitless = 0
        request = HttpRequest(self._parser.get_method(), self._target, self._headers, self._client)
        is_current = self._parser.get_http_version() == "1.1"
        exchange = self._exchange = Exchange(self, request.method, is_current)
        exchange.closes = not self._parser.should_keep_alive()
        self._unanswered.append(exchange)
        try:
            self._receiver = self._host.open(request, exchange)
        except Exception as error:
            self._refuse(refusal_of(error))
        if any(name == b"expect" for name, _ in self._about_the_body):
            self._answer_expectation(exchange)

    def _check_framing(self) -> None:
        """Raises ``ValueError`` for a body whose end a proxy may see elsewhere."""
        is_current = self._parser.get_http_version() == "1.1"
        headers = self._about_the_body
        if is_current and len(headers) == 1 and headers[0][0] == b"host":
            return
        hosts = [text for name, text in headers if name == b"host"]
        codings = [text.lower() for name, text in headers if name == b"transfer-encoding"]
        if (is_current and len(hosts) != 1) or (
            codings and not (is_current and codings == [b"chunked"])
        ):
            raise ValueError("a proxy may see the end of the body elsewhere")

    def _answer_expectation(self, exchange: Exchange) -> None:
        """Answers ``Expect: 100-continue``, which asks whether to send the body."""
        if self._refusal is not None:
            self._end(self._refusal)
        elif self._unanswered[0] is exchange:
            self._transport.write(_CONTINUE)

    def on_body(self, piece: bytes) -> None:
        """Passes a piece of the body on."""
        self._fruitless = 0
        if self._receiver is not None:
            try:
                self._receiver.feed(piece)
            except Exception as error:
                self._refuse(refusal_of(error))

    def on_message_complete(self) -> None:
        """Finishes the request."""
        exchange, receiver, refusal = self._exchange, self._receiver, self._refusal
        if exchange is None or not self._reads:
            return
        self._phase = Phase.BETWEEN
        self._deadline = None
        self._fruitless = 0
        self._is_used = True
        self._reads = not exchange.closes
        self._exchange = self._receiver = self._refusal = None
        if receiver is not None:
            try:
                receiver.finish()
            except Exception as error:
                refusal = refusal_of(error)
        if refusal is not None:
            exchange.refuse(refusal)

    def _refuse(self, refusal: Refusal) -> None:
        """Discards the rest of the body for a moment, then answers.

        An answer to a client that is still sending may get lost.
        """
        self._leave_receiver()
        self._refusal = refusal
        self._set_deadline(_DISCARDING)

    def _leave_receiver(self) -> None:
        if self._receiver is not None:
            self._receiver.abandon()
            self._receiver = None

    # --- answers and ends -----------------------------------------------------------------------

    def flush(self) -> None:
        """Writes the answers that are ready, in order."""
        waiting = self._unanswered
        while waiting and not self._is_lost:
            exchange = waiting[0]
            if exchange.ready:
                self._transport.write(exchange.ready)
                exchange.ready = b""
            if not exchange.is_complete:
                exchange.make_room()
                return
            waiting.popleft()
            if exchange.closes or (self._is_last and not waiting):
                self._close()
                return
            if len(waiting) == _MOST_UNANSWERED:
                self._balance()
        if not waiting and self._phase is Phase.BETWEEN:
            self._set_deadline(_KEEP_ALIVE)

    def has_room_for(self, exchange: Exchange) -> bool:
        """Returns whether it is the exchange's turn and the client keeps up."""
        return not self._is_clogged and bool(self._unanswered) and self._unanswered[0] is exchange

    def check_time(self, now: float) -> None:
        """Ends a request or an answer that takes too long."""
        if self._is_clogged or self._transport.is_closing():
            self._check_taking(now)
        elif self._deadline is not None and now >= self._deadline:
            self._end_late()

    def _end_late(self) -> None:
        within = self._host.read_timeout
        if self._refusal is not None:
            self._end(self._refusal)
        elif self._phase is Phase.BODY:
            self._end(Refusal(408, f"the body did not arrive within {within:g} s"))
        elif self._phase is Phase.HEAD or not self._is_used:
            self._end(Refusal(408, f"no request arrived within {within:g} s"))
        else:
            self._transport.close()

    def _check_taking(self, now: float) -> None:
        """Disconnects a client that reads almost nothing, because its answers use memory here."""
        untaken = self._transport.get_write_buffer_size()
        if self._untaken is None or untaken <= self._untaken - _LEAST_TAKEN:
            self._untaken, self._give_up = untaken, now + self.patience
        elif now >= self._give_up:
            self._transport.abort()

    def close_soon(self) -> None:
        """Closes the connection after the answers to requests that have begun."""
        self._is_last = True
        if not self._unanswered and self._phase is Phase.BETWEEN:
            self._transport.close()

    def abort(self) -> None:
        """Closes the connection at once."""
        self._transport.abort()

    def _end(self, refusal: Refusal) -> None:
        """Refuses the current request and stops reading."""
        if not self._reads:
            return
        self._reads = False
        self._deadline = None
        self._leave_receiver()
        if self._exchange is None:
            self._exchange = Exchange(self)
            self._unanswered.append(self._exchange)
        self._exchange.closes = True
        self._exchange.refuse(refusal)

    def _close(self) -> None:
        """Closes the connection, a moment later if the client is still sending.

        Closing with unread data would reset the connection and lose the answer.
        """
        self._reads = False
        self._deadline = None
        if self._exchange is None:
            self._transport.close()
            return
        if self._transport.can_write_eof():
            self._transport.write_eof()
        self._loop.call_later(_DISCARDING, self._transport.close)

    def _set_deadline(self, seconds: float) -> None:
        self._deadline = self._loop.time() + seconds


def _not_http() -> Refusal:
    return Refusal(400, "this is not a valid HTTP request")
