"""The ports of sources with a web server: one server for each host and port, whoever shares it.

All of a pipeline run on one loop and thread, together with a connection to NATS: a vertex that is
reached on two ports stores its posts in one place. Whatever arrives on a port, the answer is JSON
with a reason or the connection is closed.

The server itself tells how it is: ``/health`` and ``/livez`` whether it takes requests in,
``/ready`` and ``/readyz`` whether its run works on them. Only those who have the token, where there
is one, are told what is wrong.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial

from ebbflow.domain.errors import SetupError
from ebbflow.nats.link import Link
from ebbflow.streams.feed import Spot
from ebbflow.web.app import BodilessRequest, HttpReply, Route, Router, reply_health
from ebbflow.web.exchange import Exchange, HttpRequest, Receiver, Refusal, unavailable
from ebbflow.web.guard import Guard
from ebbflow.web.server import Endpoint, WebServer, bind, make_tls

_SETTLING = 5.0
_LATER = re.compile(rb"/vertices/[^/]+|/v1/process/[^/]+")

Look = Callable[[], str | None]
"""Returns what is wrong at the moment; ``None`` when all is well."""


# --- one port -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class VertexRoutes:
    """What one vertex has on a port: its routes, its guard, and how it is."""

    routes: Sequence[Route]
    guard: Guard
    failure: Look


class Listener:
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
        self._vertices: dict[str, VertexRoutes] = {}
        self._is_ready = is_ready
        self._router = Router(self._refuse_unknown)
        self._router.add(
            Route((b"GET", b"HEAD"), path, partial(self._take_probe, look, silent))
            for path, look, silent in (
                ("/health", self._find_failure, False),
                ("/livez", self._find_failure, True),
                ("/ready", self._find_unreadiness, False),
                ("/readyz", self._find_unreadiness, True),
            )
        )
        self._began = time.monotonic()

    @property
    def failure(self) -> str | None:
        """The reason why no request is taken; ``None`` while all is well."""
        if self.server.has_ended:
            return "its web server has ended"
        return None if self.link.client.is_connected else "there is no connection to NATS"

    def add(self, vertex: str, part: VertexRoutes) -> None:
        """Has requests to a vertex's paths taken; the first vertex begins to listen."""
        paths = [route.path for route in part.routes]
        if taken := next((path for path in paths if path in self._router), None):
            raise SetupError(
                f"Two sources take requests at {self.url}{taken}.",
                f"Give the vertex {vertex} other ports.",
            )
        self._router.add(part.routes)
        self._vertices[vertex] = part
        if not self.server.has_started:
            self.server.start(self._router.open)

    def remove(self, vertex: str) -> bool:
        """Has requests to a vertex's paths refused; returns whether there is another vertex."""
        if (part := self._vertices.pop(vertex, None)) is not None:
            self._router.remove({route.path for route in part.routes})
        return bool(self._vertices)

    def stop(self) -> None:
        """Listens no more, and lets go of the port."""
        self.server.stop()

    def _refuse_unknown(self, path: bytes) -> Refusal:
        """Returns the refusal of a path that is not here; one that shares the port may come."""
        if not _LATER.fullmatch(path):
            return Refusal(404, "Not Found")
        missing = "serving source" if path.startswith(b"/v1/") else "http source of that name"
        if time.monotonic() - self._began < _SETTLING:
            return unavailable(f"there is no {missing} here yet")
        return Refusal(404, f"there is no {missing} here")

    def _take_probe(
        self, look: Look, silent: bool, request: HttpRequest, exchange: Exchange
    ) -> Receiver:
        return BodilessRequest(lambda: self._probe(look, silent, request).send(exchange))

    def _probe(self, look: Look, silent: bool, request: HttpRequest) -> HttpReply:
        if (reason := look()) is None:
            return HttpReply(b"", 204) if silent else HttpReply.json({"status": "ok"})
        return reply_health(
            False, {"reason": "unavailable"}, {"reason": reason}, lambda: self._admits(request)
        )

    def _admits(self, request: HttpRequest) -> bool:
        """Returns whether whoever asks may send to all vertices here."""
        return all(part.guard.admits(request) for part in list(self._vertices.values()))

    def _find_failure(self) -> str | None:
        return next(filter(None, (part.failure() for part in list(self._vertices.values()))), None)

    def _find_unreadiness(self) -> str | None:
        return self._find_failure() or (None if self._is_ready() else "the run is starting")


# --- listeners by where they are ----------------------------------------------------------------

ListenerKey = tuple[str, str, int, bool]

_shared: dict[ListenerKey, Listener] = {}
_links: dict[str, Link] = {}


def acquire(spot: Spot, endpoint: Endpoint, read_timeout: float, who: str) -> Listener | None:
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
) -> Listener | None:
    bound = bind(endpoint, who, _advice(endpoint))
    if bound is None:
        return None
    try:
        link, secure = _link_of(spot), make_tls(endpoint, who)
        server = WebServer(bound, link, secure, read_timeout)
        return Listener(endpoint, server, link, spot.is_ready)
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


def release(spot: Spot, listener: Listener) -> None:
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
