"""A request to the HTTP source: its body, the messages in it, or the reason why it is refused.

All of it is about one request and changes nothing outside it.

What is wrong with a request is a ``Refusal``, with the status and the reason that its sender gets.
A sender may try again after a 429 (too many requests are on their way, or the buffer is full) and
after a 503 (messages cannot be stored at the moment, or nobody knows whether they were). All other
refusals are about the request itself.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import cache, lru_cache
from itertools import count

import pyarrow as pa
import pyarrow.compute as pc

from ebbflow.engine import frames
from ebbflow.web.refusal import Refusal

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


class Envelope:
    """All that a request says beside its body. Times are microseconds since 1970.

    ``has_own_id`` if the sender named its id; otherwise it was made up. ``seen`` is when the
    request arrived. ``announced`` is the length of the body, if it was announced. ``size`` is about
    how many bytes each of its messages has beside its value.
    """

    __slots__ = (
        "announced", "event_time", "has_own_id", "headers", "id", "is_batch", "keys", "seen",
        "size",
    )  # fmt: skip

    def __init__(self, raw: Iterable[tuple[bytes, bytes]], now: int) -> None:
        """Reads the headers, in lower case and in their order; ``Refusal`` if they are wrong."""
        headers = join_headers(raw)
        own_id = headers.get(ID)
        self.id = _make_id() if own_id is None else check_id(own_id)
        self.has_own_id = own_id is not None
        self.is_batch = _is_ndjson(headers.get("content-type", "")) and _is_plain(headers)
        self.announced = _announced_size(headers)
        self._read(headers, now)

    def _read(self, headers: Mapping[str, str], now: int) -> None:
        """Reads what all messages have in common."""
        self.seen = now
        self.event_time = _read_time(headers[TIME]) if TIME in headers else now
        self.keys = _split_keys(headers[KEYS]) if KEYS in headers else []
        self.headers = _keep_of_the_message(headers)
        self.size = sum(map(len, headers)) + sum(map(len, headers.values()))

    def split(self, body: bytes) -> pa.RecordBatch:
        """Returns the messages of a batch; ``Refusal`` if it has none or too many."""
        values = _split_lines(body)
        rows = len(values)
        self._check_headers(rows)
        columns = {
            "id": pc.binary_join_element_wise(f"{self.id}-", _numbers().slice(0, rows), ""),
            "value": values,
            "event_time": _repeat("event_time", self.event_time, rows),
            "first_seen": _repeat("first_seen", self.seen, rows),
            "headers": _repeat("headers", self.headers, rows),
            "keys": _repeat("keys", self.keys, rows) if self.keys else None,
        }
        return frames.batch_of(columns, rows)

    def _check_headers(self, rows: int) -> None:
        """Each message has all of them, so a small batch could become a large one."""
        if rows * self.size > _MOST_OF_HEADERS:
            raise Refusal(413, f"{self.size:,} bytes of headers are too many for {rows:,} messages")


def rows_of(posts: Sequence[tuple[Envelope, bytes]]) -> pa.RecordBatch:
    """Returns the messages of posts that are one message each."""
    envelopes = [envelope for envelope, _ in posts]
    has_keys = any(envelope.keys for envelope in envelopes)
    columns = {
        "id": [envelope.id for envelope in envelopes],
        "value": [value for _, value in posts],
        "event_time": [envelope.event_time for envelope in envelopes],
        "first_seen": [envelope.seen for envelope in envelopes],
        "headers": [envelope.headers for envelope in envelopes],
        "keys": [envelope.keys for envelope in envelopes] if has_keys else None,
    }
    return frames.batch_of(columns, len(posts))


def _repeat(name: str, value: object, rows: int) -> pa.Array:
    column = pa.array([value], frames.SCHEMA.field(name).type)
    # To repeat a scalar takes six times as long, if it is a list or a map.
    return column.take(pa.repeat(0, rows))


@cache
def _numbers() -> pa.StringArray:
    return pa.array(map(str, range(MOST_LINES)), pa.string())


def join_headers(raw: Iterable[tuple[bytes, bytes]]) -> dict[str, str]:
    """Returns one text for each name, as HTTP has it: several are a list with commas."""
    headers: dict[str, str] = {}
    for raw_name, raw_text in raw:
        name, text = raw_name.decode("latin-1"), _decode(raw_text)
        if name in headers:
            if name in (ID, TIME):
                raise Refusal(400, f"{name} is there twice")
            text = f"{headers[name]}, {text}"
        headers[name] = text
    return headers


def _decode(text: bytes) -> str:
    """Returns UTF-8, which clients send, or else Latin-1, in which anything is text."""
    try:
        return text.decode()
    except UnicodeDecodeError:
        return text.decode("latin-1")


_process = secrets.token_hex(8)
_numbered = count()


def _make_id() -> str:
    """Returns an id that no other post has: random for this process, then a number."""
    return f"{_process}{next(_numbered):016x}"


def check_id(text: str, name: str = ID) -> str:
    """Returns an id that somebody named; ``Refusal`` if it is none."""
    if _ID.fullmatch(text) is None:
        raise Refusal(400, f"{name} must be 1 to 256 visible ASCII characters")
    return text


def _read_time(text: str) -> int:
    millis = int(text) if _MILLIS.fullmatch(text) else None
    if millis is None or millis > _LATEST:
        raise Refusal(400, f"{TIME} must be milliseconds since 1970, a whole number")
    return millis * 1000


def _split_keys(text: str) -> list[str]:
    return [key.strip() for key in text.split(",") if key.strip()]


def _announced_size(headers: Mapping[str, str]) -> int:
    """Returns the announced length, 0 for a body in pieces; ``Refusal`` if it may not be."""
    if "content-length" in headers:
        return int(headers["content-length"])
    if "transfer-encoding" not in headers:
        raise Refusal(411, "there is no content-length")
    return 0


def _keep_of_the_message(headers: Mapping[str, str]) -> list[tuple[str, str]]:
    left_out: Collection[str] = _NOT_THE_MESSAGES
    if "connection" in headers:
        named = {name.strip().lower() for name in headers["connection"].split(",")}
        left_out = _NOT_THE_MESSAGES | named
    return [pair for pair in headers.items() if pair[0] not in left_out]


@lru_cache
def _is_ndjson(kind: str) -> bool:
    return kind.partition(";")[0].strip().lower() == NDJSON


def _is_plain(headers: Mapping[str, str]) -> bool:
    coding = headers.get("content-encoding", "identity").strip().lower()
    if coding != "identity":
        raise Refusal(
            415, f"a batch in the content encoding {coding!r} cannot be split; send it plain"
        )
    return True


def _split_lines(body: bytes) -> pa.BinaryArray:
    if b"\r" in body:
        body = b"\n".join(line.removesuffix(b"\r") for line in body.split(b"\n"))
    lines = pc.split_pattern(pa.array([body.strip(b"\n")], pa.binary()), b"\n").flatten()
    sizes = pc.binary_length(lines)
    if not pc.min(sizes).as_py():
        lines = lines.filter(pc.greater(sizes, 0))
    if not len(lines):
        raise Refusal(400, "the batch has no lines")
    if len(lines) > MOST_LINES:
        raise Refusal(413, f"a batch may have {MOST_LINES:,} lines, not {len(lines):,}")
    return lines
