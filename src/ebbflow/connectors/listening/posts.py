"""Posts to a source: what a request says, the messages in it, and how they are stored.

What is wrong with a request is a ``Refusal``, with the status and the reason that its sender gets.
Its messages go into the buffer of their vertex: those that arrive together go into one frame.

A frame is published at once while none is in flight. What arrives meanwhile is gathered for the
next one, so frames grow with the load and a lone post waits for nothing. A frame that is full goes
at once in any case. A post is never cut: its messages are stored together or not at all.

The same id is stored once. An id that is known is confirmed at once; one that is in flight waits
for the post that was first. Whoever waits longer than ``ack_wait`` is told that nothing is certain,
but the frame is tried on, under the same id of its own, until it is: only so can the same post,
sent again, find out whether it is stored. All of it is on the link's loop.
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
# Between two hops, about the body as it travels, or what is not the pipeline's business.
_NOT_THE_MESSAGES = frozenset(
    (
        "authorization", "connection", "content-length", "expect", "keep-alive",
        "proxy-authenticate", "proxy-authorization", "proxy-connection", "te", "trailer",
        "transfer-encoding", "upgrade", TIME,
    )
)  # fmt: skip


_process = secrets.token_hex(8)
_numbered = count()

CERTAIN_WITHIN = DUPLICATE_WINDOW - 10.0
"""So long a frame is tried. JetStream recognises a copy a bit longer; later it would be stored."""

ROW_BYTES = 128
"""About how many bytes a message has besides its value and headers."""

_LATE = 0.05


# --- what a request says ------------------------------------------------------------------------


class Envelope:
    """All that a request says besides its body. Times are microseconds since 1970.

    ``has_own_id`` if the sender named its id; otherwise it was made up. ``seen`` is when the
    request arrived. ``announced`` is the length of the body, if it was announced. ``size`` is about
    how many bytes each of its messages has besides its value.
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


def rows_of_posts(posts: Sequence[tuple[Envelope, bytes]]) -> pa.RecordBatch:
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
                raise Refusal(400, f"duplicate header {name}")
            text = f"{headers[name]}, {text}"
        headers[name] = text
    return headers


def _decode(text: bytes) -> str:
    """Returns UTF-8, which clients send, or else Latin-1, in which anything is text."""
    try:
        return text.decode()
    except UnicodeDecodeError:
        return text.decode("latin-1")


def _make_id() -> str:
    """Returns an id that no other post has: random for this process, then a number."""
    return f"{_process}{next(_numbered):016x}"


def check_id(text: str, name: str = ID) -> str:
    """Returns an id that someone named; ``Refusal`` if it is none."""
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
        raise Refusal(411, "content-length is missing")
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


# --- storing ------------------------------------------------------------------------------------


class Entry(Protocol):
    """One request that is to be stored, with the messages in it.

    ``rows`` are its messages, if it is not one alone. ``named_id`` is the id that its sender named,
    if copies are to be known by it.
    """

    envelope: Envelope
    value: bytes
    rows: pa.RecordBatch | None
    count: int
    size: int

    @property
    def named_id(self) -> str | None:
        """The id that its sender named."""

    def settle(self, refusal: Refusal | None) -> None:
        """Is told that it is stored, or why not. Called once."""

    def answer(self, refusal: Refusal | None) -> None:
        """Is told that nothing is certain yet, before it is settled."""


class Group:
    """Posts that go into one frame. Each is told after ``ack_wait`` that nothing is certain."""

    def __init__(self, loop: asyncio.AbstractEventLoop, ack_wait: float) -> None:
        self.posts: list[Entry] = []
        self.count = 0
        self.size = 0
        self._loop = loop
        self._ack_wait = ack_wait
        self._due: list[float] = []
        self._left_in_doubt = 0
        self._timer: asyncio.TimerHandle | None = None

    def add(self, post: Entry) -> None:
        """Takes a post in."""
        self.posts.append(post)
        self.count += post.count
        self.size += post.size
        self._due.append(self._loop.time() + self._ack_wait)
        if self._timer is None:
            self._timer = self._loop.call_at(self._due[-1], self._answer_late)

    @property
    def ids(self) -> list[str]:
        """The ids that were named by senders."""
        return [name for post in self.posts if (name := post.named_id) is not None]

    def rows(self) -> pa.RecordBatch:
        """Returns all its messages."""
        singles = [(post.envelope, post.value) for post in self.posts if post.rows is None]
        batches = [post.rows for post in self.posts if post.rows is not None]
        return frames.concat([*([rows_of_posts(singles)] if singles else []), *batches])

    def end(self) -> None:
        """Hears that all its posts are settled."""
        if self._timer is not None:
            self._timer.cancel()

    def _answer_late(self) -> None:
        """Answers those that are due; others may have come later."""
        start, stop = self._left_in_doubt, bisect_right(self._due, self._loop.time())
        for post in self.posts[start:stop]:
            post.answer(unconfirmed_within(self._ack_wait))
        self._left_in_doubt = stop
        rest = self._due[stop : stop + 1]
        self._timer = self._loop.call_at(rest[0], self._answer_late) if rest else None


class PostStore:
    """The posts of one vertex that are on their way into its buffer.

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
        """Posts that are not settled, by the id that their sender named; the first is stored."""
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def _known_ids(self) -> KnownIds:
        assert self._ids is not None, "an entry with a named id needs known ids"
        return self._ids

    def add(self, post: Entry) -> None:
        """Has a post stored and settled."""
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
        """Returns whether the post is to be stored; a copy is settled with the first."""
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
        """Sends when the loop has looked twice for what else has arrived: that goes with it."""
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
        # A partition without a leader keeps its frames waiting, not those of the others.
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
        """Publishes the frame of a group; returns why it is not stored, if that is so."""
        # A frame of one post has its id: the buffer itself recognises a copy of that one.
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
        """Settles posts that are stored, when their ids are known to the next run as well."""
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
    """Returns the refusal of a post that may be stored, and may not."""
    return _uncertain(f"JetStream has not confirmed it within {seconds:g} s")


def _uncertain(why: str) -> Refusal:
    return unavailable(
        f"it is not certain whether it is stored: {why}; send it again with the same id"
    )
