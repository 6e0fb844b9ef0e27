"""The endpoints of a serving source: what callers may ask, and how each is answered.

| path | what it does |
| --- | --- |
| ``POST /v1/process/sync`` | takes a request and answers with its results |
| ``POST /v1/process/async`` | takes a request and answers with its id, as soon as it is stored |
| ``GET /v1/process/fetch?id=`` | answers with the results of a request, if it has ended |
| ``GET /v1/process/status?id=`` | tells how far a request is, and its way |
| ``POST /v1/process/sse`` | takes a request and sends its results as they come |
| ``GET /v1/process/sse?id=`` | sends the results of a request that was taken before |

A request is stored before anybody hears that it was taken, and it goes on whatever becomes of its
caller: one that has gone, or waited for too long, can fetch the results later. So nothing here is
waited for when the client has gone. All of it is on the listeners' loop.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any

from ebbflow.connectors.serving.book import RequestBook
from ebbflow.connectors.serving.envelope import RequestEnvelope
from ebbflow.connectors.serving.query import read_id, read_last_event, read_timeout
from ebbflow.connectors.serving.results import (
    answer_request,
    describe_acceptance,
    describe_problem,
    describe_status,
    encode_json,
)
from ebbflow.connectors.serving.settings import ServingSettings
from ebbflow.connectors.serving.sse import format_error, stream_answers
from ebbflow.domain.errors import EbbflowError
from ebbflow.web.body import BodilessRequest, Body, check_size
from ebbflow.web.connection import Receiver, RequestHead, refusal_of
from ebbflow.web.event_stream import EventStream
from ebbflow.web.exchange import Exchange
from ebbflow.web.query import read_query
from ebbflow.web.refusal import Refusal, unavailable
from ebbflow.web.room import RequestRoom, Room
from ebbflow.web.server import Opener
from ebbflow.web.tasks import RequestTasks

_MOST_BYTES = 64 * 1024 * 1024
_NOBODY_KNOWS = "nobody knows a request of this id; it may be too old"
_IN_PROGRESS = encode_json({"status": "in-progress"})

AskedWork = Callable[[RequestEnvelope, bytes, Exchange], Coroutine[Any, Any, None]]
"""Does what a request with a body asks for."""

LookUp = Callable[[str, Exchange], Coroutine[Any, Any, None]]
"""Does what is asked for about the request of an id."""


class Question(Body):
    """A request with a body: ``work`` is begun when it is complete."""

    __slots__ = ("_begin",)

    def __init__(self, room: RequestRoom, largest: int, begin: Callable[[bytes], None]) -> None:
        super().__init__(room, largest)
        self._begin = begin

    def finish(self) -> None:
        """Has it answered."""
        self._begin(self.join())


class Endpoints:
    """What the paths of one serving source do. ``largest`` is the largest body there may be."""

    def __init__(self, book: RequestBook, settings: ServingSettings, largest: int) -> None:
        self._book = book
        self._largest = largest
        self._longest_wait = settings.request_timeout
        self._id_header = settings.id_header
        self._id_name = settings.id_header.lower()
        self._asked = Room(settings.in_flight, _MOST_BYTES)
        self._looked_up = Room(settings.in_flight, 0)
        self._tasks = RequestTasks(_explain_failure)

    @property
    def openers(self) -> dict[str, dict[bytes, Opener]]:
        """Who takes a request, by path and method."""
        return {
            "/v1/process/sync": {b"POST": self._open_sync},
            "/v1/process/async": {b"POST": self._open_async},
            "/v1/process/fetch": {b"GET": self._open_fetch},
            "/v1/process/status": {b"GET": self._open_status},
            "/v1/process/sse": {b"GET": self._open_following, b"POST": self._open_stream},
        }

    async def end(self, grace: float) -> None:
        """Waits for the answers that are due within so many seconds; other callers get a 503."""
        await self._tasks.end(grace)

    # --- requests with a body -------------------------------------------------------------------

    def _open_sync(self, head: RequestHead, exchange: Exchange) -> Receiver:
        wait = min(read_timeout(head) or self._longest_wait, self._longest_wait)
        return self._take(head, exchange, partial(self._answer_sync, wait=wait))

    async def _answer_sync(
        self, envelope: RequestEnvelope, body: bytes, exchange: Exchange, wait: float
    ) -> None:
        try:
            request = await self._book.ask(envelope, body, wait)
        except TimeoutError:
            raise _late(wait) from None
        answer_request(exchange, request)

    def _open_async(self, head: RequestHead, exchange: Exchange) -> Receiver:
        return self._take(head, exchange, self._answer_async)

    async def _answer_async(
        self, envelope: RequestEnvelope, body: bytes, exchange: Exchange
    ) -> None:
        await self._book.submit(envelope, body)
        exchange.respond(200, describe_acceptance(envelope.id))

    def _open_stream(self, head: RequestHead, exchange: Exchange) -> Receiver:
        return self._take(head, exchange, partial(self._submit_and_stream, wait=read_timeout(head)))

    async def _submit_and_stream(
        self, envelope: RequestEnvelope, body: bytes, exchange: Exchange, wait: float | None
    ) -> None:
        await self._book.submit(envelope, body)
        await self._stream(envelope.id, exchange, -1, wait)

    def _take(self, head: RequestHead, exchange: Exchange, work: AskedWork) -> Receiver:
        """Returns who takes the body, if there is room for it."""
        envelope = RequestEnvelope(head.headers, time.time_ns() // 1000, self._id_name)
        self._name(exchange, envelope.id)
        check_size(envelope.announced, self._largest)
        room = self._asked.reserve(envelope.announced)

        def begin(body: bytes) -> None:
            self._tasks.start(partial(work, envelope, body, exchange), exchange, room)

        return Question(room, self._largest, begin)

    # --- requests by id -------------------------------------------------------------------------

    def _open_fetch(self, head: RequestHead, exchange: Exchange) -> Receiver:
        return self._look_up(head, exchange, self._answer_fetch)

    async def _answer_fetch(self, request_id: str, exchange: Exchange) -> None:
        request = await self._book.find(request_id)
        if request is None:
            raise Refusal(404, _NOBODY_KNOWS)
        if request.status == "in-progress":
            exchange.respond(200, _IN_PROGRESS)
        else:
            answer_request(exchange, request)

    def _open_status(self, head: RequestHead, exchange: Exchange) -> Receiver:
        return self._look_up(head, exchange, self._answer_status)

    async def _answer_status(self, request_id: str, exchange: Exchange) -> None:
        request = await self._book.status(request_id)
        if request is None:
            raise Refusal(404, _NOBODY_KNOWS)
        exchange.respond(200, describe_status(request))

    def _open_following(self, head: RequestHead, exchange: Exchange) -> Receiver:
        """Follows a request; a GET that names none and has a body is one itself, as Numaflow's."""
        if "id" not in read_query(head) and _has_body(head):
            return self._open_stream(head, exchange)
        after, wait = read_last_event(head), read_timeout(head)
        return self._look_up(head, exchange, partial(self._follow, after=after, wait=wait))

    async def _follow(
        self, request_id: str, exchange: Exchange, after: int, wait: float | None
    ) -> None:
        if await self._book.status(request_id) is None:
            raise Refusal(404, _NOBODY_KNOWS)
        await self._stream(request_id, exchange, after, wait)

    async def _stream(
        self, request_id: str, exchange: Exchange, after: int, wait: float | None
    ) -> None:
        async with EventStream(exchange):
            try:
                async with asyncio.timeout(wait):
                    await stream_answers(exchange, self._book.watch(request_id), after)
            except TimeoutError:
                assert wait is not None
                exchange.put(format_error(exchange.describe(_late(wait))))

    def _look_up(self, head: RequestHead, exchange: Exchange, work: LookUp) -> Receiver:
        request_id = read_id(head)
        self._name(exchange, request_id)

        def begin() -> None:
            room = self._looked_up.reserve(0)
            self._tasks.start(partial(work, request_id, exchange), exchange, room)

        return BodilessRequest(begin)

    # --- work -----------------------------------------------------------------------------------

    def _name(self, exchange: Exchange, request_id: str) -> None:
        """Has every answer name the request."""
        exchange.lines += f"{self._id_header}: {request_id}\r\n".encode()
        exchange.describe = partial(describe_problem, id=request_id)


def _explain_failure(error: BaseException) -> Refusal:
    """Returns what a caller is told when there is no answer."""
    if isinstance(error, asyncio.CancelledError):
        return unavailable("the run is stopping; fetch the results when it goes on")
    if isinstance(error, EbbflowError | TimeoutError):
        return unavailable(str(error) or "NATS did not answer in time")
    assert isinstance(error, Exception)
    return refusal_of(error)


def _late(wait: float) -> Refusal:
    return Refusal(408, f"no answer within {wait:g} s; the request goes on, fetch it by its id")


def _has_body(head: RequestHead) -> bool:
    return any(
        name == b"transfer-encoding" or (name == b"content-length" and text.strip(b"0"))
        for name, text in head.headers
    )
