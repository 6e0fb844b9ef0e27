"""A feed that listens: where, to whom, and how it is started and stopped.

There is one web server for each host and port, whoever shares it. All of a pipeline run on one loop
and thread, together with a connection to NATS: a vertex that is reached on two ports stores its
posts in one place. Requests are read, checked and stored on that loop, so that none changes
threads. Whatever arrives on a port, the answer is JSON with a reason or the connection is closed.

The server itself reports how it is: ``/health`` and ``/livez`` whether it takes requests in,
``/ready`` and ``/readyz`` whether its run works on them. Only those who have the token, where there
is one, learn what is wrong.
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

    settling = 5.0
    """For this many seconds, a source that is missing here may be about to come."""

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


def acquire(
    context: FeedContext, endpoint: Endpoint, read_timeout: float, who: str
) -> Listener | None:
    """Returns the listener of the vertex's pipeline there, one for all vertices that share it.

    ``who`` is the source, for errors. ``None`` if the endpoint is optional and someone else has
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


def release(context: FeedContext, listener: Listener) -> None:
    """Ends the listening of a vertex; the port is free when the last one has ended."""
    if not listener.remove(context.vertex):
        del _shared[_key(context, listener.endpoint)]
        listener.stop()
        _close_unused(context.pipeline)


def _key(context: FeedContext, endpoint: Endpoint) -> ListenerKey:
    # Any free port is another one for https than for http.
    secured = endpoint.secured and endpoint.port == 0
    return context.pipeline, endpoint.host, endpoint.port, secured


def _link_of(context: FeedContext) -> Link:
    """Returns the connection that all listeners of the pipeline share."""
    if context.pipeline not in _links:
        _links[context.pipeline] = Link(context.link.server)
    return _links[context.pipeline]


def _close_unused(pipeline: str) -> None:
    """Closes the connection of a pipeline that listens nowhere any more."""
    if not any(key[0] == pipeline for key in _shared) and pipeline in _links:
        _links.pop(pipeline).close()


# --- the feed -----------------------------------------------------------------------------------

_END = 15.0
_RENAME = "use localhost, or give the source a token"


class ListeningFeed(ABC):
    """One vertex that takes requests in. Started and stopped by the run's thread.

    The run tells its ``kind``, its ``purpose`` and its ``path``. ``advice`` is for those who want
    pages of other sites to send; those of ``origins`` may.
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
        """The reason why it takes in nothing at the moment; ``None`` while it does."""
        if self._stopping or not self.listeners:
            return "the run is stopping"
        return next(filter(None, (listener.failure for listener in self.listeners)), None)

    def start(self) -> None:
        """Listens; ``SetupError`` when that is not possible, or not safe."""
        try:
            for endpoint in self._places:
                self._refuse_strangers(endpoint)
                self._warn_of_readers(endpoint)
            for endpoint in self._places:
                self._acquire(endpoint)
            self.link.run(self._prepare(self.link))
            self._begin_taking()
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """Refuses what comes, finishes what is here, then stops listening."""
        self._stopping = True
        if self.listeners:
            with contextlib.suppress(TimeoutError):
                self.link.run(self._end(), timeout=_END)
            listeners, self.listeners = self.listeners, []
            for listener in listeners:
                release(self._context, listener)

    @abstractmethod
    async def _prepare(self, link: Link) -> None:
        """Makes ready what requests need, before there are any."""

    @abstractmethod
    def _routes(self) -> Sequence[Route]:
        """Returns the paths, and who takes requests there."""

    @abstractmethod
    async def _end(self) -> None:
        """Finishes what is here, as far as that does not take too long."""

    def _acquire(self, endpoint: Endpoint) -> None:
        listener = acquire(self._context, endpoint, self._read_timeout, self._who)
        if listener is not None:
            self.listeners.append(listener)
            return
        self._context.tell(
            f"{self._context.vertex} does not listen on https: another process uses "
            f"{endpoint.host}:{endpoint.port}"
        )

    def _begin_taking(self) -> None:
        """Has requests taken in, and tells where."""
        part = VertexRoutes(self._routes(), self._guard, lambda: self.failure)
        for listener in self.listeners:
            listener.add(self._context.vertex, part)
            how = " (self-signed: curl -k)" if listener.endpoint.self_signed else ""
            place = f"{listener.url}{self._path}{how}"
            self._context.tell(f"{self._context.vertex} {self.purpose} at {place}")

    def _refuse_strangers(self, endpoint: Endpoint) -> None:
        """Beyond this machine only those who know the token may post."""
        if not self._guard.needs_token and not is_loopback(endpoint.host, self._who):
            raise SetupError(
                f"The {self._who} would take messages from anybody who can reach {endpoint.host}.",
                "Give it a token with auth: {token: {env: NAME}}, or leave out its host to listen "
                "on this machine only.",
            )

    def _warn_of_readers(self, endpoint: Endpoint) -> None:
        if not endpoint.secured and not is_loopback(endpoint.host, self._who):
            self._context.tell(
                f"{self._context.vertex} listens on {endpoint.host} without TLS: its token and its "
                "messages can be read in transit"
            )
