"""A post read as the messages in it, or as the reason why it is refused.

Everything here is about one request and changes nothing outside it. What is wrong with a request
is a ``Refusal``, with the status and the reason that the client is told.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

import pyarrow as pa

from ebbflow.connectors.http.refusal import Refusal
from ebbflow.core import frames

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
