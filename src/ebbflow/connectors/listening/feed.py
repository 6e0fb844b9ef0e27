"""Feeds that listen for requests: their ports, their access rules, and how they start and stop.

Vertices that use the same host and port share one web server. All servers of a pipeline share one
loop and thread with a connection to NATS, so a vertex with two ports stores its posts in one
place. Requests are read, checked and stored on that loop and never change threads. A port answers
every request with JSON and a reason, or closes the connection.

The server has its own health checks: ``/health`` and ``/livez`` report whether it takes requests,
``/ready`` and ``/readyz`` whether its run processes them. If there is a token, only callers that
have it see the reason for a failure.
"""

from __future__ import annotations

import contextlib
import re
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import ClassVar

from ebbflow.domain.errors import SetupError
from ebbflow.domain.secrets import Secret
from ebbflow.nats.link import Link
from ebbflow.streams.feed import FeedContext
from ebbflow.web.app import BodilessRequest, HttpReply, Route, Router, reply_health
from ebbflow.web.exchange import Exchange, HttpRequest, Receiver, Refusal, unavailable
from ebbflow.web.guard import Guard, SiteGuard
from ebbflow.web.server import Endpoint, WebServer, bind, is_loopback, make_tls

_MAY_COME_LATER = re.compile(rb"/vertices/[^/]+|/v1/process/[^/]+")

Look = Callable[[], str | None]
"""Returns what is wrong at the moment; ``None`` if nothing is."""


# --- one port -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class VertexRoutes:
    """One vertex on a port: its routes, its guard, and a check for failures."""

    routes: Sequence[Route]
    guard: Guard
    failure: Look


class Listener:
    """One port, on the loop of ``link``. ``is_ready`` returns whether the run is processing."""

    settling = 5.0
    """For this many seconds, a source that is missing here may still be starting."""

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
        """The reason why no request is taken; ``None`` while requests are taken."""
        if self.server.has_ended:
            return "its web server has ended"
        return None if self.link.client.is_connected else "there is no connection to NATS"

    def add(self, vertex: str, part: VertexRoutes) -> None:
        """Starts taking requests to a vertex's paths; the first vertex starts the server."""
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
        """Stops taking requests to a vertex's paths; returns whether there is another vertex."""
        if (part := self._vertices.pop(vertex, None)) is not None:
            self._router.remove({route.path for route in part.routes})
        return bool(self._vertices)

    def stop(self) -> None:
        """Stops listening and frees the port."""
        self.server.stop()

    def _refuse_unknown(self, path: bytes) -> Refusal:
        """Returns the refusal of an unknown path; a source that shares the port may add it soon."""
        if not _MAY_COME_LATER.fullmatch(path):
            return Refusal(404, "Not Found")
        missing = "serving source" if path.startswith(b"/v1/") else "http source of that name"
        if time.monotonic() - self._began < self.settling:
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
        """Returns whether the caller may send to all vertices on this port."""
        return all(part.guard.admits(request) for part in list(self._vertices.values()))

    def _find_failure(self) -> str | None:
        return next(filter(None, (part.failure() for part in list(self._vertices.values()))), None)

    def _find_unreadiness(self) -> str | None:
        return self._find_failure() or (None if self._is_ready() else "the run is starting")


# --- shared listeners ---------------------------------------------------------------------------

ListenerKey = tuple[str, str, int, bool]

_shared: dict[ListenerKey, Listener] = {}
_links: dict[str, Link] = {}


def acquire(
    context: FeedContext, endpoint: Endpoint, read_timeout: float, who: str
) -> Listener | None:
    """Returns the pipeline's listener at an endpoint, which all its vertices there share.

    ``who`` is the source, for errors. ``None`` if the endpoint is optional and another process uses
    its port.
    """
    listener = _shared.get(key := _key(context, endpoint))
    if listener is None:
        listener = _open_listener(context, endpoint, read_timeout, who)
        if listener is not None:
            _shared[key] = listener
    elif replace(listener.endpoint, optional=endpoint.optional) != endpoint:
        raise SetupError(
            f"Two sources share {endpoint.host}:{endpoint.port} and have different certificates.",
            "Give both the same tls, or different ports.",
        )
    return listener


def _open_listener(
    context: FeedContext, endpoint: Endpoint, read_timeout: float, who: str
) -> Listener | None:
    bound = bind(endpoint, who, _advice(endpoint))
    if bound is None:
        return None
    try:
        link, secure = _link_of(context), make_tls(endpoint, who)
        server = WebServer(bound, link, secure, read_timeout)
        return Listener(endpoint, server, link, context.is_ready)
    except BaseException:
        bound.close()
        _close_unused(context.pipeline)
        raise


def check_ports(endpoints: Iterable[Endpoint], who: str) -> None:
    """Raises ``SetupError`` if a port is in use, before the run begins."""
    for endpoint in endpoints:
        if (bound := bind(endpoint, who, _advice(endpoint), listens=False)) is not None:
            bound.close()


def _advice(endpoint: Endpoint) -> str:
    kind = "https" if endpoint.secured else "http"
    return (
        "Stop the program that listens there, or choose another port with ports: "
        f"{{{kind}: PORT}}; 0 is any free port."
    )


def release(context: FeedContext, listener: Listener) -> None:
    """Stops listening for a vertex; the port is freed with its last vertex."""
    if not listener.remove(context.vertex):
        del _shared[_key(context, listener.endpoint)]
        listener.stop()
        _close_unused(context.pipeline)


def _key(context: FeedContext, endpoint: Endpoint) -> ListenerKey:
    # "Any free port" must be a different port for https than for http.
    secured = endpoint.secured and endpoint.port == 0
    return context.pipeline, endpoint.host, endpoint.port, secured


def _link_of(context: FeedContext) -> Link:
    """Returns the connection that all listeners of the pipeline share."""
    if context.pipeline not in _links:
        _links[context.pipeline] = Link(context.link.server)
    return _links[context.pipeline]


def _close_unused(pipeline: str) -> None:
    """Closes the connection of a pipeline that has no listener left."""
    if not any(key[0] == pipeline for key in _shared) and pipeline in _links:
        _links.pop(pipeline).close()


# --- the feed -----------------------------------------------------------------------------------

_END = 15.0
_RENAME = "use localhost, or give the source a token"


class ListeningFeed(ABC):
    """One vertex that takes requests. Started and stopped by the run's thread.

    Its ``kind``, ``purpose`` and ``path`` appear in log lines and errors. Pages of other sites may
    send requests only from ``origins``; ``advice`` says how to allow more.
    """

    on_spark = False
    kind: ClassVar[str]
    purpose: ClassVar[str]
    advice: ClassVar[str] = "send it from a program, or give the source a token"
    grace = 5.0
    """A stop waits this many seconds for requests in flight."""

    def __init__(
        self,
        context: FeedContext,
        path: str,
        endpoints: Sequence[Endpoint],
        token: Secret | None,
        read_timeout: float,
        origins: Collection[str] = (),
    ) -> None:
        self._who = f"{self.kind} source {context.vertex}"
        self._context = context
        self._path = path
        self._places = endpoints
        self._read_timeout = read_timeout
        hosts = {place.host for place in endpoints}
        self._guard = Guard(token, SiteGuard(hosts, self.advice, _RENAME, origins))
        self._stopping = False
        self.listeners: list[Listener] = []

    @property
    def link(self) -> Link:
        """The connection to NATS on whose loop all requests are."""
        return self.listeners[0].link

    @property
    def exhausted(self) -> bool:
        """Never: another request may come at any time."""
        return False

    @property
    def failure(self) -> str | None:
        """The reason why it takes no requests at the moment; ``None`` while it does."""
        if self._stopping or not self.listeners:
            return "the run is stopping"
        return next(filter(None, (listener.failure for listener in self.listeners)), None)

    def start(self) -> None:
        """Starts listening; ``SetupError`` if that is impossible or unsafe."""
        try:
            for endpoint in self._places:
                self._require_token(endpoint)
                self._warn_about_plain_http(endpoint)
            for endpoint in self._places:
                self._acquire(endpoint)
            self.link.run(self._prepare(self.link))
            self._begin_taking()
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """Refuses new requests, finishes open ones, then stops listening."""
        self._stopping = True
        if self.listeners:
            with contextlib.suppress(TimeoutError):
                self.link.run(self._end(), timeout=_END)
            listeners, self.listeners = self.listeners, []
            for listener in listeners:
                release(self._context, listener)

    @abstractmethod
    async def _prepare(self, link: Link) -> None:
        """Prepares everything that requests need, before the first one arrives."""

    @abstractmethod
    def _routes(self) -> Sequence[Route]:
        """Returns the paths and their handlers."""

    @abstractmethod
    async def _end(self) -> None:
        """Finishes open requests, unless that takes too long."""

    def _acquire(self, endpoint: Endpoint) -> None:
        listener = acquire(self._context, endpoint, self._read_timeout, self._who)
        if listener is not None:
            self.listeners.append(listener)
            return
        self._context.log(
            f"{self._context.vertex} does not listen on https: another process uses "
            f"{endpoint.host}:{endpoint.port}"
        )

    def _begin_taking(self) -> None:
        """Starts taking requests, and logs the URL."""
        part = VertexRoutes(self._routes(), self._guard, lambda: self.failure)
        for listener in self.listeners:
            listener.add(self._context.vertex, part)
            how = " (self-signed: curl -k)" if listener.endpoint.self_signed else ""
            place = f"{listener.url}{self._path}{how}"
            self._context.log(f"{self._context.vertex} {self.purpose} at {place}")

    def _require_token(self, endpoint: Endpoint) -> None:
        """Refuses to listen beyond this machine without a token."""
        if not self._guard.needs_token and not is_loopback(endpoint.host, self._who):
            raise SetupError(
                f"The {self._who} would take messages from anybody who can reach {endpoint.host}.",
                "Give it a token with auth: {token: {env: NAME}}, or leave out its host to listen "
                "on this machine only.",
            )

    def _warn_about_plain_http(self, endpoint: Endpoint) -> None:
        if not endpoint.secured and not is_loopback(endpoint.host, self._who):
            self._context.log(
                f"{self._context.vertex} listens on {endpoint.host} without TLS: its token and its "
                "messages can be read in transit"
            )
