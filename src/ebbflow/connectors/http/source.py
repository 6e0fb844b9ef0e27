"""The HTTP source: a message is what somebody posts to ``/vertices/{name}``.

A feed: what is posted is stored in the vertex's buffer, and a post is answered with 200 when
JetStream has confirmed that, not before. A post with an ``x-numaflow-id`` that was answered so
before is stored once, also across restarts, for as long as the buffer knows copies.

Requests are read, checked and stored on the listener's loop. How many there may be at the same
time, and how many bytes they may hold, is bounded; beyond that a request is refused before its body
is kept.
"""

from __future__ import annotations

import contextlib
import hmac
import time
from collections.abc import Sequence
from dataclasses import replace

from ebbflow.buffers.feed import Spot
from ebbflow.buffers.names import Names
from ebbflow.connectors.http.connection import Exchange, Receiver, RequestHead
from ebbflow.connectors.http.known_ids import KnownIds
from ebbflow.connectors.http.listener import HttpListener, acquire, is_loopback, release
from ebbflow.connectors.http.post_store import CERTAIN_WITHIN, Post, PostStore, check_size
from ebbflow.connectors.http.request import Envelope, Refusal, Room, rows_of, unavailable
from ebbflow.connectors.http.settings import Endpoint, HttpSourceSettings
from ebbflow.errors import SetupError
from ebbflow.nats.link import Link

_MOST_BYTES = 64 * 1024 * 1024
_GRACE = 5.0
_CHALLENGE = {"www-authenticate": "Bearer"}


class HttpFeed:
    """One vertex that takes posts in. Started and stopped by the run's thread."""

    on_spark = False

    def __init__(self, settings: HttpSourceSettings, spot: Spot) -> None:
        self._settings = settings
        self._spot = spot
        self._room = Room(settings.in_flight, _MOST_BYTES)
        self._token = settings.token.reveal().encode() if settings.token else None
        self._listeners: list[HttpListener] = []
        self._stopping = False

    # --- as the run sees it ---------------------------------------------------------------------

    @property
    def exhausted(self) -> bool:
        """Never: somebody may post something."""
        return False

    @property
    def failure(self) -> str | None:
        """The reason why it takes in nothing at the moment; ``None`` while it does."""
        if self._stopping or not self._listeners:
            return "the run is stopping"
        for listener in self._listeners:
            if failure := listener.failure:
                return failure
        return None

    def start(self) -> None:
        """Listens; ``SetupError`` when that is not possible, or not safe."""
        for endpoint in self._settings.endpoints:
            self._refuse_strangers(endpoint)
            self._warn_of_readers(endpoint)
        try:
            self._acquire_all()
            # On the listeners' loop: a request changes threads for nothing.
            link = self._listeners[0].link
            link.run(self._prepare(link))
            for listener in self._listeners:
                listener.add(self._spot.vertex, self)
                self._tell_address(listener)
        except BaseException:
            self._release_all()
            raise

    def _acquire_all(self) -> None:
        for endpoint in self._settings.endpoints:
            listener = acquire(self._spot, endpoint, self._settings.read_timeout)
            if listener is not None:
                self._listeners.append(listener)
                continue
            self._spot.tell(
                f"{self._spot.vertex} does without https: somebody else listens on "
                f"{endpoint.host}:{endpoint.port}"
            )

    def _tell_address(self, listener: HttpListener) -> None:
        vertex = self._spot.vertex
        how = " (self-signed: curl -k)" if listener.endpoint.self_signed else ""
        self._spot.tell(f"{vertex} takes messages at {listener.url}/vertices/{vertex}{how}")

    def _release_all(self) -> None:
        listeners, self._listeners = self._listeners, []
        for listener in listeners:
            release(self._spot, listener)

    async def _prepare(self, link: Link) -> None:
        buffers = replace(self._spot, link=link).buffers
        names = Names(self._spot.pipeline)
        known_ids = KnownIds(link, names, self._spot.vertex, CERTAIN_WITHIN)
        await known_ids.load(buffers.has_stored)
        self._store = PostStore(buffers, known_ids, self._settings.ack_wait)
        # The first column that Arrow makes has it import pandas: not while somebody waits.
        rows_of([])

    def _refuse_strangers(self, endpoint: Endpoint) -> None:
        """Beyond this machine only those who know the token may post."""
        host = endpoint.host
        if self._settings.token is None and not is_loopback(host):
            raise SetupError(
                f"The http source {self._spot.vertex} would take messages from anybody who can "
                f"reach {host}.",
                "Give it a token with auth: {token: {env: NAME}}, or leave out its host to listen "
                "on this machine only.",
            )

    def _warn_of_readers(self, endpoint: Endpoint) -> None:
        if not endpoint.secured and not is_loopback(endpoint.host):
            self._spot.tell(
                f"{self._spot.vertex} listens on {endpoint.host} without TLS: its token and its "
                "messages can be read on their way"
            )

    def stop(self) -> None:
        """Refuses what comes, finishes what is here, then stops listening."""
        self._stopping = True
        if self._listeners:
            with contextlib.suppress(TimeoutError):
                self._listeners[0].link.run(self._room.wait_until_empty(), timeout=_GRACE)
            self._release_all()

    # --- as the listener sees it ----------------------------------------------------------------

    def open(self, head: RequestHead, exchange: Exchange) -> Receiver:
        """Returns the post that takes the body; ``Refusal`` if it is not wanted."""
        self._authorize(head.headers)
        if failure := self.failure:
            raise unavailable(failure)
        envelope = Envelope(head.headers, time.time_ns() // 1000)
        check_size(envelope.announced, self._spot.largest)
        room = self._room.reserve(envelope.announced)
        return Post(envelope, exchange, room, self._spot.largest, self._store)

    def _authorize(self, headers: Sequence[tuple[bytes, bytes]]) -> None:
        if self._token is None:
            return
        login = next((text for name, text in headers if name == b"authorization"), b"")
        kind, _, token = login.partition(b" ")
        # How long it takes to compare must not tell how much of it was right.
        same = hmac.compare_digest(token.strip(), self._token)
        if kind.lower() != b"bearer" or not same:
            raise Refusal(401, "the bearer token is missing or wrong", headers=_CHALLENGE)
