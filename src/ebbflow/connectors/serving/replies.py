"""The endpoints of a serving source and their answers.

| path | what it does |
| --- | --- |
| ``POST /v1/process/sync`` | accepts a request and answers with its results |
| ``POST /v1/process/async`` | accepts a request and answers with its id, once it is stored |
| ``GET /v1/process/fetch?id=`` | answers with the results of a request, if it has ended |
| ``GET /v1/process/status?id=`` | answers with the progress and history of a request |
| ``POST /v1/process/sse`` | accepts a request and streams its results |
| ``GET /v1/process/sse?id=`` | streams the results of an earlier request |

A request is stored before its caller is told that it is accepted, and it continues without its
caller: one that has disconnected, or waited too long, can fetch the results later. So if a client
disconnects, its handler stops waiting. Everything runs on the listeners' loop.

The body of an answer is the concatenated results, in order. Two headers separate them: their number
and the length of each in bytes. The type of results is derived from their bytes. A single result
that begins and ends like a JSON object or array is ``application/json``, other UTF-8 text is
``text/plain``, and anything else ``application/octet-stream``. A header tells browsers not to guess
further.

Streams are Server-Sent Events. A text answer is an event of the default type. An answer that is not
text, or has carriage returns, which the format would change, is a ``base64`` event. The last event
is ``done`` or ``error``, with JSON. Event ids increase as answers are stored, so a client that
reconnects with the last id it has seen gets the rest.
"""

from __future__ import annotations

import asyncio
import base64
import math
import re
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import Any

from ebbflow.connectors.serving.book import RequestBook, RequestEnvelope, check_request_id
from ebbflow.connectors.serving.store import ServedRequest
from ebbflow.domain.errors import EbbflowError
from ebbflow.domain.secrets import Secret
from ebbflow.engine.answers import Answer
from ebbflow.web.app import Admission, EventStream, HttpReply, RequestTasks, Route, format_event
from ebbflow.web.exchange import (
    JSON,
    Exchange,
    HttpRequest,
    Receiver,
    Refusal,
    encode_json,
    refusal_of,
    unavailable,
)
from ebbflow.web.server import Endpoint

LENGTH = "Numaflow-Array-Len"
LENGTHS = "Numaflow-Array-Index-Len"
TEXT = "text/plain; charset=utf-8"
BINARY = "application/octet-stream"
_BRACKETS = {b"{": b"}", b"[": b"]"}
_NUMBER = re.compile(r"\d{1,18}")
_MOST_BYTES = 64 * 1024 * 1024

BodyHandler = Callable[[RequestEnvelope, bytes, Exchange], Coroutine[Any, Any, None]]
"""Handles a request with a body."""

LookUp = Callable[[str, Exchange], Coroutine[Any, Any, None]]
"""Handles a query about the request with an id."""


@dataclass(frozen=True, slots=True)
class ServingSettings:
    """How requests are accepted and answered. Times are in seconds.

    ``id_header`` is the header with the id of a request, as the spec writes it. A caller waits for
    ``request_timeout`` at most. ``cors`` has the origins whose pages may send requests, ``*`` for
    all. ``read_timeout`` limits how long a whole request takes to arrive, ``ack_wait`` how long
    JetStream takes to confirm it. At most ``in_flight`` requests are served at the same time,
    waiting callers included.
    """

    endpoints: tuple[Endpoint, ...]
    token: Secret | None = None
    id_header: str = "X-Numaflow-Id"
    request_timeout: float = 120.0
    cors: tuple[str, ...] = ()
    read_timeout: float = 10.0
    ack_wait: float = 5.0
    in_flight: int = 1_000


class Endpoints:
    """The handlers of one serving source. ``largest`` is the largest body allowed."""

    def __init__(self, book: RequestBook, settings: ServingSettings, largest: int) -> None:
        self._book = book
        self._largest = largest
        self._longest_wait = settings.request_timeout
        self._id_header = settings.id_header
        self._id_name = settings.id_header.lower()
        self._asked = Admission(settings.in_flight, _MOST_BYTES)
        self._looked_up = Admission(settings.in_flight, 0)
        self._tasks = RequestTasks(_explain_failure)

    @property
    def routes(self) -> list[Route]:
        """The paths and their handlers."""
        return [
            Route((b"POST",), "/v1/process/sync", self._open_sync),
            Route((b"POST",), "/v1/process/async", partial(self._take, self._answer_async)),
            Route((b"GET",), "/v1/process/fetch", partial(self._look_up, self._answer_fetch)),
            Route((b"GET",), "/v1/process/status", partial(self._look_up, self._answer_status)),
            Route((b"GET",), "/v1/process/sse", self._open_following),
            Route((b"POST",), "/v1/process/sse", self._open_stream),
        ]

    async def end(self, grace: float) -> None:
        """Waits up to ``grace`` seconds for open answers; callers that still wait get a 503."""
        await self._tasks.end(grace)

    # --- requests with a body -------------------------------------------------------------------

    def _open_sync(self, asked: HttpRequest, exchange: Exchange) -> Receiver:
        wait = min(read_timeout(asked) or self._longest_wait, self._longest_wait)
        return self._take(partial(self._answer_sync, wait=wait), asked, exchange)

    async def _answer_sync(
        self, envelope: RequestEnvelope, body: bytes, exchange: Exchange, wait: float
    ) -> None:
        try:
            request = await self._book.ask(envelope, body, wait)
        except TimeoutError:
            raise _late(wait) from None
        reply_with(request).send(exchange)

    async def _answer_async(
        self, envelope: RequestEnvelope, body: bytes, exchange: Exchange
    ) -> None:
        await self._book.submit(envelope, body)
        reply_accepted(envelope.id).send(exchange)

    def _open_stream(self, asked: HttpRequest, exchange: Exchange) -> Receiver:
        work = partial(self._submit_and_stream, wait=read_timeout(asked))
        return self._take(work, asked, exchange)

    async def _submit_and_stream(
        self, envelope: RequestEnvelope, body: bytes, exchange: Exchange, wait: float | None
    ) -> None:
        await self._book.submit(envelope, body)
        await self._stream(envelope.id, exchange, -1, wait)

    def _take(self, work: BodyHandler, asked: HttpRequest, exchange: Exchange) -> Receiver:
        """Returns the receiver of the body, if there is room for it."""
        envelope = RequestEnvelope(asked.headers, time.time_ns() // 1000, self._id_name)
        self._name(exchange, envelope.id)
        reservation = self._asked.reserve(envelope.announced, self._largest)
        return self._tasks.take_body(
            reservation, exchange, lambda body: work(envelope, body, exchange)
        )

    # --- requests by id -------------------------------------------------------------------------

    async def _answer_fetch(self, request_id: str, exchange: Exchange) -> None:
        request = _known(await self._book.find(request_id))
        if request.status == "in-progress":
            HttpReply.json({"status": "in-progress"}).send(exchange)
        else:
            reply_with(request).send(exchange)

    async def _answer_status(self, request_id: str, exchange: Exchange) -> None:
        request = _known(await self._book.status(request_id))
        HttpReply.json(request.describe()).send(exchange)

    def _open_following(self, asked: HttpRequest, exchange: Exchange) -> Receiver:
        """Follows a request. As in Numaflow, a GET without an id but with a body is a request."""
        if "id" not in asked.query and _has_body(asked):
            return self._open_stream(asked, exchange)
        after, wait = read_last_event(asked), read_timeout(asked)
        return self._look_up(partial(self._follow, after=after, wait=wait), asked, exchange)

    async def _follow(
        self, request_id: str, exchange: Exchange, after: int, wait: float | None
    ) -> None:
        _known(await self._book.status(request_id))
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
                exchange.put(format_event(exchange.error_body(_late(wait)), b"error"))

    def _look_up(self, work: LookUp, asked: HttpRequest, exchange: Exchange) -> Receiver:
        request_id = read_id(asked)
        self._name(exchange, request_id)
        return self._tasks.take(self._looked_up, exchange, partial(work, request_id, exchange))

    def _name(self, exchange: Exchange, request_id: str) -> None:
        """Puts the request's id into every answer."""
        exchange.extra_headers += f"{self._id_header}: {request_id}\r\n".encode()
        exchange.error_body = partial(describe_problem, id=request_id)


def _explain_failure(error: BaseException) -> Refusal:
    """Returns the refusal for a caller that gets no answer because of an error."""
    if isinstance(error, asyncio.CancelledError):
        return unavailable("the run is stopping; fetch the results when it continues")
    if isinstance(error, EbbflowError | TimeoutError):
        return unavailable(str(error) or "NATS did not answer in time")
    assert isinstance(error, Exception)
    return refusal_of(error)


def _known(request: ServedRequest | None) -> ServedRequest:
    if request is None:
        raise Refusal(404, "no request with this id; it may have expired")
    return request


def _late(wait: float) -> Refusal:
    return Refusal(408, f"no answer within {wait:g} s; the request continues, fetch it by its id")


def _has_body(asked: HttpRequest) -> bool:
    return any(
        name == b"transfer-encoding" or (name == b"content-length" and text.strip(b"0"))
        for name, text in asked.headers
    )


# --- reading parameters -------------------------------------------------------------------------


def read_id(asked: HttpRequest) -> str:
    """Returns the id in the query; ``Refusal`` if there is none."""
    if "id" not in asked.query:
        raise Refusal(400, "name the request with ?id=")
    return check_request_id(asked.query["id"], "id")


def read_timeout(asked: HttpRequest) -> float | None:
    """Returns the seconds that a caller wants to wait, if it sends a timeout."""
    text = asked.query.get("timeout")
    if text is None:
        return None
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not 0 < seconds < math.inf:
        raise Refusal(400, "timeout must be a number of seconds, more than 0")
    return seconds


def read_last_event(asked: HttpRequest) -> int:
    """Returns the id of the last event that a client has seen, or -1."""
    text = asked.header(b"last-event-id")
    if not text:
        return -1
    if _NUMBER.fullmatch(text.decode("latin-1")) is None:
        raise Refusal(400, "last-event-id is not the id of an event")
    return int(text)


# --- results ------------------------------------------------------------------------------------


def reply_with(request: ServedRequest) -> HttpReply:
    """Returns the results of a request that has ended, or its failure."""
    if request.status == "failed":
        return HttpReply(describe_failed_request(request), 500)
    if not request.answers:
        return HttpReply(b"", 204, headers={LENGTH: "0"})
    results = [answer.payload for answer in request.answers]
    headers = {
        LENGTH: str(len(results)),
        LENGTHS: ",".join([str(len(result)) for result in results]),
        "X-Content-Type-Options": "nosniff",
    }
    body = results[0] if len(results) == 1 else b"".join(results)
    return HttpReply(body, 200, choose_type(results), headers)


def reply_accepted(request: str) -> HttpReply:
    """Returns the answer to a request that is accepted."""
    return HttpReply.json(_problem("Successfully published message", 200, {"id": request}))


def choose_type(results: Sequence[bytes]) -> str:
    """Returns the content type of one or more results."""
    if not all(map(is_text, results)):
        return BINARY
    if len(results) == 1:
        result = results[0].strip()
        if result[-1:] == _BRACKETS.get(result[:1]):
            return JSON
    return TEXT


def is_text(result: bytes) -> bool:
    """Returns whether a result is UTF-8."""
    if result.isascii():
        return True
    try:
        result.decode()
    except UnicodeDecodeError:
        return False
    return True


def describe_problem(refusal: Refusal, **facts: Any) -> bytes:
    """Returns the body of a refusal, with Numaflow's fields and ``facts``."""
    return encode_json(_problem(refusal.reason, refusal.status, facts))


def describe_failed_request(request: ServedRequest) -> bytes:
    """Returns the body of the answer to a failed request."""
    failure = request.failure
    facts: dict[str, Any] = {"id": request.id}
    if failure is None:
        return encode_json(_problem("the request has failed", 500, facts))
    facts |= {"vertex": failure.vertex, "reason": failure.reason, "error": failure.error}
    message = f"the request has failed at {failure.vertex}: {failure.reason}"
    return encode_json(_problem(message, 500, facts))


def _problem(message: str, code: int, facts: Mapping[str, Any]) -> dict[str, Any]:
    now = datetime.now(UTC).isoformat()
    return {"message": message, "code": code, "timestamp": now, **facts}


# --- events -------------------------------------------------------------------------------------


async def stream_answers(
    exchange: Exchange, events: AsyncIterator[Answer | ServedRequest], after: int
) -> None:
    """Sends events until the request has ended, without answers up to the number ``after``."""
    answers = 0
    async for event in events:
        if isinstance(event, ServedRequest):
            exchange.put(format_end(event, answers))
            return
        answers += 1
        if event.arrived > after:
            await exchange.send(format_answer(event))


def format_answer(answer: Answer) -> bytes:
    """Returns the event of one answer."""
    payload = answer.payload
    if b"\r" in payload or not is_text(payload):
        return format_event(base64.b64encode(payload), b"base64", answer.arrived)
    return format_event(payload, number=answer.arrived)


def format_end(request: ServedRequest, answers: int) -> bytes:
    """Returns the last event of a request that has ended with that many answers."""
    if request.status == "failed":
        return format_event(describe_failed_request(request), b"error")
    facts = {"id": request.id, "status": request.status, "answers": answers}
    return format_event(encode_json(facts), b"done")
