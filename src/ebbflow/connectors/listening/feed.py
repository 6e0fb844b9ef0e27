"""A feed that listens: where, to whom, and how it is started and stopped.

Requests are read, checked and stored on the listeners' loop, so that none changes threads.
"""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Collection, Sequence
from typing import ClassVar

from ebbflow.connectors.listening.server import Listener, VertexRoutes, acquire, release
from ebbflow.domain.errors import SetupError
from ebbflow.domain.secrets import Secret
from ebbflow.nats.link import Link
from ebbflow.streams.feed import Spot
from ebbflow.web.app import Route
from ebbflow.web.guard import Guard, SiteGuard
from ebbflow.web.server import Endpoint, is_loopback

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

    def __init__(
        self,
        spot: Spot,
        path: str,
        endpoints: Sequence[Endpoint],
        token: Secret | None,
        read_timeout: float,
        origins: Collection[str] = (),
    ) -> None:
        self._who = f"{self.kind} source {spot.vertex}"
        self._spot = spot
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
                release(self._spot, listener)

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
        listener = acquire(self._spot, endpoint, self._read_timeout, self._who)
        if listener is not None:
            self.listeners.append(listener)
            return
        self._spot.tell(
            f"{self._spot.vertex} does without https: somebody else listens on "
            f"{endpoint.host}:{endpoint.port}"
        )

    def _begin_taking(self) -> None:
        """Has requests taken in, and tells where."""
        part = VertexRoutes(self._routes(), self._guard, lambda: self.failure)
        for listener in self.listeners:
            listener.add(self._spot.vertex, part)
            how = " (self-signed: curl -k)" if listener.endpoint.self_signed else ""
            place = f"{listener.url}{self._path}{how}"
            self._spot.tell(f"{self._spot.vertex} {self.purpose} at {place}")

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
            self._spot.tell(
                f"{self._spot.vertex} listens on {endpoint.host} without TLS: its token and its "
                "messages can be read on their way"
            )
