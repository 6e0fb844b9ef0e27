"""The ports of one vertex and who may come in: shared by all sources that have a web server."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from ebbflow.connectors.http.listener import HttpListener, Taker, acquire, release
from ebbflow.domain.errors import SetupError
from ebbflow.domain.secrets import Secret
from ebbflow.nats.link import Link
from ebbflow.streams.feed import Spot
from ebbflow.web.binding import is_loopback
from ebbflow.web.connection import RequestHead
from ebbflow.web.endpoint import Endpoint
from ebbflow.web.guard import SiteGuard, TokenGuard

_RENAME = "use localhost, or give the source a token"


class Doors:
    """Where a vertex listens. Opened and closed by the run's thread.

    ``kind`` is that of the source, for what is told about it. Pages of ``origins`` may ask.
    """

    def __init__(
        self,
        kind: str,
        spot: Spot,
        endpoints: Sequence[Endpoint],
        token: Secret | None,
        origins: Collection[str] = (),
        advice: str = "send it from a program, or give the source a token",
    ) -> None:
        self._who = f"{kind} source {spot.vertex}"
        self._spot = spot
        self._endpoints = endpoints
        self._tokens = TokenGuard(token)
        self._sites = SiteGuard({place.host for place in endpoints}, advice, _RENAME, origins)
        self.listeners: list[HttpListener] = []

    @property
    def link(self) -> Link:
        """The connection to NATS on whose loop all requests are."""
        return self.listeners[0].link

    @property
    def failure(self) -> str | None:
        """The reason why nobody is heard; ``None`` while all is well."""
        if not self.listeners:
            return "the run is stopping"
        return next(filter(None, (listener.failure for listener in self.listeners)), None)

    def acquire(self, read_timeout: float) -> None:
        """Takes the ports; ``SetupError`` when that is not possible, or not safe."""
        for endpoint in self._endpoints:
            self._refuse_strangers(endpoint)
            self._warn_of_readers(endpoint)
        for endpoint in self._endpoints:
            listener = acquire(self._spot, endpoint, read_timeout, self._who)
            if listener is not None:
                self.listeners.append(listener)
                continue
            self._spot.tell(
                f"{self._spot.vertex} does without https: somebody else listens on "
                f"{endpoint.host}:{endpoint.port}"
            )

    def open(self, takers: Mapping[str, Taker], what: str, path: str) -> None:
        """Has requests taken in, and tells ``what`` is done at which ``path``."""
        for listener in self.listeners:
            listener.add(self._spot.vertex, takers, self._tokens)
            how = " (self-signed: curl -k)" if listener.endpoint.self_signed else ""
            self._spot.tell(f"{self._spot.vertex} {what} at {listener.url}{path}{how}")

    def release(self) -> None:
        """Lets go of the ports."""
        listeners, self.listeners = self.listeners, []
        for listener in listeners:
            release(self._spot, listener)

    def authorize(self, head: RequestHead) -> None:
        """Raises ``Refusal`` unless the bearer token is there and right, if one is needed."""
        self._tokens.check(head)

    def check_site(self, head: RequestHead) -> None:
        """Raises ``Refusal`` for requests of foreign pages, where no token keeps them out."""
        if not self._tokens.is_needed:
            self._sites.check(head)

    def _refuse_strangers(self, endpoint: Endpoint) -> None:
        """Beyond this machine only those who know the token may post."""
        if not self._tokens.is_needed and not is_loopback(endpoint.host, self._who):
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
