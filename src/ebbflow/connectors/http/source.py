"""The HTTP source: a message is what somebody posts to ``/vertices/{name}``.

A feed: what is posted is stored in the vertex's buffer, and a post is answered with 200 when
JetStream has confirmed that, not before. A post with an ``x-numaflow-id`` that was answered so
before is stored once, also across restarts, for as long as the buffer knows copies.

Requests are read and checked on the listener's loop and published on the link's, all that are
there at the same time side by side. How many there may be, and how many bytes they may hold, is
bounded; beyond that a request is refused before its body is kept.
"""

from __future__ import annotations

import contextlib
import hmac
import time
from dataclasses import replace

import pyarrow as pa
from starlette.requests import Request

from ebbflow.buffers.feed import Spot
from ebbflow.buffers.names import Names
from ebbflow.connectors.http.known_ids import KnownIds
from ebbflow.connectors.http.listener import HttpListener, acquire, is_loopback, release
from ebbflow.connectors.http.request import Body, Envelope, Refusal, Room, too_many, unavailable
from ebbflow.connectors.http.settings import HttpSourceSettings
from ebbflow.errors import BufferFull, EbbflowError, MessageTooLarge, SetupError

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
        self._listener: HttpListener | None = None
        self._stopping = False

    # --- as the run sees it ---------------------------------------------------------------------

    @property
    def exhausted(self) -> bool:
        """Never: somebody may post something."""
        return False

    @property
    def failure(self) -> str | None:
        """The reason why it takes in nothing at the moment; ``None`` while it does."""
        if self._stopping or self._listener is None:
            return "the run is stopping"
        return self._listener.failure

    def start(self) -> None:
        """Listens; ``SetupError`` when that is not possible, or not safe."""
        self._refuse_strangers()
        self._warn_of_listeners()
        listener = acquire(self._spot, self._settings.endpoint, self._settings.read_timeout)
        try:
            self._listen(listener)
        except BaseException:
            release(self._spot, listener)
            raise

    def _listen(self, listener: HttpListener) -> None:
        """All of it on the listener's loop: a request changes threads for nothing."""
        vertex, names = self._spot.vertex, Names(self._spot.pipeline)
        self._buffers = replace(self._spot, link=listener.link).buffers
        self._known_ids = KnownIds(listener.link, names, vertex, self._settings.ack_wait)
        listener.link.run(self._known_ids.load())
        self._listener = listener
        listener.add(vertex, self)
        self._spot.tell(f"{vertex} takes messages at {listener.url}/vertices/{vertex}")

    def _refuse_strangers(self) -> None:
        """Beyond this machine only those who know the token may post."""
        host = self._settings.endpoint.host
        if self._settings.token is None and not is_loopback(host):
            raise SetupError(
                f"The http source {self._spot.vertex} would take messages from anybody who can "
                f"reach {host}.",
                "Give it a token with auth: {token: {env: NAME}}, or leave out its host to listen "
                "on this machine only.",
            )

    def _warn_of_listeners(self) -> None:
        endpoint = self._settings.endpoint
        if endpoint.certificate is None and not is_loopback(endpoint.host):
            self._spot.tell(
                f"{self._spot.vertex} listens on {endpoint.host} without TLS: its token and its "
                "messages can be read on their way"
            )

    def stop(self) -> None:
        """Refuses what comes, finishes what is here, then stops listening."""
        self._stopping = True
        listener, self._listener = self._listener, None
        if listener is not None:
            with contextlib.suppress(TimeoutError):
                listener.link.run(self._room.wait_until_empty(), timeout=_GRACE)
            release(self._spot, listener)

    # --- as the listener sees it ----------------------------------------------------------------

    async def take(self, request: Request) -> dict[str, object]:
        """Stores what was posted and returns the answer; ``Refusal`` if it is not stored."""
        body = Body(request, self._spot.largest)
        try:
            return await self._take_in(request, body)
        except Refusal as refusal:
            if not await body.discard_rest():
                refusal.headers["connection"] = "close"
            raise

    async def _take_in(self, request: Request, body: Body) -> dict[str, object]:
        self._authorize(request.headers.get("authorization", ""))
        if failure := self.failure:
            raise unavailable(failure)
        now = time.time_ns() // 1000
        envelope = Envelope.of(request.headers.raw, now)
        with self._room.place(body.announced_size()) as place:
            value = await body.read(place, self._settings.read_timeout)
            rows = envelope.rows(value, now)
            place.cover(rows.nbytes)
            await self._store(envelope, rows)
        answer: dict[str, object] = {"id": envelope.id}
        return answer | {"messages": rows.num_rows} if envelope.is_batch else answer

    def _authorize(self, given: str) -> None:
        if self._settings.token is None:
            return
        kind, _, token = given.partition(" ")
        known = self._settings.token.reveal()
        # How long it takes to compare must not tell how much of it was right.
        same = hmac.compare_digest(token.strip().encode(), known.encode())
        if kind.lower() != "bearer" or not same:
            raise Refusal(401, "the bearer token is missing or wrong", headers=_CHALLENGE)

    async def _store(self, envelope: Envelope, rows: pa.RecordBatch) -> None:
        if envelope.given and envelope.id in self._known_ids:
            return
        try:
            await self._buffers.put(rows, envelope.id, within=self._settings.ack_wait)
            if envelope.given:
                await self._known_ids.add(envelope.id)
        except BufferFull:
            raise too_many("the buffer is full") from None
        except MessageTooLarge as error:
            raise Refusal(413, str(error)) from None
        except EbbflowError as error:
            raise unavailable(_unconfirmed(error)) from None


def _unconfirmed(error: EbbflowError) -> str:
    return f"it is not certain whether it is stored: {error}; send it again with the same id"
