"""The HTTP sink: sends messages on, each in a request of its own or many in one.

What the other side answers decides about each message: 2xx is OK; 429 and 503 that say when to come
again are a NACK with that delay; any other answer is a FAILURE, for the ``retryStrategy``. In
a batch each message may have a status of its own. No answer at all, and 502, 503 and 504, mean that
the other side is away: the vertex waits for it, unless there is a strategy, for which they are a
FAILURE as well. Connections are kept open; if the other side has closed one meanwhile, the request
is sent once more.
"""

from __future__ import annotations

import asyncio
import os
from base64 import b64encode
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING
from urllib.parse import quote

from ebbflow.connectors.http.answer import HttpAnswer, decide, decide_each, parse_retry_after
from ebbflow.connectors.http.settings import BatchSettings, HttpSinkSettings
from ebbflow.connectors.json_record import record
from ebbflow.connectors.outage import away
from ebbflow.core.position import LINEAGE
from ebbflow.message import Datum, Response

if TYPE_CHECKING:
    import aiohttp

_LONGEST_ANSWER = 64 * 1024
_ANSWER_PER_MESSAGE = 1024
_IDLE = 15.0
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
        self._gate = asyncio.Semaphore(settings.concurrency)

    async def open(self) -> None:
        """Makes the client; nothing is connected yet."""
        import aiohttp

        settings = self._settings
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(
                limit=settings.concurrency,
                keepalive_timeout=_IDLE,
                ssl=settings.tls.context() if settings.tls else True,
            ),
            headers=self._headers(),
            timeout=aiohttp.ClientTimeout(total=settings.timeout),
            cookie_jar=aiohttp.DummyCookieJar(),
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
        await self._session.close()

    async def __call__(self, data: list[Datum]) -> list[Response]:
        """Sends all messages and returns what the answers say about each."""
        batch = self._settings.batch
        if batch is None:
            return list(await asyncio.gather(*map(self._send, data)))
        records = [(datum, record(datum)) for datum in data]
        sending = (self._send_batch(part, batch.format) for part in split_records(records, batch))
        return [response for part in await asyncio.gather(*sending) for response in part]

    async def _send(self, datum: Datum) -> Response:
        answer = await self._answer(datum.value, _about(datum), _LONGEST_ANSWER)
        if isinstance(answer, str):
            return self._away(datum, answer)
        return decide(datum, answer, self._settings.retried)

    async def _send_batch(self, part: Sequence[Record], form: str) -> list[Response]:
        lines = [line for _, line in part]
        body = b"\n".join(lines) + b"\n" if form == "ndjson" else b"[%b]" % b",".join(lines)
        longest = _LONGEST_ANSWER + len(part) * _ANSWER_PER_MESSAGE
        answer = await self._answer(body, {}, longest)
        if isinstance(answer, str):
            return [self._away(datum, answer) for datum, _ in part]
        return decide_each([datum for datum, _ in part], answer, self._settings.retried)

    def _away(self, datum: Datum, why: str) -> Response:
        settings = self._settings
        what = why if settings.retried else f"{settings.url}: {why}"
        return away(datum, what, retried=settings.retried)

    async def _answer(self, body: bytes, headers: dict[str, str], longest: int) -> HttpAnswer | str:
        """Returns the answer to a request, or why there is none."""
        import aiohttp

        async with self._gate:
            try:
                try:
                    return await self._request(body, headers, longest)
                except aiohttp.ClientConnectorError:
                    raise  # there was no connection that could have been closed
                except (aiohttp.ServerDisconnectedError, aiohttp.ClientOSError, ConnectionError):
                    # An idle one may have been closed just when it was used again.
                    return await self._request(body, headers, longest)
            except TimeoutError:
                return f"no answer within {self._settings.timeout:g} s"
            except (aiohttp.ClientError, OSError) as error:
                return f"no answer: {error or type(error).__name__}"

    async def _request(self, body: bytes, headers: dict[str, str], longest: int) -> HttpAnswer:
        settings = self._settings
        async with self._session.request(
            settings.method, settings.url, data=body, headers=headers, allow_redirects=False
        ) as response:
            wait = parse_retry_after(response.headers.get("Retry-After"), datetime.now(UTC))
            content, whole = await _read(response, longest)
            return HttpAnswer(response.status, wait, content, whole)


async def _read(response: aiohttp.ClientResponse, longest: int) -> tuple[bytes, bool]:
    """Returns the body, and whether it is all of it; a longer one is not read on."""
    body = bytearray()
    async for piece in response.content.iter_any():
        body += piece
        if len(body) > longest:
            return bytes(body[:longest]), False
    return bytes(body), True


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


def _about(datum: Datum) -> dict[str, str]:
    """Returns the headers of a request about its message, as an HTTP source understands them."""
    lineage = os.environ.get(LINEAGE, "")
    message_id = f"{lineage}/{datum.id}" if lineage else datum.id
    headers = {"x-numaflow-id": quote(message_id, safe=_VISIBLE)}
    if datum.keys:
        keys = (quote(key, safe=_VISIBLE_KEY) for key in datum.keys)
        headers["x-numaflow-keys"] = ",".join(keys)
    if datum.event_time is not None:
        headers["x-numaflow-event-time"] = str(int(datum.event_time.timestamp() * 1000))
    return headers
