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
import time
from dataclasses import replace

from ebbflow.connectors.http.doors import Doors
from ebbflow.connectors.http.known_ids import KnownIds
from ebbflow.connectors.http.post_store import CERTAIN_WITHIN, Post, PostStore
from ebbflow.connectors.http.request import Envelope, rows_of
from ebbflow.connectors.http.settings import HttpSourceSettings
from ebbflow.nats.link import Link
from ebbflow.streams.feed import Spot
from ebbflow.streams.names import Names
from ebbflow.web.body import check_size
from ebbflow.web.connection import Receiver, RequestHead
from ebbflow.web.exchange import Exchange, describe_reason
from ebbflow.web.refusal import unavailable
from ebbflow.web.room import Room

_MOST_BYTES = 64 * 1024 * 1024
_GRACE = 5.0


class HttpFeed:
    """One vertex that takes posts in. Started and stopped by the run's thread."""

    on_spark = False
    methods = (b"POST",)
    describe = staticmethod(describe_reason)

    def __init__(self, settings: HttpSourceSettings, spot: Spot) -> None:
        self._settings = settings
        self._spot = spot
        self._room = Room(settings.in_flight, _MOST_BYTES)
        self._doors = Doors("http", spot, settings.endpoints, settings.token)
        self._stopping = False

    # --- as the run sees it ---------------------------------------------------------------------

    @property
    def exhausted(self) -> bool:
        """Never: somebody may post something."""
        return False

    @property
    def failure(self) -> str | None:
        """The reason why it takes in nothing at the moment; ``None`` while it does."""
        return "the run is stopping" if self._stopping else self._doors.failure

    def start(self) -> None:
        """Listens; ``SetupError`` when that is not possible, or not safe."""
        path = f"/vertices/{self._spot.vertex}"
        try:
            self._doors.acquire(self._settings.read_timeout)
            # On the listeners' loop: a request changes threads for nothing.
            link = self._doors.link
            link.run(self._prepare(link))
            self._doors.open({path: self}, "takes messages", path)
        except BaseException:
            self._doors.release()
            raise

    async def _prepare(self, link: Link) -> None:
        buffers = replace(self._spot, link=link).buffers
        names = Names(self._spot.pipeline)
        known_ids = KnownIds(link, names, self._spot.vertex, CERTAIN_WITHIN)
        await known_ids.load(buffers.has_stored)
        self._store = PostStore(buffers, known_ids, self._settings.ack_wait)
        # The first column that Arrow makes has it import pandas: not while somebody waits.
        rows_of([])

    def stop(self) -> None:
        """Refuses what comes, finishes what is here, then stops listening."""
        self._stopping = True
        if self._doors.listeners:
            with contextlib.suppress(TimeoutError):
                self._doors.link.run(self._room.wait_until_empty(), timeout=_GRACE)
            self._doors.release()

    # --- as the listener sees it ----------------------------------------------------------------

    def open(self, head: RequestHead, exchange: Exchange) -> Receiver:
        """Returns the post that takes the body; ``Refusal`` if it is not wanted."""
        self._doors.check_site(head)
        self._doors.authorize(head)
        if failure := self.failure:
            raise unavailable(failure)
        envelope = Envelope(head.headers, time.time_ns() // 1000)
        check_size(envelope.announced, self._spot.largest)
        room = self._room.reserve(envelope.announced)
        return Post(envelope, exchange, room, self._spot.largest, self._store)
