"""Posts to a source: reading requests, splitting them into messages, and storing them.

An invalid request raises ``Refusal`` with the status and the reason for its sender. Messages are
stored in the buffer of their vertex. Messages that arrive together share a frame.

A frame is published at once if none is in flight. Posts that arrive meanwhile are collected for the
next frame, so frames grow with the load and a lone post does not wait. A full frame is always
published at once. A post is never split: its messages are stored together or not at all.

Each id is stored once. A post with a known id is confirmed at once; one whose id is in flight gets
the outcome of the first post. A sender that waits longer than ``ack_wait`` gets a response saying
that the outcome is uncertain. Publishing continues under the same frame id until the outcome is
certain, so the sender can repeat the post to find out. Everything runs on the link's loop.
"""

from __future__ import annotations

import asyncio
import re
import secrets
from bisect import bisect_right
from collections.abc import Collection, Coroutine, Iterable, Mapping, Sequence
from functools import cache, lru_cache
from itertools import count
from typing import TYPE_CHECKING, Any, Protocol

import pyarrow as pa
import pyarrow.compute as pc

from ebbflow.domain.errors import BufferFull, EbbflowError, MessageTooLarge
from ebbflow.engine import frames
from ebbflow.streams.catalogue import DUPLICATE_WINDOW
from ebbflow.streams.feed import Buffers
from ebbflow.web.exchange import Refusal, too_many, unavailable

if TYPE_CHECKING:
    from ebbflow.connectors.http.known_ids import KnownIds

ID, TIME, KEYS = "x-numaflow-id", "x-numaflow-event-time", "x-numaflow-keys"
NDJSON = "application/x-ndjson"
MOST_LINES = 10_000
_MOST_OF_HEADERS = 8 * 1024 * 1024

_ID = re.compile(r"[\x21-\x7e]{1,256}")
_MILLIS = re.compile(r"\d{1,15}")
_LATEST = 253_402_300_799_999  # the end of the year 9999
# Hop-by-hop headers, headers about the encoding of the body, and credentials.
_NOT_FORWARDED = frozenset(
    (
        "authorization", "connection", "content-length", "expect", "keep-alive",
        "proxy-authenticate", "proxy-authorization", "proxy-connection", "te", "trailer",
        "transfer-encoding", "upgrade", TIME,
    )
)  # fmt: skip


_process = secrets.token_hex(8)
_numbered = count()

CERTAIN_WITHIN = DUPLICATE_WINDOW - 10.0
"""How long publishing a frame is retried. JetStream would store a copy sent much later again."""

ROW_BYTES = 128
"""The approximate bytes of a message in addition to its value and headers."""

_LATE = 0.05


# --- reading requests ---------------------------------------------------------------------------


class Envelope:
    """Everything in a request except its body. Times are microseconds since 1970.

    ``has_own_id`` is true if the sender gave the id; otherwise it is generated. ``seen`` is when
    the request arrived. ``announced`` is the announced length of the body, or 0. ``size`` is about
    how many bytes each of its messages has in addition to its value.
    """

    __slots__ = (
        "announced", "event_time", "has_own_id", "headers", "id", "is_batch", "keys", "seen",
        "size",
    )  # fmt: skip

    def __init__(self, raw: Iterable[tuple[bytes, bytes]], now: int) -> None:
        """Reads the lower-case headers in order; ``Refusal`` if one is invalid."""
        headers = join_headers(raw)
        own_id = headers.get(ID)
        self.id = _make_id() if own_id is None else check_id(own_id)
        self.has_own_id = own_id is not None
        self.is_batch = _is_ndjson(headers.get("content-type", "")) and _is_plain(headers)
        self.announced = _announced_size(headers)
        self._read(headers, now)

    def _read(self, headers: Mapping[str, str], now: int) -> None:
        """Reads the fields that all messages of the request share."""
        self.seen = now
        self.event_time = _read_time(headers[TIME]) if TIME in headers else now
        self.keys = _split_keys(headers[KEYS]) if KEYS in headers else []
        self.headers = _select_forwarded(headers)
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
        """Refuses a small batch that would become large because each message gets all headers."""
        if rows * self.size > _MOST_OF_HEADERS:
            raise Refusal(413, f"{self.size:,} bytes of headers are too many for {rows:,} messages")


def rows_of_posts(posts: Sequence[tuple[Envelope, bytes]]) -> pa.RecordBatch:
    """Returns the messages of posts that hold one message each."""
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
    # ``pa.repeat`` of a list or map scalar takes six times as long.
    return column.take(pa.repeat(0, rows))


@cache
def _numbers() -> pa.StringArray:
    return pa.array(map(str, range(MOST_LINES)), pa.string())


def join_headers(raw: Iterable[tuple[bytes, bytes]]) -> dict[str, str]:
    """Returns one text for each name. As in HTTP, repeated headers are joined with commas."""
    headers: dict[str, str] = {}
    for raw_name, raw_text in raw:
        name, text = raw_name.decode("latin-1"), _decode(raw_text)
        if name in headers:
            if name in (ID, TIME):
                raise Refusal(400, f"duplicate header {name}")
            text = f"{headers[name]}, {text}"
        headers[name] = text
    return headers


def _decode(text: bytes) -> str:
    """Decodes UTF-8, which clients send, or else Latin-1, which can decode any bytes."""
    try:
        return text.decode()
    except UnicodeDecodeError:
        return text.decode("latin-1")


def _make_id() -> str:
    """Returns a unique id: a random prefix for this process, then a number."""
    return f"{_process}{next(_numbered):016x}"


def check_id(text: str, name: str = ID) -> str:
    """Returns an id that a sender gave; ``Refusal`` if it is invalid."""
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
    """Returns the announced length, 0 for a chunked body; ``Refusal`` if it is missing."""
    if "content-length" in headers:
        return int(headers["content-length"])
    if "transfer-encoding" not in headers:
        raise Refusal(411, "content-length is missing")
    return 0


def _select_forwarded(headers: Mapping[str, str]) -> list[tuple[str, str]]:
    left_out: Collection[str] = _NOT_FORWARDED
    if "connection" in headers:
        named = {name.strip().lower() for name in headers["connection"].split(",")}
        left_out = _NOT_FORWARDED | named
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


# --- storing ------------------------------------------------------------------------------------


class Entry(Protocol):
    """One request to store, with its messages.

    ``rows`` holds its messages unless it is a single one. ``named_id`` is the id that its sender
    gave, if copies are recognised by it.
    """

    envelope: Envelope
    value: bytes
    rows: pa.RecordBatch | None
    count: int
    size: int

    @property
    def named_id(self) -> str | None:
        """The id that its sender gave."""

    def settle(self, refusal: Refusal | None) -> None:
        """Called once, when the request is stored, or with the reason why it is not."""

    def answer(self, refusal: Refusal | None) -> None:
        """Called before the request is settled, when its outcome stays uncertain too long."""


class Group:
    """Posts that share a frame. After ``ack_wait`` each is answered that it is uncertain."""

    def __init__(self, loop: asyncio.AbstractEventLoop, ack_wait: float) -> None:
        self.posts: list[Entry] = []
        self.count = 0
        self.size = 0
        self._loop = loop
        self._ack_wait = ack_wait
        self._due: list[float] = []
        self._answered = 0
        self._timer: asyncio.TimerHandle | None = None

    def add(self, post: Entry) -> None:
        """Adds a post."""
        self.posts.append(post)
        self.count += post.count
        self.size += post.size
        self._due.append(self._loop.time() + self._ack_wait)
        if self._timer is None:
            self._timer = self._loop.call_at(self._due[-1], self._answer_late)

    @property
    def ids(self) -> list[str]:
        """The ids that senders gave."""
        return [name for post in self.posts if (name := post.named_id) is not None]

    def rows(self) -> pa.RecordBatch:
        """Returns all its messages."""
        singles = [(post.envelope, post.value) for post in self.posts if post.rows is None]
        batches = [post.rows for post in self.posts if post.rows is not None]
        return frames.concat([*([rows_of_posts(singles)] if singles else []), *batches])

    def end(self) -> None:
        """Called when all its posts are settled."""
        if self._timer is not None:
            self._timer.cancel()

    def _answer_late(self) -> None:
        """Answers posts that have waited for ``ack_wait``; later posts wait longer."""
        start, stop = self._answered, bisect_right(self._due, self._loop.time())
        for post in self.posts[start:stop]:
            post.answer(unconfirmed_within(self._ack_wait))
        self._answered = stop
        rest = self._due[stop : stop + 1]
        self._timer = self._loop.call_at(rest[0], self._answer_late) if rest else None


class PostStore:
    """The posts of one vertex that are being stored in its buffer.

    Without ``known_ids`` no entry has a named id.
    """

    def __init__(self, buffers: Buffers, known_ids: KnownIds | None, ack_wait: float) -> None:
        self._buffers = buffers
        self._ids = known_ids
        self._ack_wait = ack_wait
        self._loop = asyncio.get_running_loop()
        self._most_bytes = min(frames.MAX_BYTES, buffers.largest_frame // 2)
        self._group = Group(self._loop, ack_wait)
        self._in_flight: set[Group] = set()
        self._by_id: dict[str, list[Entry]] = {}
        """Unsettled posts by the id that their sender gave. Only the first of each is stored."""
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def _known_ids(self) -> KnownIds:
        assert self._ids is not None, "an entry with a named id needs known ids"
        return self._ids

    def add(self, post: Entry) -> None:
        """Starts storing a post; it is settled later."""
        message_id = post.named_id
        if message_id is not None and not self._is_first(post, message_id):
            return
        group = self._group
        if group.posts and not self._has_room(group, post):
            self._send()
            group = self._group
        group.add(post)
        if len(group.posts) == 1 and not self._in_flight:
            self._send_soon()

    def _has_room(self, group: Group, post: Entry) -> bool:
        size = group.size + post.size
        return size <= self._most_bytes and group.count + post.count <= frames.MAX_ROWS

    def _is_first(self, post: Entry, message_id: str) -> bool:
        """Returns whether the post must be stored. A copy is settled with the first post."""
        if message_id in self._known_ids:
            post.settle(None)
            return False
        if (same := self._by_id.get(message_id)) is not None:
            same.append(post)
            late = unconfirmed_within(self._ack_wait)
            self._loop.call_later(self._ack_wait, post.answer, late)
            return False
        self._by_id[message_id] = [post]
        if self._known_ids.is_unwritten(message_id):
            self._start(self._write_down([post], [message_id]))
            return False
        return True

    def _send_soon(self) -> None:
        """Sends after two turns of the loop, so that posts that have arrived share the frame."""
        self._loop.call_soon(self._loop.call_soon, self._send_unless_in_flight)

    def _send_unless_in_flight(self) -> None:
        if not self._in_flight:
            self._send()

    def _send(self) -> None:
        if self._group.posts:
            group, self._group = self._group, Group(self._loop, self._ack_wait)
            self._in_flight.add(group)
            self._start(self._store(group))

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _store(self, group: Group) -> None:
        ids = group.ids
        # A partition without a leader must not delay the frames of other partitions.
        late = self._loop.call_later(_LATE, self._let_next_go, group)
        refusal = await self._publish(group, ids)
        late.cancel()
        self._let_next_go(group)
        if refusal is None and ids:
            await self._write_down(group.posts, ids)
        else:
            self._settle(group.posts, refusal)
        group.end()

    def _let_next_go(self, group: Group) -> None:
        if group in self._in_flight:
            self._in_flight.discard(group)
            self._send_soon()

    async def _publish(self, group: Group, ids: Sequence[str]) -> Refusal | None:
        """Publishes the frame of a group; returns the refusal if it is not stored."""
        # The frame of a single post has the post's id, so the buffer itself recognises a copy.
        alone = len(group.posts) == 1
        frame_id = group.posts[0].envelope.id if alone else secrets.token_hex(16)
        if ids and not alone:
            await self._known_ids.announce(frame_id, ids)
        try:
            await self._buffers.put(group.rows(), frame_id, within=CERTAIN_WITHIN)
        except BufferFull:
            return too_many("the buffer is full")
        except MessageTooLarge as error:
            return Refusal(413, str(error))
        except EbbflowError as error:
            return _uncertain(str(error))
        except Exception as error:
            return Refusal(500, f"the source failed: {type(error).__name__}")
        return None

    async def _write_down(self, posts: Sequence[Entry], ids: Sequence[str]) -> None:
        """Writes down the ids of stored posts for the next run, then settles the posts."""
        refusal = None
        try:
            await self._known_ids.add(ids)
        except Exception as error:
            refusal = _uncertain(str(error) or type(error).__name__)
        self._settle(posts, refusal)

    def _settle(self, posts: Sequence[Entry], refusal: Refusal | None) -> None:
        for post in posts:
            message_id = post.named_id
            same = None if message_id is None else self._by_id.pop(message_id, None)
            for waiting in same or (post,):
                waiting.settle(refusal)


def unconfirmed_within(seconds: float) -> Refusal:
    """Returns the refusal of a post that may or may not be stored."""
    return _uncertain(f"JetStream has not confirmed it within {seconds:g} s")


def _uncertain(why: str) -> Refusal:
    return unavailable(
        f"it is not certain whether it is stored: {why}; send it again with the same id"
    )
