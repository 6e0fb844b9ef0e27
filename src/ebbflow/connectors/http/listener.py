"""The web server of sources: one for each host and port of a pipeline, whoever shares it.

All of a pipeline run on one loop and thread, together with a connection to NATS: a vertex that is
reached on two ports stores its posts in one place. Whatever arrives on a port, the answer is JSON
with a reason or the connection is closed.

A port has routes, each a path and its taker. The server itself tells how it is: ``/health`` and
``/livez`` whether it takes requests in, ``/ready`` and ``/readyz`` whether its run works on them.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Protocol
from urllib.parse import unquote_to_bytes

from ebbflow.domain.errors import SetupError
from ebbflow.nats.link import Link
from ebbflow.streams.feed import Spot
from ebbflow.web.binding import bind, make_tls
from ebbflow.web.connection import Receiver, RequestHead
from ebbflow.web.endpoint import Endpoint
from ebbflow.web.exchange import Exchange
from ebbflow.web.guard import TokenGuard
from ebbflow.web.health import HealthCheck
from ebbflow.web.refusal import Refusal, unavailable
from ebbflow.web.server import WebServer

_SETTLING = 5.0
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
        server: WebServer,
        link: Link,
        is_ready: Callable[[], bool],
    ) -> None:
        self.endpoint = endpoint
        self.link = link
        self.url = server.url
        self.server = server
        self._takers: dict[bytes, Taker] = {}
        self._paths: dict[str, list[bytes]] = {}
        self._guards: dict[str, TokenGuard] = {}
        self._is_ready = is_ready
        self._checks = {
            b"/health": HealthCheck(self._find_failure, self._admits),
            b"/livez": HealthCheck(self._find_failure, self._admits, silent=True),
            b"/ready": HealthCheck(self._find_unreadiness, self._admits),
            b"/readyz": HealthCheck(self._find_unreadiness, self._admits, silent=True),
        }
        self._began = time.monotonic()

    @property
    def failure(self) -> str | None:
        """The reason why nobody is heard; ``None`` while all is well."""
        if self.server.has_ended:
            return "its web server has ended"
        return None if self.link.client.is_connected else "there is no connection to NATS"

    def add(self, vertex: str, takers: Mapping[str, Taker], guard: TokenGuard) -> None:
        """Has requests to a vertex's paths taken; the first vertex begins to listen."""
        routes = {path.encode(): taker for path, taker in takers.items()}
        if taken := next((path for path in routes if path in self._takers), None):
            raise SetupError(
                f"Two sources take requests at {self.url}{taken.decode()}.",
                f"Give the vertex {vertex} other ports.",
            )
        self._takers |= routes
        self._paths[vertex] = list(routes)
        self._guards[vertex] = guard
        if not self.server.has_started:
            self.server.start(self.open)

    def remove(self, vertex: str) -> bool:
        """Has requests to a vertex's paths refused; returns whether there is another vertex."""
        self._guards.pop(vertex, None)
        for path in self._paths.pop(vertex, ()):
            del self._takers[path]
        return bool(self._paths)

    def stop(self) -> None:
        """Listens no more, and lets go of the port."""
        self.server.stop()

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

    def _admits(self, head: RequestHead) -> bool:
        """Returns whether whoever asks may send to all vertices here."""
        guards = list(self._guards.values())
        return all(not guard.is_needed or guard.has_bearer(head) for guard in guards)

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
        listener = _open_listener(spot, endpoint, read_timeout, who)
        if listener is not None:
            _shared[key] = listener
    elif replace(listener.endpoint, optional=endpoint.optional) != endpoint:
        raise SetupError(
            f"Two sources share {endpoint.host}:{endpoint.port} and have different certificates.",
            "Give both the same tls, or different ports.",
        )
    return listener


def _open_listener(
    spot: Spot, endpoint: Endpoint, read_timeout: float, who: str
) -> HttpListener | None:
    bound = bind(endpoint, who, _advice(endpoint))
    if bound is None:
        return None
    try:
        link, secure = _link_of(spot), make_tls(endpoint, who)
        server = WebServer(bound, link, secure, read_timeout)
        return HttpListener(endpoint, server, link, spot.is_ready)
    except BaseException:
        bound.close()
        _close_unused(spot.pipeline)
        raise


def check_ports(endpoints: Iterable[Endpoint], who: str) -> None:
    """Raises ``SetupError`` if a port is in use, so that a run need not begin to find out."""
    for endpoint in endpoints:
        if (bound := bind(endpoint, who, _advice(endpoint), listens=False)) is not None:
            bound.close()


def _advice(endpoint: Endpoint) -> str:
    kind = "https" if endpoint.secured else "http"
    return (
        f"Stop what listens there, or choose another port with ports: {{{kind}: PORT}}; 0 is "
        "any that is free."
    )


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
