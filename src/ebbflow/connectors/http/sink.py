"""The HTTP sink: sends messages on, each in a request of its own or many in one.

What the other side answers decides about each message: 2xx is OK; 429 and 503 that say when to come
again are a NACK with that delay; any other answer is a FAILURE, for the ``retryStrategy``. A batch
may be answered with a JSON array of ``{"id": …, "status": 503, "retry_after": 2}``, one entry for
each message; ``error`` may say why. Any other answer is for all messages alike.

No answer at all, and 502, 503 and 504, mean that the other side is away: the vertex waits for it,
unless there is a strategy, for which they are a FAILURE as well.
"""

from __future__ import annotations

import asyncio
import json
import os
from base64 import b64encode
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from http import HTTPStatus
from typing import Any, TypeVar
from urllib.parse import quote

from ebbflow.connectors.http.client import HttpAnswer, HttpClient, NoAnswer, bound_wait
from ebbflow.connectors.http.settings import BatchSettings, HttpSinkSettings
from ebbflow.connectors.json_record import record
from ebbflow.core.outage import away
from ebbflow.core.position import LINEAGE
from ebbflow.message import Datum, Response
from ebbflow.nacks import NackOptions

T = TypeVar("T")
R = TypeVar("R")

_AGAIN_LATER = (HTTPStatus.TOO_MANY_REQUESTS, HTTPStatus.SERVICE_UNAVAILABLE)
_AWAY = (
    HTTPStatus.BAD_GATEWAY,
    HTTPStatus.SERVICE_UNAVAILABLE,
    HTTPStatus.GATEWAY_TIMEOUT,
)


def decide(datum: Datum, answer: HttpAnswer, retried: bool) -> Response:
    """Returns the response for a message that the whole answer is about.

    ``retried`` says that the sink has a retry strategy.
    """
    return _response(datum, answer.status, answer.wait, answer.words, retried)


def decide_each(data: Sequence[Datum], answer: HttpAnswer, retried: bool) -> list[Response]:
    """Returns the responses for the messages of a batch."""
    if not 200 <= answer.status < 300:
        return [decide(datum, answer, retried) for datum in data]
    if not answer.whole:
        why = f"HTTP {answer.status}, with an answer that could not be read as a whole"
        return [Response.failure(datum.id, why) for datum in data]
    entries = _entries(answer.body)
    if entries is None:
        return [Response.ok(datum.id) for datum in data]
    return [_entry(datum, entries.get(datum.id), retried) for datum in data]


def _entries(body: bytes) -> dict[Any, Mapping[str, Any]] | None:
    """Returns the entries by id; none when the answer is no array."""
    try:
        answer = json.loads(body)
    except ValueError:
        return None
    if not isinstance(answer, list):
        return None
    entries = [entry for entry in answer if isinstance(entry, Mapping)]
    return {entry["id"]: entry for entry in entries if isinstance(entry.get("id"), str)}


def _entry(datum: Datum, entry: Mapping[str, Any] | None, retried: bool) -> Response:
    status = entry.get("status") if entry is not None else None
    if entry is None or not isinstance(status, int):
        return Response.failure(datum.id, "the answer has no status for this message")
    wait = entry.get("retry_after")
    seconds = bound_wait(float(wait)) if isinstance(wait, int | float) else None
    return _response(datum, status, seconds, str(entry.get("error") or ""), retried)


def _response(datum: Datum, status: int, wait: float | None, words: str, retried: bool) -> Response:
    if 200 <= status < 300:
        return Response.ok(datum.id)
    why = f"HTTP {status}: {words}" if words else f"HTTP {status}"
    if status in _AGAIN_LATER and wait is not None:
        return Response.nack(datum.id, NackOptions(wait * 1000, reason=why))
    if status in _AWAY:
        return away(datum, why, retried=retried)
    return Response.failure(datum.id, why)


_LONGEST_ANSWER = 64 * 1024
_ANSWER_PER_MESSAGE = 1024
# What a header can hold as it is; everything else is written as %XX.
_VISIBLE = "".join(map(chr, range(0x20, 0x7F))).replace("%", "")
_VISIBLE_KEY = _VISIBLE.replace(",", "")
_CONTENT = {"ndjson": "application/x-ndjson", "json": "application/json"}

Record = tuple[Datum, bytes]
"""A message, and the same as JSON."""


class HttpSink:
    """Sends messages with one client for as long as its worker serves the vertex."""

    def __init__(self, settings: HttpSinkSettings) -> None:
        self._settings = settings

    async def open(self) -> None:
        """Makes the client; nothing is connected yet."""
        settings = self._settings
        tls = settings.tls.context() if settings.tls else None
        self._client = HttpClient(
            settings.method, settings.url, self._headers(), tls, settings.timeout
        )

    def _headers(self) -> dict[str, str]:
        headers = {name.lower(): value for name, value in self._settings.headers}
        if self._settings.token is not None:
            headers["authorization"] = f"Bearer {self._settings.token.reveal()}"
        if self._settings.login is not None:
            login = ":".join(secret.reveal() for secret in self._settings.login)
            headers["authorization"] = f"Basic {b64encode(login.encode()).decode()}"
        batch = self._settings.batch
        kind = _CONTENT[batch.format] if batch else "application/octet-stream"
        return {"content-type": kind, **headers}

    async def close(self) -> None:
        """Closes all connections."""
        self._client.close()

    async def __call__(self, data: list[Datum]) -> list[Response]:
        """Sends all messages and returns what the answers say about each."""
        batch = self._settings.batch
        if batch is None:
            lineage = os.environ.get(LINEAGE, "")
            return await self._run_all(lambda datum: self._send(datum, lineage), data)
        parts = [*split_records([(datum, record(datum)) for datum in data], batch)]
        answered = await self._run_all(lambda part: self._send_batch(part, batch.format), parts)
        return [response for responses in answered for response in responses]

    async def _run_all(
        self, send: Callable[[T], Coroutine[Any, Any, R]], items: Sequence[T]
    ) -> list[R]:
        """Sends so many at a time as are wanted; returns the results in the order of the items."""
        results: dict[int, R] = {}
        numbered = enumerate(items)

        async def work() -> None:
            for number, item in numbered:
                results[number] = await send(item)

        workers = min(self._settings.concurrency, len(items))
        await asyncio.gather(*(work() for _ in range(workers)))
        return [results[number] for number in range(len(items))]

    async def _send(self, datum: Datum, lineage: str) -> Response:
        try:
            headers = _headers_about(datum, lineage)
            answer = await self._client.send(datum.value, headers, _LONGEST_ANSWER)
        except NoAnswer as error:
            return self._respond_away(datum, str(error))
        return decide(datum, answer, self._settings.retried)

    async def _send_batch(self, part: Sequence[Record], form: str) -> list[Response]:
        lines = [line for _, line in part]
        body = b"\n".join(lines) + b"\n" if form == "ndjson" else b"[%b]" % b",".join(lines)
        longest = _LONGEST_ANSWER + len(part) * _ANSWER_PER_MESSAGE
        try:
            answer = await self._client.send(body, {}, longest)
        except NoAnswer as error:
            return [self._respond_away(datum, str(error)) for datum, _ in part]
        return decide_each([datum for datum, _ in part], answer, self._settings.retried)

    def _respond_away(self, datum: Datum, why: str) -> Response:
        settings = self._settings
        what = why if settings.retried else f"{settings.url}: {why}"
        return away(datum, what, retried=settings.retried)


def split_records(records: Sequence[Record], batch: BatchSettings) -> Iterator[list[Record]]:
    """Cuts the records into requests that keep to the batch's limits; each has at least one."""
    part: list[Record] = []
    size = 0
    for datum, line in records:
        if part and (len(part) == batch.size or size + len(line) > batch.max_bytes):
            yield part
            part, size = [], 0
        part.append((datum, line))
        size += len(line)
    if part:
        yield part


def _headers_about(datum: Datum, lineage: str) -> dict[str, str]:
    """Returns the headers of a request about its message, as an HTTP source understands them."""
    message_id = f"{lineage}/{datum.id}" if lineage else datum.id
    headers = {"x-numaflow-id": quote(message_id, safe=_VISIBLE)}
    if datum.keys:
        keys = (quote(key, safe=_VISIBLE_KEY) for key in datum.keys)
        headers["x-numaflow-keys"] = ",".join(keys)
    if datum.event_time is not None:
        headers["x-numaflow-event-time"] = str(int(datum.event_time.timestamp() * 1000))
    return headers
