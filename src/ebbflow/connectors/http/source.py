"""The HTTP source: each POST to ``/vertices/{name}`` is a message.

A feed: posts are stored in the vertex's buffer, and a post is answered with 200 only when JetStream
has confirmed that. Posts with the same ``x-numaflow-id`` are stored once, also across restarts, for
as long as the buffer recognises copies.

Requests are read, checked and stored on the listener's loop. The number of concurrent requests and
their bytes are bounded; beyond that a request is refused before its body is kept.
"""

from __future__ import annotations

import asyncio
import json
import time
from dataclasses import dataclass, replace

import pyarrow as pa

from ebbflow.connectors.http.known_ids import KnownIds
from ebbflow.connectors.listening.feed import ListeningFeed
from ebbflow.connectors.listening.posts import (
    CERTAIN_WITHIN,
    ROW_BYTES,
    Envelope,
    PostStore,
    rows_of_posts,
)
from ebbflow.domain.secrets import Secret
from ebbflow.nats.link import Link
from ebbflow.streams.feed import FeedContext
from ebbflow.streams.names import Names
from ebbflow.web.app import Admission, Body, Reservation, Route
from ebbflow.web.exchange import Exchange, HttpRequest, Receiver, Refusal, unavailable
from ebbflow.web.server import Endpoint

_MOST_BYTES = 64 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class HttpSourceSettings:
    """The limits for posts. Times are in seconds.

    ``read_timeout`` limits how long a whole request takes to arrive, ``ack_wait`` how long
    JetStream takes to confirm it. At most ``in_flight`` requests are read and stored at the same
    time.
    """

    endpoints: tuple[Endpoint, ...]
    token: Secret | None = None
    read_timeout: float = 10.0
    ack_wait: float = 5.0
    in_flight: int = 1_000


class HttpFeed(ListeningFeed):
    """One vertex that takes posts."""

    kind, purpose = "http", "takes messages"

    def __init__(self, settings: HttpSourceSettings, context: FeedContext) -> None:
        path = f"/vertices/{context.vertex}"
        super().__init__(context, path, settings.endpoints, settings.token, settings.read_timeout)
        self._ack_wait = settings.ack_wait
        self._admission = Admission(settings.in_flight, _MOST_BYTES)

    async def _prepare(self, link: Link) -> None:
        buffers = replace(self._context, link=link).buffers
        names = Names(self._context.pipeline)
        known_ids = KnownIds(link, names, self._context.vertex, CERTAIN_WITHIN)
        await known_ids.load(buffers.has_stored)
        self._store = PostStore(buffers, known_ids, self._ack_wait)
        # Arrow imports pandas when it makes its first column, which must not delay a sender.
        rows_of_posts([])

    def _routes(self) -> list[Route]:
        return [Route((b"POST",), self._path, self.open)]

    async def _end(self) -> None:
        async with asyncio.timeout(self.grace):
            await self._admission.wait_until_empty()

    def open(self, request: HttpRequest, exchange: Exchange) -> Receiver:
        """Returns the post that receives the body; ``Refusal`` if it is not allowed."""
        self._guard.check_site(request)
        self._guard.check_token(request)
        if failure := self.failure:
            raise unavailable(failure)
        envelope = Envelope(request.headers, time.time_ns() // 1000)
        reservation = self._admission.reserve(envelope.announced, self._context.largest)
        return Post(envelope, exchange, reservation, self._store)


class Post(Body):
    """One post: its body while it arrives, its messages while they are stored, and its answer.

    When it is complete, ``count`` is the number of its messages and ``size`` their approximate
    bytes.
    """

    __slots__ = ("_exchange", "_store", "count", "envelope", "rows", "size", "value")

    def __init__(
        self,
        envelope: Envelope,
        exchange: Exchange,
        reservation: Reservation,
        store: PostStore,
    ) -> None:
        super().__init__(reservation)
        self.envelope = envelope
        self.value = b""
        self.rows: pa.RecordBatch | None = None
        self._exchange: Exchange | None = exchange
        self._store = store
        self.count = 1
        self.size = 0

    # --- called by the connection ---------------------------------------------------------------

    def finish(self) -> None:
        """Starts storing it; ``Refusal`` if it holds no messages."""
        self.value = self.join()
        self.size = self.received + self.envelope.size + ROW_BYTES
        try:
            if self.envelope.is_batch:
                self._split()
            self._store.add(self)
        except BaseException:
            self.abandon()
            raise

    def _split(self) -> None:
        self.rows = self.envelope.split(self.value)
        self.count, self.size = self.rows.num_rows, self.rows.nbytes
        self._reservation.grow_to(self.size)

    # --- called by the store --------------------------------------------------------------------

    @property
    def named_id(self) -> str | None:
        """The id that its sender gave."""
        return self.envelope.id if self.envelope.has_own_id else None

    def settle(self, refusal: Refusal | None) -> None:
        """Releases its reservation and answers, unless it is answered already. Called once."""
        self._reservation.release()
        self.answer(refusal)

    def answer(self, refusal: Refusal | None) -> None:
        """Answers that it is stored, or why not; only the first call has an effect."""
        exchange, self._exchange = self._exchange, None
        if exchange is None:
            return
        if refusal is None:
            exchange.respond(200, self._confirmation())
        else:
            exchange.refuse(refusal)

    def _confirmation(self) -> bytes:
        text = json.dumps(self.envelope.id)
        if self.rows is None:
            return b'{"id":%b}' % text.encode()
        return b'{"id":%b,"messages":%d}' % (text.encode(), self.count)
