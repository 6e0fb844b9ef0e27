"""The ports of one vertex and who may come in: shared by all sources that have a web server."""

from __future__ import annotations

import hmac
from collections.abc import Mapping, Sequence

from ebbflow.buffers.feed import Spot
from ebbflow.connectors.http.listener import HttpListener, Taker, acquire, release
from ebbflow.errors import SetupError
from ebbflow.nats.link import Link
from ebbflow.secret import Secret
from ebbflow.web.binding import is_loopback
from ebbflow.web.endpoint import Endpoint
from ebbflow.web.refusal import Refusal

_CHALLENGE = {"www-authenticate": "Bearer"}


class Doors:
    """Where a vertex listens. Opened and closed by the run's thread.

    ``kind`` is that of the source, for what is told about it.
    """

    def __init__(
        self, kind: str, spot: Spot, endpoints: Sequence[Endpoint], token: Secret | None
    ) -> None:
        self._who = f"{kind} source {spot.vertex}"
        self._spot = spot
        self._endpoints = endpoints
        self._token = token.reveal().encode() if token else None
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
            listener.add(self._spot.vertex, takers)
            how = " (self-signed: curl -k)" if listener.endpoint.self_signed else ""
            self._spot.tell(f"{self._spot.vertex} {what} at {listener.url}{path}{how}")

    def release(self) -> None:
        """Lets go of the ports."""
        listeners, self.listeners = self.listeners, []
        for listener in listeners:
            release(self._spot, listener)

    def authorize(self, headers: Sequence[tuple[bytes, bytes]]) -> None:
        """Raises ``Refusal`` unless the bearer token is there and right."""
        if self._token is None:
            return
        login = next((text for name, text in headers if name == b"authorization"), b"")
        kind, _, token = login.partition(b" ")
        # How long it takes to compare must not tell how much of it was right.
        same = hmac.compare_digest(token.strip(), self._token)
        if kind.lower() != b"bearer" or not same:
            raise Refusal(401, "the bearer token is missing or wrong", headers=_CHALLENGE)

    def _refuse_strangers(self, endpoint: Endpoint) -> None:
        """Beyond this machine only those who know the token may post."""
        if self._token is None and not is_loopback(endpoint.host, self._who):
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
