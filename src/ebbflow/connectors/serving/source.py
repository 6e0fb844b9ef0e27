"""The serving source: a request is what somebody posts, and its answers go back to the caller.

A feed: a request is stored in the vertex's buffer before anybody hears that it was taken, and the
book of requests knows what becomes of it. The endpoints stand on the pipeline's web server, beside
those of its http sources.
"""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Mapping

from ebbflow.connectors.http.doors import Doors
from ebbflow.connectors.serving.answers import AnswerSource, BucketAnswers, OwnStoreAnswers
from ebbflow.connectors.serving.book import RequestBook
from ebbflow.connectors.serving.cors import Cors
from ebbflow.connectors.serving.endpoints import Endpoints
from ebbflow.connectors.serving.openapi import PAGE_HEADERS, make_document, make_page
from ebbflow.connectors.serving.results import describe_problem, encode_json
from ebbflow.connectors.serving.settings import ServingSettings
from ebbflow.nats.link import Link
from ebbflow.streams.answers import AnswerBucket
from ebbflow.streams.feed import Spot, StorePlan
from ebbflow.web.body import BodilessRequest
from ebbflow.web.connection import Receiver, RequestHead
from ebbflow.web.exchange import JSON, Exchange
from ebbflow.web.refusal import unavailable
from ebbflow.web.server import Opener

_GRACE = 5.0
_END = 15.0


class ServingFeed:
    """One vertex that takes requests in. Started and stopped by the run's thread."""

    on_spark = False

    def __init__(self, settings: ServingSettings, spot: Spot) -> None:
        self._settings = settings
        self._spot = spot
        self._doors = Doors(
            "serving",
            spot,
            settings.endpoints,
            settings.token,
            settings.cors,
            "name their origin in cors, or give the source a token",
        )
        self._cors = Cors(settings.cors, settings.id_header)
        self._book: RequestBook | None = None
        self._endpoints: Endpoints
        self._stopping = False
        self._has_frozen = False

    # --- as the run sees it ---------------------------------------------------------------------

    @property
    def exhausted(self) -> bool:
        """Never: somebody may ask something."""
        return False

    @property
    def failure(self) -> str | None:
        """The reason why it takes in nothing at the moment; ``None`` while it does."""
        if self._stopping:
            return "the run is stopping"
        if self._book is None:
            return "the run is starting"
        return self._doors.failure or self._book.failure

    def start(self) -> None:
        """Listens; ``SetupError`` when that is not possible, or not safe."""
        try:
            self._doors.acquire(self._settings.read_timeout)
            # On the listeners' loop: a request changes threads for nothing.
            self._doors.link.run(self._prepare(self._doors.link))
            self._freeze()
            self._doors.open(self._routes(), "answers requests", "/v1/process")
        except BaseException:
            self.stop()
            raise

    async def _prepare(self, link: Link) -> None:
        book = await self._open_book(link)
        self._endpoints = Endpoints(book, self._settings, self._spot.largest)
        self._book = book

    async def _open_book(self, link: Link) -> RequestBook:
        answers = open_answers(link, self._spot.store)
        book = RequestBook(link, self._spot, answers, self._settings.ack_wait)
        await book.open()
        return book

    def stop(self) -> None:
        """Refuses what comes, answers what is here, then stops listening."""
        self._stopping = True
        if self._doors.listeners:
            with contextlib.suppress(TimeoutError):
                self._doors.link.run(self._end(), timeout=_END)
            self._doors.release()
            if self._has_frozen:
                gc.unfreeze()

    def _freeze(self) -> None:
        """Has the garbage collector pass over all that was imported.

        A look at it would keep callers waiting for a tenth of a second. Whoever has frozen objects
        already, as the program that this run is part of may have, decides when to end that.
        """
        self._has_frozen = not gc.get_freeze_count()
        if self._has_frozen:
            gc.collect()
            gc.freeze()

    async def _end(self) -> None:
        if self._book is not None:
            await self._endpoints.end(_GRACE)
            await self._book.close()

    # --- as the listener sees it ----------------------------------------------------------------

    def _routes(self) -> dict[str, ServingRoute]:
        document = make_document(self._spot.pipeline, self._settings)
        page = make_page(document).encode()
        openers: dict[str, dict[bytes, Opener]] = {
            **self._endpoints.openers,
            "/openapi.json": {b"GET": show(encode_json(document), JSON)},
            "/docs": {b"GET": show(page, "text/html; charset=utf-8", PAGE_HEADERS)},
        }
        return {path: ServingRoute(self, by_method) for path, by_method in openers.items()}

    def admit(self, head: RequestHead, exchange: Exchange, methods: tuple[bytes, ...]) -> bool:
        """Returns whether a request is to be worked on; ``Refusal`` if it is not wanted.

        A browser's question before the request is answered here: it cannot have the token.
        """
        self._doors.check_site(head)
        self._cors.allow(head, exchange)
        if head.method == b"OPTIONS":
            self._cors.answer_preflight(exchange, methods)
            return False
        self._doors.authorize(head)
        if failure := self.failure:
            raise unavailable(failure)
        return True

    @property
    def answers_preflights(self) -> bool:
        """True if there are pages that may ask."""
        return self._cors.is_on


class ServingRoute:
    """One path of a serving source."""

    describe = staticmethod(describe_problem)

    def __init__(self, feed: ServingFeed, openers: Mapping[bytes, Opener]) -> None:
        self._feed = feed
        self._openers = openers
        self.methods = (*openers, *((b"OPTIONS",) if feed.answers_preflights else ()))

    @property
    def failure(self) -> str | None:
        """The reason why it takes in nothing at the moment; ``None`` while it does."""
        return self._feed.failure

    def open(self, head: RequestHead, exchange: Exchange) -> Receiver:
        """Returns who takes the body of a request; ``Refusal`` if it is not wanted."""
        if not self._feed.admit(head, exchange, self.methods):
            return BodilessRequest(lambda: None)
        return self._openers[head.method](head, exchange)


def open_answers(link: Link, store: StorePlan | None) -> AnswerSource:
    """Returns the store of a pipeline's answers, for reading."""
    assert store is not None, "a pipeline that serves has a store"
    if store.code is None:
        return BucketAnswers(AnswerBucket(link.client, store.bucket))
    return OwnStoreAnswers(store.code, store.search, store.env)


def show(body: bytes, content_type: str, headers: Mapping[str, str] | None = None) -> Opener:
    """Returns who answers each request with the same."""

    def open(head: RequestHead, exchange: Exchange) -> Receiver:
        return BodilessRequest(lambda: exchange.respond(200, body, headers, content_type))

    return open
