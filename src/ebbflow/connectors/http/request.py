"""A request to the HTTP source: its body, the messages in it, or the reason why it is refused.

The body is read piece by piece, never more of it than there is room for: ``Room`` bounds what the
requests of one vertex hold in memory at the same time, in number and in bytes. Everything else here
is about one request and changes nothing outside it.

What is wrong with a request is a ``Refusal``, with the status and the reason that its sender gets.
A sender may try again after a 429 (too many requests are on their way, or the buffer is full) and
after a 503 (messages cannot be stored at the moment, or nobody knows whether they were). All other
refusals are about the request itself.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import uuid
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

import pyarrow as pa
from starlette.requests import ClientDisconnect, Request

from ebbflow.core import frames

_RETRY_AFTER = 1


class Refusal(Exception):
    """A request that is not taken, and what its sender is told.

    ``retry`` is when to try again, in seconds. ``headers`` go with the answer.
    """

    def __init__(
        self,
        status: int,
        reason: str,
        retry: int | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(status, reason)
        self.status = status
        self.reason = reason
        self.headers = dict(headers or {})
        if retry is not None:
            self.headers["retry-after"] = str(retry)


def too_many(reason: str) -> Refusal:
    """Returns a 429: there is no room at the moment, and the sender is to come again."""
    return Refusal(429, reason, retry=_RETRY_AFTER)


def unavailable(reason: str) -> Refusal:
    """Returns a 503: messages cannot be stored at the moment, and the sender is to come again."""
    return Refusal(503, reason, retry=_RETRY_AFTER)


_DISCARDING = 1.0


class Room:
    """Bounds what the requests of one vertex hold in memory. Used on one loop."""

    def __init__(self, requests: int, size: int) -> None:
        self._requests = requests
        self._bytes = size
        self._inside = 0
        self._held = 0
        self._empty = asyncio.Event()
        self._empty.set()

    @contextmanager
    def place(self, size: int) -> Iterator[RequestRoom]:
        """Holds room for a request with a body of that size; ``Refusal`` when there is none."""
        self.check(1, size)
        place = RequestRoom(self, size)
        self._inside += 1
        self._held += size
        self._empty.clear()
        try:
            yield place
        finally:
            self._inside -= 1
            self._held -= place.size
            if not self._inside:
                self._empty.set()

    def check(self, requests: int, size: int) -> None:
        """Raises ``Refusal`` unless there is room for so much more."""
        if self._inside + requests > self._requests or self._held + size > self._bytes:
            raise too_many("too many requests are on their way")

    def grow(self, size: int) -> None:
        """Has a place hold so much more."""
        self.check(0, size)
        self._held += size

    async def wait_until_empty(self) -> None:
        """Returns when no request is on its way."""
        await self._empty.wait()


class RequestRoom:
    """The room that one request holds."""

    def __init__(self, room: Room, size: int) -> None:
        self._room = room
        self.size = size

    def cover(self, size: int) -> None:
        """Makes it large enough for a body of that size."""
        if size > self.size:
            self._room.grow(size - self.size)
            self.size = size


class Body:
    """Reads one body of at most ``largest`` bytes."""

    def __init__(self, request: Request, largest: int) -> None:
        self._request = request
        self._largest = largest
        self._ended = False

    def announced_size(self) -> int:
        """Returns the announced length, 0 for a body in pieces; ``Refusal`` if it may not be."""
        text = self._request.headers.get("content-length")
        if text is None:
            if "transfer-encoding" not in self._request.headers:
                raise Refusal(411, "there is no content-length")
            return 0
        self._check(int(text))
        return int(text)

    def _check(self, size: int) -> None:
        if size > self._largest:
            raise Refusal(413, f"a body may have {self._largest:,} bytes, not {size:,} or more")

    async def read(self, place: RequestRoom, within: float) -> bytes:
        """Returns the whole body; ``place`` grows with what has arrived of it."""
        body = bytearray()
        try:
            async with asyncio.timeout(within):
                async for piece in self._pieces():
                    body += piece
                    self._check(len(body))
                    place.cover(len(body))
        except TimeoutError:
            raise Refusal(408, f"the body did not arrive within {within:g} s") from None
        return bytes(body)

    async def _pieces(self) -> AsyncIterator[bytes]:
        while not self._ended:
            message = await self._request.receive()
            if message["type"] == "http.disconnect":
                raise ClientDisconnect
            self._ended = not message.get("more_body", False)
            yield message.get("body", b"")

    async def discard_rest(self) -> bool:
        """Reads and forgets the rest for a moment; returns whether nothing is left to come.

        An answer to somebody who is still sending may get lost. Who asked first whether to send
        has not begun.
        """
        if "expect" in self._request.headers:
            return self._ended
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_DISCARDING):
                async for _ in self._pieces():
                    pass
        return self._ended


ID, TIME, KEYS = "x-numaflow-id", "x-numaflow-event-time", "x-numaflow-keys"
NDJSON = "application/x-ndjson"
MOST_LINES = 10_000
_MOST_OF_HEADERS = 8 * 1024 * 1024

_ID = re.compile(r"[\x21-\x7e]{1,256}")
_MILLIS = re.compile(r"\d{1,15}")
_LATEST = 253_402_300_799_999  # the end of the year 9999
# Between two hops, about the body as it travels, or what is not the pipeline's business.
_NOT_THE_MESSAGES = frozenset(
    (
        "authorization", "connection", "content-length", "expect", "keep-alive",
        "proxy-authenticate", "proxy-authorization", "proxy-connection", "te", "trailer",
        "transfer-encoding", "upgrade", TIME,
    )
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Envelope:
    """All that a request says beside its body. Times are microseconds since 1970.

    ``given`` says that the id is the sender's own; otherwise it was made up.
    """

    id: str
    given: bool
    event_time: int
    keys: list[str]
    headers: dict[str, str]
    is_batch: bool

    @classmethod
    def of(cls, raw: Iterable[tuple[bytes, bytes]], now: int) -> Envelope:
        """Reads the headers, in lower case and in their order; ``Refusal`` if they are wrong."""
        headers = _joined(raw)
        given = headers.get(ID)
        return cls(
            id=uuid.uuid4().hex if given is None else _checked_id(given),
            given=given is not None,
            event_time=_event_time(headers.get(TIME), now),
            keys=[key.strip() for key in headers.get(KEYS, "").split(",") if key.strip()],
            headers=_of_the_message(headers),
            is_batch=_is_batch(headers),
        )

    def rows(self, body: bytes, now: int) -> pa.RecordBatch:
        """Returns the messages in the body; ``Refusal`` if a batch has none or too many."""
        values = _lines(body) if self.is_batch else [body]
        count = len(values)
        self._check_headers(count)
        columns = {
            "id": [f"{self.id}-{n}" for n in range(count)] if self.is_batch else [self.id],
            "value": values,
            "event_time": [self.event_time] * count,
            "first_seen": [now] * count,
            "headers": [list(self.headers.items())] * count,
            "keys": [self.keys] * count if self.keys else None,
        }
        return frames.batch_of(columns, count)

    def _check_headers(self, count: int) -> None:
        """Each message has all of them, so a small batch could become a large one."""
        size = sum(len(name) + len(value) for name, value in self.headers.items())
        if count * size > _MOST_OF_HEADERS:
            raise Refusal(413, f"{size:,} bytes of headers are too many for {count:,} messages")


def _joined(raw: Iterable[tuple[bytes, bytes]]) -> dict[str, str]:
    """One value for each name, as HTTP has it: several are a list with commas."""
    headers: dict[str, str] = {}
    for name, value in ((one.decode("latin-1"), _text(other)) for one, other in raw):
        if name in headers and name in (ID, TIME):
            raise Refusal(400, f"{name} is there twice")
        headers[name] = f"{headers[name]}, {value}" if name in headers else value
    return headers


def _text(value: bytes) -> str:
    """UTF-8 is what clients send; before that there was Latin-1, in which anything is text."""
    try:
        return value.decode()
    except UnicodeDecodeError:
        return value.decode("latin-1")


def _checked_id(text: str) -> str:
    if _ID.fullmatch(text) is None:
        raise Refusal(400, f"{ID} must be 1 to 256 visible ASCII characters")
    return text


def _event_time(text: str | None, now: int) -> int:
    if text is None:
        return now
    millis = int(text) if _MILLIS.fullmatch(text) else None
    if millis is None or millis > _LATEST:
        raise Refusal(400, f"{TIME} must be milliseconds since 1970, a whole number")
    return millis * 1000


def _of_the_message(headers: Mapping[str, str]) -> dict[str, str]:
    named = {name.strip().lower() for name in headers.get("connection", "").split(",")}
    left_out = _NOT_THE_MESSAGES | named
    return {name: value for name, value in headers.items() if name not in left_out}


def _is_batch(headers: Mapping[str, str]) -> bool:
    kind = headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != NDJSON:
        return False
    coding = headers.get("content-encoding", "identity").strip().lower()
    if coding != "identity":
        raise Refusal(
            415, f"a batch in the content encoding {coding!r} cannot be split; send it plain"
        )
    return True


def _lines(body: bytes) -> list[bytes]:
    lines = [line for line in _split(body) if line]
    if not lines:
        raise Refusal(400, "the batch has no lines")
    if len(lines) > MOST_LINES:
        raise Refusal(413, f"a batch may have {MOST_LINES:,} lines, not {len(lines):,}")
    return lines


def _split(body: bytes) -> Iterator[bytes]:
    for line in body.split(b"\n"):
        yield line.removesuffix(b"\r")
