"""The web server of HTTP sources: one for each host and port of a pipeline, whoever shares it.

All of a pipeline run on one loop and thread, together with a connection to NATS: a vertex that is
reached on two ports stores its posts in one place. Whatever arrives on a port, the answer is JSON
with a reason or the connection is closed: a request is bounded in time and size from its first
byte, and so is the number of connections.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import ipaddress
import re
import resource
import socket
import ssl
import time
from dataclasses import replace
from typing import Any, Protocol
from urllib.parse import unquote_to_bytes

from ebbflow import tls
from ebbflow.buffers.feed import Spot
from ebbflow.connectors.http.connection import Exchange, HttpConnection, Receiver, RequestHead
from ebbflow.connectors.http.request import Refusal, unavailable
from ebbflow.connectors.http.self_signed import make_certificate
from ebbflow.connectors.http.settings import Endpoint
from ebbflow.errors import SetupError
from ebbflow.nats.link import Link

_END = 10.0
_SETTLING = 5.0
_BACKLOG = 1_024
_LAST_ANSWERS = 1.0
_PAUSE = 0.01
_CHECK = 0.5
_MOST_CONNECTIONS = 4_096
_HEALTH = b"/health"
_VERTEX = re.compile(rb"/vertices/[^/]+")


class Taker(Protocol):
    """A vertex that takes posts in."""

    @property
    def failure(self) -> str | None:
        """The reason why it takes in nothing at the moment; ``None`` while it does."""

    def open(self, head: RequestHead, exchange: Exchange) -> Receiver:
        """Returns who takes the body of a post; ``Refusal`` if it is not wanted."""


class HttpListener:
    """One port, on the loop of ``link``.

    ``takers`` are those who take posts in, by the vertex that they feed.
    """

    def __init__(
        self, endpoint: Endpoint, bound: socket.socket, link: Link, read_timeout: float
    ) -> None:
        self.endpoint = endpoint
        self.link = link
        self.read_timeout = read_timeout
        self.most_connections = _most_connections()
        self.connections: set[HttpConnection] = set()
        self._takers: dict[bytes, Taker] = {}
        self._socket = bound
        self._tls = _tls(endpoint)
        self.url = _url(self._socket, secured=self._tls is not None)
        self._server: asyncio.Server | None = None
        self._checking: asyncio.TimerHandle | None = None
        self._began = time.monotonic()

    @property
    def failure(self) -> str | None:
        """The reason why nobody is heard; ``None`` while all is well."""
        if self._server is not None and not self._server.is_serving():
            return "its web server has ended"
        return None if self.link.client.is_connected else "there is no connection to NATS"

    def add(self, vertex: str, taker: Taker) -> None:
        """Has posts to the vertex taken in; the first of them begins to listen."""
        self._takers[_target(vertex)] = taker
        if self._server is None:
            self.link.run(self._listen())

    def remove(self, vertex: str) -> bool:
        """Has posts to the vertex refused; returns whether there is another vertex."""
        self._takers.pop(_target(vertex), None)
        return bool(self._takers)

    def stop(self) -> None:
        """Listens no more, and lets go of the port."""
        with contextlib.suppress(TimeoutError):
            self.link.run(self._close(), timeout=_END)
        self._socket.close()

    async def _listen(self) -> None:
        self._server = await asyncio.get_running_loop().create_server(
            lambda: HttpConnection(self),
            sock=self._socket,
            ssl=self._tls,
            backlog=_BACKLOG,
            ssl_handshake_timeout=self.read_timeout if self._tls else None,
        )
        self._check_times()

    def _check_times(self) -> None:
        """Looks at all connections, so that a request needs no timers of its own."""
        loop = self.link.loop
        now = loop.time()
        for connection in list(self.connections):
            connection.check_time(now)
        self._checking = loop.call_later(min(_CHECK, self.read_timeout / 5), self._check_times)

    async def _close(self) -> None:
        """Lets connections end behind what they are answering, for a moment."""
        if self._server is None:
            return
        self._server.close()
        for connection in list(self.connections):
            connection.close_soon()
        deadline = time.monotonic() + _LAST_ANSWERS
        while self.connections and time.monotonic() < deadline:
            await asyncio.sleep(_PAUSE)
        for connection in list(self.connections):
            connection.abort()
        if self._checking is not None:
            self._checking.cancel()

    # --- requests -------------------------------------------------------------------------------

    def open(self, head: RequestHead, exchange: Exchange) -> Receiver:
        """Returns who takes the body of a request; ``Refusal`` if nobody does."""
        taker = self._takers.get(head.target)
        if taker is None or head.method != b"POST":
            return self._open_unusual(head, exchange)
        return taker.open(head, exchange)

    def _open_unusual(self, head: RequestHead, exchange: Exchange) -> Receiver:
        path = unquote_to_bytes(head.target.partition(b"?")[0])
        if path == _HEALTH:
            _check_method(head.method, b"GET", b"HEAD")
            return _HealthCheck(self._find_failure(), exchange)
        if not _VERTEX.fullmatch(path):
            raise Refusal(404, "Not Found")
        _check_method(head.method, b"POST")
        taker = self._takers.get(path)
        if taker is None:
            raise self._unknown()
        return taker.open(head, exchange)

    def _find_failure(self) -> str | None:
        return next(filter(None, (taker.failure for taker in list(self._takers.values()))), None)

    def _unknown(self) -> Refusal:
        """Returns the refusal of a vertex that is not here; one that shares the port may come."""
        if time.monotonic() - self._began < _SETTLING:
            return unavailable("there is no http source of that name here yet")
        return Refusal(404, "there is no http source of that name here")


def _target(vertex: str) -> bytes:
    return f"/vertices/{vertex}".encode()


def _check_method(method: bytes, *allowed: bytes) -> None:
    if method not in allowed:
        names = b", ".join(allowed).decode()
        raise Refusal(405, "Method Not Allowed", headers={"allow": names})


class _HealthCheck:
    """A request to be told whether messages are taken in; its body does not matter."""

    def __init__(self, failure: str | None, exchange: Exchange) -> None:
        self._failure = failure
        self._exchange = exchange

    def feed(self, piece: bytes) -> None:
        pass

    def finish(self) -> None:
        if self._failure is not None:
            raise Refusal(503, self._failure)
        self._exchange.respond(200, b'{"status":"ok"}')

    def abandon(self) -> None:
        pass


# --- listeners by where they are ----------------------------------------------------------------

ListenerKey = tuple[str, str, int, bool]

_shared: dict[ListenerKey, HttpListener] = {}
_links: dict[str, Link] = {}


def acquire(spot: Spot, endpoint: Endpoint, read_timeout: float) -> HttpListener | None:
    """Returns the listener of the vertex's pipeline there, one for all vertices that share it.

    ``None`` if the endpoint is optional and somebody else has its port.
    """
    listener = _shared.get(key := _key(spot, endpoint))
    if listener is None:
        bound = _bind(endpoint)
        if bound is None:
            return None
        try:
            listener = _shared[key] = HttpListener(endpoint, bound, _link_of(spot), read_timeout)
        except BaseException:
            bound.close()
            _close_unused(spot.pipeline)
            raise
    elif replace(listener.endpoint, optional=endpoint.optional) != endpoint:
        raise SetupError(
            f"Two http sources share {endpoint.host}:{endpoint.port} and have different "
            "certificates.",
            "Give both the same tls, or different ports.",
        )
    return listener


def release(spot: Spot, listener: HttpListener) -> None:
    """Ends the listening of a vertex; the port is free when the last one has ended."""
    if not listener.remove(spot.vertex):
        del _shared[_key(spot, listener.endpoint)]
        listener.stop()
        _close_unused(spot.pipeline)


def _key(spot: Spot, endpoint: Endpoint) -> ListenerKey:
    # Any free port is another one for https than for http.
    secured = endpoint.secured and endpoint.port == 0
    return spot.pipeline, endpoint.host, endpoint.port, secured


def _link_of(spot: Spot) -> Link:
    """Returns the connection that all listeners of the pipeline share."""
    if spot.pipeline not in _links:
        _links[spot.pipeline] = Link(spot.link.server)
    return _links[spot.pipeline]


def _close_unused(pipeline: str) -> None:
    """Closes the connection of a pipeline that listens nowhere any more."""
    if not any(key[0] == pipeline for key in _shared) and pipeline in _links:
        _links.pop(pipeline).close()


def is_loopback(host: str) -> bool:
    """Returns whether only this machine can reach it; ``SetupError`` when there is no such host."""
    return all(ipaddress.ip_address(address[0]).is_loopback for _, address in _resolve(host, 0))


def _resolve(host: str, port: int) -> list[tuple[int, Any]]:
    try:
        addresses = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except OSError as error:
        raise SetupError(
            f"An http source is to listen on {host}, which is no address of this machine: "
            f"{error.strerror}.",
            "Correct its host.",
        ) from None
    return [(family, address) for family, _, _, _, address in addresses]


def _bind(endpoint: Endpoint) -> socket.socket | None:
    family, address = _resolve(endpoint.host, endpoint.port)[0]
    # Named as TCP, or asyncio would let each answer wait for the client to acknowledge its head.
    bound = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        bound.bind(address)
        # A port is taken as soon as somebody listens, not before.
        bound.listen(_BACKLOG)
    except OSError as error:
        bound.close()
        place = f"{endpoint.host}:{endpoint.port}"
        if error.errno == errno.EADDRINUSE and endpoint.optional:
            return None
        kind = "https" if endpoint.secured else "http"
        raise SetupError(
            f"An http source cannot listen on {place}: {error.strerror}.",
            f"Stop what listens there, or choose another port with ports: {{{kind}: PORT}}; 0 is "
            "any that is free.",
        ) from None
    return bound


def _url(bound: socket.socket, secured: bool) -> str:
    """Returns the address, with the port that the system gave."""
    host, port = bound.getsockname()[:2]
    shown = f"[{host}]" if ":" in host else host
    return f"{'https' if secured else 'http'}://{shown}:{port}"


def _tls(endpoint: Endpoint) -> ssl.SSLContext | None:
    if not endpoint.secured:
        return None
    certificate = endpoint.certificate or make_certificate(endpoint.host)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        tls.identify(context, certificate.chain, certificate.key.reveal())
    except ValueError as error:
        raise SetupError(f"The tls of an http source: {error}.", "Correct cert and key.") from None
    return context


def _most_connections() -> int:
    """Files are needed for other things, too."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return min(_MOST_CONNECTIONS, soft // 2)
