"""The web server of sources: one for each host and port of a pipeline, whoever shares it.

All of a pipeline run on one loop and thread, together with a connection to NATS: a vertex that is
reached on two ports stores its posts in one place. Whatever arrives on a port, the answer is JSON
with a reason or the connection is closed: a request is bounded in time and size from its first
byte, and so is the number of connections.

A port has routes, each a path and its taker. The server itself tells how it is: ``/health`` and
``/livez`` whether it takes requests in, ``/ready`` and ``/readyz`` whether its run works on them.
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
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Protocol
from urllib.parse import unquote_to_bytes

from ebbflow import tls
from ebbflow.buffers.feed import Spot
from ebbflow.connectors.http.connection import HttpConnection, Receiver, RequestHead
from ebbflow.connectors.http.exchange import Exchange
from ebbflow.connectors.http.health import HealthCheck
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
_LATER = re.compile(rb"/vertices/[^/]+|/v1/process/[^/]+")


class Taker(Protocol):
    """Who takes the requests to one path, on the listener's loop."""

    @property
    def methods(self) -> tuple[bytes, ...]:
        """The methods that it takes."""

    @property
    def describe(self) -> Callable[[Refusal], bytes]:
        """Makes the body of a refusal."""

    @property
    def failure(self) -> str | None:
        """The reason why it takes in nothing at the moment; ``None`` while it does."""

    def open(self, head: RequestHead, exchange: Exchange) -> Receiver:
        """Returns who takes the body of a request; ``Refusal`` if it is not wanted."""


class HttpListener:
    """One port, on the loop of ``link``. ``is_ready`` says whether the run works on messages."""

    def __init__(
        self,
        endpoint: Endpoint,
        bound: socket.socket,
        link: Link,
        secure: ssl.SSLContext | None,
        read_timeout: float,
        is_ready: Callable[[], bool],
    ) -> None:
        self.endpoint = endpoint
        self.link = link
        self.read_timeout = read_timeout
        self.most_connections = _most_connections()
        self.connections: set[HttpConnection] = set()
        self._takers: dict[bytes, Taker] = {}
        self._paths: dict[str, list[bytes]] = {}
        self._is_ready = is_ready
        self._checks = {
            b"/health": HealthCheck(self._find_failure),
            b"/livez": HealthCheck(self._find_failure, silent=True),
            b"/ready": HealthCheck(self._find_unreadiness),
            b"/readyz": HealthCheck(self._find_unreadiness, silent=True),
        }
        self._socket = bound
        self._tls = secure
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

    def add(self, vertex: str, takers: Mapping[str, Taker]) -> None:
        """Has requests to a vertex's paths taken; the first vertex begins to listen."""
        routes = {path.encode(): taker for path, taker in takers.items()}
        if taken := next((path for path in routes if path in self._takers), None):
            raise SetupError(
                f"Two sources take requests at {self.url}{taken.decode()}.",
                f"Give the vertex {vertex} other ports.",
            )
        self._takers |= routes
        self._paths[vertex] = list(routes)
        if self._server is None:
            self.link.run(self._listen())

    def remove(self, vertex: str) -> bool:
        """Has requests to a vertex's paths refused; returns whether there is another vertex."""
        for path in self._paths.pop(vertex, ()):
            del self._takers[path]
        return bool(self._paths)

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
        if taker is None or head.method not in taker.methods:
            taker = self._find_taker(head, exchange)
        exchange.describe = taker.describe
        return taker.open(head, exchange)

    def _find_taker(self, head: RequestHead, exchange: Exchange) -> Taker:
        path = unquote_to_bytes(head.target.partition(b"?")[0])
        taker = self._takers.get(path) or self._checks.get(path)
        if taker is None:
            raise self._unknown(path)
        exchange.describe = taker.describe
        if head.method not in taker.methods:
            names = b", ".join(taker.methods).decode()
            raise Refusal(405, "Method Not Allowed", headers={"allow": names})
        return taker

    def _unknown(self, path: bytes) -> Refusal:
        """Returns the refusal of a path that is not here; one that shares the port may come."""
        if not _LATER.fullmatch(path):
            return Refusal(404, "Not Found")
        missing = "serving source" if path.startswith(b"/v1/") else "http source of that name"
        if time.monotonic() - self._began < _SETTLING:
            return unavailable(f"there is no {missing} here yet")
        return Refusal(404, f"there is no {missing} here")

    def _find_failure(self) -> str | None:
        return next(filter(None, (taker.failure for taker in list(self._takers.values()))), None)

    def _find_unreadiness(self) -> str | None:
        return self._find_failure() or (None if self._is_ready() else "the run is starting")


# --- listeners by where they are ----------------------------------------------------------------

ListenerKey = tuple[str, str, int, bool]

_shared: dict[ListenerKey, HttpListener] = {}
_links: dict[str, Link] = {}


def acquire(spot: Spot, endpoint: Endpoint, read_timeout: float, who: str) -> HttpListener | None:
    """Returns the listener of the vertex's pipeline there, one for all vertices that share it.

    ``who`` is the source, for errors. ``None`` if the endpoint is optional and somebody else has
    its port.
    """
    listener = _shared.get(key := _key(spot, endpoint))
    if listener is None:
        bound = _bind(endpoint, who)
        if bound is None:
            return None
        try:
            listener = HttpListener(
                endpoint, bound, _link_of(spot), _tls(endpoint, who), read_timeout, spot.is_ready
            )
            _shared[key] = listener
        except BaseException:
            bound.close()
            _close_unused(spot.pipeline)
            raise
    elif replace(listener.endpoint, optional=endpoint.optional) != endpoint:
        raise SetupError(
            f"Two sources share {endpoint.host}:{endpoint.port} and have different certificates.",
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


def is_loopback(host: str, who: str) -> bool:
    """Returns whether only this machine can reach it; ``SetupError`` when there is no such host."""
    addresses = _resolve(host, 0, who)
    return all(ipaddress.ip_address(address[0]).is_loopback for _, address in addresses)


def _resolve(host: str, port: int, who: str) -> list[tuple[int, Any]]:
    try:
        addresses = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except OSError as error:
        raise SetupError(
            f"The {who} is to listen on {host}, which is no address of this machine: "
            f"{error.strerror}.",
            "Correct its host.",
        ) from None
    return [(family, address) for family, _, _, _, address in addresses]


def _bind(endpoint: Endpoint, who: str) -> socket.socket | None:
    family, address = _resolve(endpoint.host, endpoint.port, who)[0]
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
            f"The {who} cannot listen on {place}: {error.strerror}.",
            f"Stop what listens there, or choose another port with ports: {{{kind}: PORT}}; 0 is "
            "any that is free.",
        ) from None
    return bound


def _url(bound: socket.socket, secured: bool) -> str:
    """Returns the address, with the port that the system gave."""
    host, port = bound.getsockname()[:2]
    shown = f"[{host}]" if ":" in host else host
    return f"{'https' if secured else 'http'}://{shown}:{port}"


def _tls(endpoint: Endpoint, who: str) -> ssl.SSLContext | None:
    if not endpoint.secured:
        return None
    certificate = endpoint.certificate or make_certificate(endpoint.host)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        tls.identify(context, certificate.chain, certificate.key.reveal())
    except ValueError as error:
        raise SetupError(f"The tls of the {who}: {error}.", "Correct cert and key.") from None
    return context


def _most_connections() -> int:
    """Files are needed for other things, too."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return min(_MOST_CONNECTIONS, soft // 2)
