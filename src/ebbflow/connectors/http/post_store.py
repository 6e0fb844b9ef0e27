"""Stores posts in the buffer of their vertex: those that arrive together go into one frame.

A frame is published at once while none is on its way. What arrives meanwhile is gathered for the
next one, so frames grow with the load and a lone post waits for nothing. A frame that is full goes
at once in any case. A post is never cut: its messages are stored together or not at all.

The same id is stored once. An id that is known is confirmed at once; one that is on its way waits
for the post that was first. Whoever waits longer than ``ack_wait`` is told that nothing is certain,
but the frame is tried on, under the same id of its own, until it is: only so can the same post,
sent again, find out whether it is stored. All of it is on the link's loop.
"""

from __future__ import annotations

import asyncio
import json
import secrets
from bisect import bisect_right
from collections.abc import Coroutine, Sequence
from typing import Any, Protocol

import pyarrow as pa

from ebbflow.connectors.http.known_ids import KnownIds
from ebbflow.connectors.http.request import Envelope, rows_of
from ebbflow.domain.errors import BufferFull, EbbflowError, MessageTooLarge
from ebbflow.engine import frames
from ebbflow.streams.catalogue import DUPLICATE_WINDOW
from ebbflow.streams.feed import Buffers
from ebbflow.web.body import Body
from ebbflow.web.exchange import Exchange
from ebbflow.web.refusal import Refusal, too_many, unavailable
from ebbflow.web.room import RequestRoom

CERTAIN_WITHIN = DUPLICATE_WINDOW - 10.0
"""So long a frame is tried. JetStream recognises a copy a bit longer; later it would be stored."""

_ROW_BYTES = 128
_LATE = 0.05


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
        """As above."""

    def settle(self, refusal: Refusal | None) -> None:
        """Hears that it is stored, or why not. Called once."""

    def answer(self, refusal: Refusal | None) -> None:
        """Hears that nothing is certain yet, before it is settled."""


class Post(Body):
    """One post: its body while it arrives, its messages while they are stored, and its answer.

    When it is complete, ``count`` is the number of its messages and ``size`` about their bytes.
    """

    __slots__ = ("_exchange", "_store", "count", "envelope", "rows", "size", "value")

    def __init__(
        self,
        envelope: Envelope,
        exchange: Exchange,
        room: RequestRoom,
        largest: int,
        store: PostStore,
    ) -> None:
        super().__init__(room, largest)
        self.envelope = envelope
        self.value = b""
        self.rows: pa.RecordBatch | None = None
        self._exchange: Exchange | None = exchange
        self._store = store
        self.count = 1
        self.size = 0

    # --- as the connection sees it --------------------------------------------------------------

    def finish(self) -> None:
        """Has it stored; ``Refusal`` if it holds no messages."""
        self.value = self.join()
        self.size = self.received + self.envelope.size + _ROW_BYTES
        try:
            if self.envelope.is_batch:
                self._split()
            self._store.add(self)
        except BaseException:
            self.abandon()
            raise

    def _split(self) -> None:
        self.rows = self.envelope.split(self.value)
        self.count, self.size = self.rows.num_rows, self.rows.nbytes
        self._room.cover(self.size)

    # --- as the store sees it -------------------------------------------------------------------

    @property
    def named_id(self) -> str | None:
        """The id that its sender named."""
        return self.envelope.id if self.envelope.has_own_id else None

    def settle(self, refusal: Refusal | None) -> None:
        """Answers, if that was not done before, and gives its room back. Called once."""
        self._room.release()
        self.answer(refusal)

    def answer(self, refusal: Refusal | None) -> None:
        """Says that it is stored, or why not; only the first answer counts."""
        exchange, self._exchange = self._exchange, None
        if exchange is None:
            return
        if refusal is None:
            exchange.respond(200, self._confirmation())
        else:
            exchange.refuse(refusal)

    def _confirmation(self) -> bytes:
        text = json.dumps(self.envelope.id)
        if self.rows is None:
            return b'{"id":%b}' % text.encode()
        return b'{"id":%b,"messages":%d}' % (text.encode(), self.count)


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
        return frames.concat([*([rows_of(singles)] if singles else []), *batches])

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
