"""The client of the HTTP sink: sends requests to one address, over persistent connections.

A connection has one request at a time and is not reused after a long idle time. If the server
closes a reused connection instead of answering, the request is sent once more, on a new connection:
the server may have closed it as idle just when it was reused. Everything runs on one loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import ssl
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from urllib.parse import quote, urlsplit

import httptools

from ebbflow.domain import secrets
from ebbflow.domain.secrets import Secret

LONGEST_WAIT = 60 * 60.0
_IDLE = 15.0
_FIRST_WORDS = 200
_PORTS = {"http": 80, "https": 443}
_GZIP_OR_ZLIB = 47
# Characters of a path or a query that are not written as %XX.
_UNQUOTED = "/%:@!$&'()*+,;=~-._?"


@dataclass(frozen=True, slots=True)
class ClientTls:
    """The authorities to trust, and the client's own certificate with its key, in PEM form."""

    ca: str | None = None
    cert: str | None = None
    key: Secret | None = None

    def context(self) -> ssl.SSLContext:
        """Returns a client's TLS, with the server's name checked."""
        context = secrets.trusting(self.ca)
        if self.cert is not None and self.key is not None:
            secrets.identify(context, self.cert, self.key.reveal())
        return context


@dataclass(frozen=True, slots=True)
class HttpAnswer:
    """A status, the seconds after which to retry if the server says so, and the body.

    ``whole`` is false if the body was longer than the part that was read, or could not be
    decompressed.
    """

    status: int
    wait: float | None = None
    body: bytes = b""
    whole: bool = True

    @property
    def words(self) -> str:
        """The beginning of the body, on one line."""
        return " ".join(self.body.decode("utf-8", "replace").split())[:_FIRST_WORDS]


class NoAnswer(Exception):
    """A request got no answer; the text says why."""


class _Disconnected(NoAnswer):
    """The connection was closed or broke before an answer began."""


def parse_retry_after(text: str | None, now: datetime) -> float | None:
    """Returns the seconds of a ``Retry-After`` header, which has a number or a date."""
    if text is None:
        return None
    try:
        return bound_wait(float(text))
    except ValueError:
        pass
    try:
        date = parsedate_to_datetime(text)
    except ValueError:
        return None
    at = date if date.tzinfo else date.replace(tzinfo=UTC)
    return bound_wait((at - now).total_seconds())


def bound_wait(seconds: float) -> float | None:
    """Returns the wait, at most an hour; ``None`` for NaN."""
    return None if math.isnan(seconds) else min(max(0.0, seconds), LONGEST_WAIT)


class HttpClient:
    """Sends requests of one method to one URL. ``timeout`` is in seconds, for one request."""

    def __init__(
        self,
        method: str,
        url: str,
        headers: Mapping[str, str],
        tls: ssl.SSLContext | None,
        timeout: float,
    ) -> None:
        parts = urlsplit(url)
        self._host = parts.hostname or ""
        self._port = parts.port or _PORTS[parts.scheme]
        self._tls = (tls or ssl.create_default_context()) if parts.scheme == "https" else None
        self._timeout = timeout
        target = f"{parts.path or '/'}?{parts.query}" if parts.query else parts.path or "/"
        shown = {"host": _shown_host(self._host, parts.port), "user-agent": "ebbflow"}
        shown |= {"accept": "*/*", "accept-encoding": "gzip"} | dict(headers)
        lines = "".join(f"{name}: {text}\r\n" for name, text in shown.items())
        self._opening = f"{method} {quote(target, _UNQUOTED)} HTTP/1.1\r\n{lines}".encode()
        self._idle: list[_Connection] = []

    async def send(self, body: bytes, headers: Mapping[str, str], longest: int) -> HttpAnswer:
        """Sends a request and returns its answer, with ``longest`` bytes of its body at most.

        ``NoAnswer`` if there is none in time.
        """
        lines = "".join(f"{name}: {text}\r\n" for name, text in headers.items())
        request = b"%b%bcontent-length: %d\r\n\r\n%b" % (
            self._opening, lines.encode("ascii"), len(body), body,
        )  # fmt: skip
        try:
            async with asyncio.timeout(self._timeout):
                return await self._exchange(request, longest)
        except TimeoutError:
            raise NoAnswer(f"no answer within {self._timeout:g} s") from None

    def close(self) -> None:
        """Closes all idle connections."""
        while self._idle:
            self._idle.pop().close()

    async def _exchange(self, request: bytes, longest: int) -> HttpAnswer:
        """Sends a request; once more if the server has closed a reused connection.

        A server that closes a new connection has probably received the request.
        """
        if (kept := self._take_idle()) is not None:
            with contextlib.suppress(_Disconnected):
                return await self._try(kept, request, longest)
        return await self._try(None, request, longest)

    async def _try(self, kept: _Connection | None, request: bytes, longest: int) -> HttpAnswer:
        connection = kept or await self._connect()
        try:
            answer = await connection.exchange(request, longest)
        except BaseException:
            connection.close()
            raise
        if connection.is_open:
            self._idle.append(connection)
        return answer

    def _take_idle(self) -> _Connection | None:
        oldest = asyncio.get_running_loop().time() - _IDLE
        while self._idle:
            connection = self._idle.pop()
            if connection.is_open and connection.used > oldest:
                return connection
            connection.close()
        return None

    async def _connect(self) -> _Connection:
        loop = asyncio.get_running_loop()
        try:
            _, connection = await loop.create_connection(
                lambda: _Connection(loop), self._host, self._port, ssl=self._tls
            )
        except OSError as error:
            where = f"{self._host}:{self._port}"
            raise NoAnswer(f"no answer: Cannot connect to host {where}: {error}") from None
        return connection


def _shown_host(host: str, port: int | None) -> str:
    name = f"[{host}]" if ":" in host else host.encode("idna").decode()
    return name if port is None else f"{name}:{port}"


class _Connection(asyncio.Protocol):
    """One connection. ``used`` is when its last answer was complete."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._parser = httptools.HttpResponseParser(self)
        self._transport: asyncio.Transport
        self._answer: asyncio.Future[HttpAnswer] | None = None
        self._longest = 0
        self._status = 0
        self._retry_after: str | None = None
        self._coding = b""
        self._has_length = False
        self._body = bytearray()
        self.used = 0.0
        self.is_open = True

    async def exchange(self, request: bytes, longest: int) -> HttpAnswer:
        """Sends a request and returns its answer; ``NoAnswer`` if there will be none."""
        self._answer = self._loop.create_future()
        self._longest = longest
        self._transport.write(request)
        return await self._answer

    def close(self) -> None:
        """Closes the connection."""
        self.is_open = False
        self._transport.close()

    # --- as the transport sees it ---------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keeps the transport."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        """Parses data; after an unexpected answer the connection cannot be used any more."""
        if self._answer is None or self._answer.done():
            self.close()
            return
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            self._fail(NoAnswer(f"no answer: the reply is not HTTP: {error}"))

    def connection_lost(self, exc: Exception | None) -> None:
        """Ends the answer: it completes a body without a length, and is an error otherwise."""
        self.is_open = False
        if self._status and exc is None and not self._has_length:
            self._complete()
        elif self._status:
            self._fail(NoAnswer("no answer: the reply was cut off"))
        else:
            self._fail(_Disconnected(f"no answer: {exc or 'Server disconnected'}"))

    # --- as the parser sees it ------------------------------------------------------------------

    def on_message_begin(self) -> None:
        """Begins an answer."""
        self._status = 0
        self._retry_after = None
        self._coding = b""
        self._has_length = False
        self._body = bytearray()

    def on_header(self, name: bytes, value: bytes) -> None:
        """Reads the headers that matter."""
        name = name.lower()
        if name == b"retry-after":
            self._retry_after = value.decode("latin-1")
        elif name == b"content-encoding":
            self._coding = value.strip().lower()
        elif name in (b"content-length", b"transfer-encoding"):
            self._has_length = True

    def on_headers_complete(self) -> None:
        """Keeps the status, unless it is an interim one."""
        status = self._parser.get_status_code()
        self._status = status if status >= 200 else 0

    def on_body(self, piece: bytes) -> None:
        """Adds a piece of the body; ends the answer if the body is too long."""
        self._body += piece
        if len(self._body) > self._longest:
            self.is_open = False
            self._complete(whole=False)

    def on_message_complete(self) -> None:
        """Completes the answer."""
        if self._status:
            self.is_open &= self._parser.should_keep_alive()
            self._complete()

    def _complete(self, whole: bool = True) -> None:
        if self._answer is None or self._answer.done():
            return
        self.used = self._loop.time()
        wait = None
        if self._retry_after is not None:
            wait = parse_retry_after(self._retry_after, datetime.now(UTC))
        body = bytes(self._body[: self._longest])
        if self._coding not in (b"", b"identity"):
            body, whole = _unpack(body, self._coding, self._longest)
        self._answer.set_result(HttpAnswer(self._status, wait, body, whole))
        self._status = 0
        if not self.is_open:
            self._transport.close()

    def _fail(self, error: NoAnswer) -> None:
        self.is_open = False
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(error)
        self._transport.close()


def _unpack(body: bytes, coding: bytes, longest: int) -> tuple[bytes, bool]:
    """Returns the decompressed body, and whether it is complete.

    It may hold a status for each message, so an unreadable body must not pass for an empty one.
    """
    if coding not in (b"gzip", b"x-gzip", b"deflate"):
        return b"", False
    unpacking = zlib.decompressobj(_GZIP_OR_ZLIB)
    try:
        text = unpacking.decompress(body, longest)
    except zlib.error:
        return b"", False
    return text, unpacking.eof
