"""The HTTP sink: sends messages to a server, each in its own request or many in one.

The server's answer determines the response for each message: 2xx is OK; 429 and 503 with a
``Retry-After`` are a NACK with that delay; any other answer is a FAILURE, for the
``retryStrategy``. The answer to a batch may be a JSON array of
``{"id": …, "status": 503, "retry_after": 2}``, one entry for each message; ``error`` may say why.
Any other answer applies to all messages.

No answer at all, and 502, 503 and 504, mean that the server is UNAVAILABLE.
"""

from __future__ import annotations

import asyncio
import json
import os
from base64 import b64encode
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from http import HTTPStatus
from typing import Any, TypeVar
from urllib.parse import quote

import pyarrow as pa
import pyarrow.compute as pc

from ebbflow.connectors.file import json_records
from ebbflow.connectors.http.http_client import (
    ClientTls,
    HttpAnswer,
    HttpClient,
    NoAnswer,
    bound_wait,
)
from ebbflow.domain.message import Response
from ebbflow.domain.secrets import Secret
from ebbflow.engine.position import LINEAGE
from ebbflow.engine.trace_context import find_propagated

T = TypeVar("T")

Answers = dict[int, Response]
"""The responses for rows that are not OK."""

_AGAIN_LATER = (HTTPStatus.TOO_MANY_REQUESTS, HTTPStatus.SERVICE_UNAVAILABLE)
_UNAVAILABLE = (
    HTTPStatus.BAD_GATEWAY,
    HTTPStatus.SERVICE_UNAVAILABLE,
    HTTPStatus.GATEWAY_TIMEOUT,
)


@dataclass(frozen=True, slots=True)
class BatchSettings:
    """The most messages, and about the most bytes, of one request."""

    format: str = "ndjson"
    size: int = 500
    max_bytes: int = 4 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class HttpSinkSettings:
    """An address to send messages to, and how. ``timeout`` is in seconds, for one request.

    ``concurrency`` is the number of requests at a time, ``login`` a user and a password.
    """

    url: str
    method: str = "POST"
    headers: tuple[tuple[str, str], ...] = ()
    token: Secret | None = None
    login: tuple[Secret, Secret] | None = None
    tls: ClientTls | None = None
    timeout: float = 10.0
    concurrency: int = 32
    batch: BatchSettings | None = None


def decide_response(answer: HttpAnswer) -> Response | None:
    """Returns the response for messages that share an answer; ``None`` for OK."""
    return _respond(answer.status, answer.wait, answer.words)


def decide_each(ids: Sequence[str], answer: HttpAnswer) -> Answers:
    """Returns the responses for the messages of a batch that are not OK."""
    if not 200 <= answer.status < 300:
        return _to_all(ids, decide_response(answer))
    if not answer.whole:
        why = f"HTTP {answer.status}, but the answer could not be read completely"
        return _to_all(ids, Response.failure(error=why))
    entries = _entries(answer.body)
    if entries is None:
        return {}
    responses = (_read_entry(entries.get(message_id)) for message_id in ids)
    return {row: response for row, response in enumerate(responses) if response is not None}


def _to_all(ids: Sequence[str], response: Response | None) -> Answers:
    return {} if response is None else dict.fromkeys(range(len(ids)), response)


def _entries(body: bytes) -> dict[Any, Mapping[str, Any]] | None:
    """Returns the entries by id; ``None`` if the answer is not an array."""
    try:
        answer = json.loads(body)
    except ValueError:
        return None
    if not isinstance(answer, list):
        return None
    entries = [entry for entry in answer if isinstance(entry, Mapping)]
    return {entry["id"]: entry for entry in entries if isinstance(entry.get("id"), str)}


def _read_entry(entry: Mapping[str, Any] | None) -> Response | None:
    status = entry.get("status") if entry is not None else None
    if entry is None or not isinstance(status, int):
        return Response.failure(error="the answer has no status for this message")
    wait = entry.get("retry_after")
    seconds = bound_wait(float(wait)) if isinstance(wait, int | float) else None
    return _respond(status, seconds, str(entry.get("error") or ""))


def _respond(status: int, wait: float | None, words: str) -> Response | None:
    if 200 <= status < 300:
        return None
    why = f"HTTP {status}: {words}" if words else f"HTTP {status}"
    if status in _AGAIN_LATER and wait is not None:
        return Response.nack(reason=why, delay=timedelta(seconds=wait))
    if status in _UNAVAILABLE:
        return Response.unavailable(what=why)
    return Response.failure(error=why)


_LONGEST_ANSWER = 64 * 1024
_ANSWER_PER_MESSAGE = 1024
# Characters that a header holds unchanged; all others are written as %XX.
_VISIBLE = "".join(map(chr, range(0x20, 0x7F))).replace("%", "")
_VISIBLE_KEY = _VISIBLE.replace(",", "")
_CONTENT = {"ndjson": "application/x-ndjson", "json": "application/json"}


class HttpSink:
    """Sends messages with one client per worker."""

    def __init__(self, settings: HttpSinkSettings) -> None:
        self._settings = settings

    async def open(self) -> None:
        """Creates the client, which connects later."""
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

    async def __call__(self, rows: pa.RecordBatch) -> Answers | None:
        """Sends all messages and returns the responses for those that are not OK."""
        answers: Answers = {}
        if (batch := self._settings.batch) is None:
            heads = [*_headers_about(rows)]
            values = rows.column("value").to_pylist()
            requests = [*enumerate(zip(values, heads, strict=True))]
            await self._run_all(lambda request: self._send(*request, answers), requests)
        else:
            ids, lines = rows.column("id").to_pylist(), json_records(rows)
            parts = [*split_lines(lines, batch)]
            await self._run_all(lambda part: self._send_part(part, ids, lines, answers), parts)
        return answers or None

    async def _run_all(
        self, send: Callable[[T], Coroutine[Any, Any, None]], requests: Sequence[T]
    ) -> None:
        """Sends all requests, limited by the concurrency in the settings."""
        waiting = iter(requests)

        async def work() -> None:
            for request in waiting:
                await send(request)

        workers = min(self._settings.concurrency, len(requests))
        await asyncio.gather(*(work() for _ in range(workers)))

    async def _send(
        self, row: int, message: tuple[bytes, dict[str, str]], answers: Answers
    ) -> None:
        try:
            answer = await self._client.send(*message, _LONGEST_ANSWER)
            response = decide_response(answer)
        except NoAnswer as error:
            response = self._respond_unavailable(str(error))
        if response is not None:
            answers[row] = response

    async def _send_part(
        self, part: range, ids: Sequence[str], lines: Sequence[bytes], answers: Answers
    ) -> None:
        """Sends some rows in one request."""
        own_ids, own_lines = ids[part.start : part.stop], lines[part.start : part.stop]
        longest = _LONGEST_ANSWER + len(part) * _ANSWER_PER_MESSAGE
        try:
            answer = await self._client.send(self._body(own_lines), {}, longest)
            responses = decide_each(own_ids, answer)
        except NoAnswer as error:
            responses = _to_all(own_ids, self._respond_unavailable(str(error)))
        for row, response in responses.items():
            answers[part.start + row] = response

    def _body(self, lines: Sequence[bytes]) -> bytes:
        assert self._settings.batch is not None
        if self._settings.batch.format == "ndjson":
            return b"\n".join(lines) + b"\n"
        return b"[%b]" % b",".join(lines)

    def _respond_unavailable(self, why: str) -> Response:
        """Returns the response for messages that the server may take later."""
        return Response.unavailable(what=f"{self._settings.url}: {why}")


def split_lines(lines: Sequence[bytes], batch: BatchSettings) -> Iterator[range]:
    """Yields the rows of each request, within the batch's limits; each has at least one."""
    start = size = 0
    for row, line in enumerate(lines):
        if row > start and (row - start == batch.size or size + len(line) > batch.max_bytes):
            yield range(start, row)
            start, size = row, 0
        size += len(line)
    if lines:
        yield range(start, len(lines))


def _headers_about(rows: pa.RecordBatch) -> Iterator[dict[str, str]]:
    """Yields the headers about each message, as an HTTP source understands them."""
    lineage = os.environ.get(LINEAGE, "")
    prefix = f"{lineage}/" if lineage else ""
    millis = pc.divide(rows.column("event_time").cast(pa.int64()), 1000).to_pylist()
    columns = rows.column("id").to_pylist(), rows.column("keys").to_pylist(), millis
    traces = find_propagated(rows.column("headers"))
    for row, (message_id, keys, time) in enumerate(zip(*columns, strict=True)):
        headers = {"x-numaflow-id": quote(prefix + message_id, safe=_VISIBLE)}
        headers |= traces.get(row, {})
        if keys:
            headers["x-numaflow-keys"] = ",".join(quote(key, safe=_VISIBLE_KEY) for key in keys)
        if time is not None:
            headers["x-numaflow-event-time"] = str(time)
        yield headers
