"""The pull consumer that every reader of a stream uses, and ways to follow a stream with it.

A ``PullConsumer`` sends requests and receives their messages, in batches of columns, and the
server's statuses. Each reader adds its own policy. The JetStream source fetches from a durable
consumer that several processes share. The data source fetches blocks of a bounded size. A
``LightConsumer`` has no state worth saving: no acks, no leases, in the memory of one server. A
reader that loses its light consumer makes another one right after the last message it has read.

A ``Follower`` follows one subject in order, from a sequence on, as fast as messages can be taken:
it sends requests ahead. If the consumer, its server or the connection is lost, or a message is
missing, it makes a new consumer right after the last message that it has delivered. So messages are
delivered exactly once and in order. ``follow`` is for readers that want them decoded and exert no
back-pressure.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
import secrets
import time
from bisect import bisect_right
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import Enum
from typing import Any, Required, TypedDict, TypeVar

import nats.errors
import pyarrow as pa
import pyarrow.compute as pc
from nats.aio.subscription import Subscription
from pyarrow import csv

from ebbflow.domain.errors import EbbflowError, JetStreamUnavailable
from ebbflow.nats import api
from ebbflow.nats.client import SecuredClient
from ebbflow.nats.wire import Parcel

T = TypeVar("T")

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
NANOS = 1_000_000_000
"""Nanoseconds in a second: JetStream counts time in them."""

# The cluster places a consumer on any server, even on one that has just been lost and does not
# answer. Another attempt may be placed elsewhere.
_CREATE = 1.5
_DELIVERED = b"$JS.ACK."
_TOKENS = 9
# A table costs more to set up than a few messages to read.
_FEW = 50
_TABLE = 64 * 1024 * 1024
MOST_MESSAGES = 1024
"""The most messages that a follower asks for ahead."""

# How much is requested ahead: more messages if they are small, as frames are at low rates, so that
# there are enough rows for a full call of user code.
_WINDOW, _WINDOW_BYTES = 64, 16 * 1024 * 1024
_HEARTBEAT = 0.5
_EXPIRES = 20.0
# After this many missing heartbeats in a row a consumer is given up.
_MISSED = 3
_IDLE_CONSUMER = 15
_PAUSE = 0.1
_LOOK_EVERY = 1.0

STORED_AT = pa.timestamp("us", tz="UTC")


@dataclass(frozen=True, slots=True)
class LightConsumer:
    """A consumer for one reader, with a unique name."""

    stream: str
    name: str = field(default_factory=lambda: f"r{secrets.token_hex(8)}")

    async def make(
        self,
        client: SecuredClient,
        subject: str,
        after: int,
        idle: float,
        headers_only: bool = False,
    ) -> dict[str, Any]:
        """Makes it on the server, for messages after a sequence, and returns the server's info.

        An empty subject means all. The server deletes it after ``idle`` seconds without a request.
        ``JetStreamUnavailable`` soon, when the chosen server does not answer: make another one.
        """
        config = {
            "name": self.name,
            "deliver_policy": "by_start_sequence",
            "opt_start_seq": after + 1,
            "ack_policy": "none",
            "filter_subject": subject,
            "headers_only": headers_only,
            "mem_storage": True,
            "num_replicas": 1,
            "inactive_threshold": int(idle * NANOS),
        }
        request = {"stream_name": self.stream, "config": config, "action": "create"}
        call = f"CONSUMER.CREATE.{self.stream}.{self.name}"
        return await api.call(client, call, request, patience=_CREATE)

    async def forget(self, client: SecuredClient) -> None:
        """Asks the server to delete it, without waiting: idle consumers are deleted anyway."""
        await client.publish(f"$JS.API.CONSUMER.DELETE.{self.stream}.{self.name}", b"")


Facts = tuple[list[int], list[int], list[int]]
"""Sequence, number and time of messages."""


@dataclass(frozen=True, slots=True)
class Deliveries:
    """A batch of delivered messages as columns, in the order of their delivery.

    ``numbers`` count the deliveries of the consumer. ``nanos`` are the times when the messages were
    stored, since 1970. Acknowledgements go to a message's reply subject.
    """

    parcel: Parcel
    seqs: list[int]
    numbers: list[int]
    nanos: list[int]

    @classmethod
    def of(cls, parcel: Parcel) -> Deliveries:
        """Reads sequence, number and time from the reply subjects of messages of one consumer."""
        return cls(parcel, *(_read_many if len(parcel) > _FEW else _read_few)(parcel.replies))

    @classmethod
    def join(cls, batches: Sequence[Deliveries]) -> Deliveries:
        """Returns several batches, one after the other, as one."""
        if len(batches) == 1:
            return batches[0]
        columns: Facts = [], [], []
        for batch in batches:
            for column, more in zip(columns, (batch.seqs, batch.numbers, batch.nanos), strict=True):
                column.extend(more)
        return cls(Parcel.join([batch.parcel for batch in batches]), *columns)

    def __len__(self) -> int:
        return len(self.seqs)

    def after(self, seq: int) -> Deliveries:
        """Returns the messages after a sequence, usually all of them.

        On a replica that lags behind, a consumer may begin earlier than requested.
        """
        first = bisect_right(self.seqs, seq)
        return self._cut(first, len(self)) if first else self

    def up_to(self, seq: int) -> Deliveries:
        """Returns the messages up to and including a sequence."""
        end = bisect_right(self.seqs, seq)
        return self if end == len(self) else self._cut(0, end)

    def _cut(self, first: int, end: int) -> Deliveries:
        columns = (column[first:end] for column in (self.seqs, self.numbers, self.nanos))
        return Deliveries(self.parcel.cut(first, end), *columns)

    def split(self, first: int) -> tuple[Deliveries, Deliveries | None]:
        """Returns the first messages, and the rest if there is any."""
        if first >= len(self):
            return self, None
        return self._cut(0, first), self._cut(first, len(self))

    def pick(self, rows: Sequence[int]) -> Deliveries:
        """Returns the messages in some rows."""
        columns = ([column[n] for n in rows] for column in (self.seqs, self.numbers, self.nanos))
        return Deliveries(self.parcel.pick(rows), *columns)

    def times(self) -> pa.TimestampArray:
        """Returns when the messages were stored, as a column."""
        return pc.divide(pa.array(self.nanos, pa.int64()), 1000).cast(STORED_AT)

    @property
    def pending(self) -> int:
        """The number of messages that the consumer still had after the last one here."""
        reply = self.parcel.replies[-1]
        return int(reply.split(b".")[_first_token(reply) + 3])


NO_DELIVERIES = Deliveries(Parcel(b""), [], [], [])


def has_domain(reply: bytes) -> bool:
    """Returns whether the server that delivered with this reply subject belongs to a domain."""
    # $JS.ACK.stream.consumer.deliveries.seq.number.time.pending, or longer with a domain.
    return reply.count(b".") + 1 != _TOKENS


def _first_token(reply: bytes) -> int:
    return 7 if has_domain(reply) else 5


def _read_few(replies: Sequence[bytes]) -> Facts:
    tokens = [reply.split(b".") for reply in replies]
    first = _first_token(replies[0]) if replies else 0
    seqs, numbers, nanos = ([int(parts[first + n]) for parts in tokens] for n in range(3))
    return seqs, numbers, nanos


def _read_many(replies: Sequence[bytes]) -> Facts:
    """Reads them as a table with dots between its columns."""
    first = _first_token(replies[0])
    names = [str(number) for number in range(replies[0].count(b".") + 1)]
    wanted = names[first : first + 3]
    table = csv.read_csv(
        pa.BufferReader(b"\n".join(replies)),
        csv.ReadOptions(use_threads=False, column_names=names, block_size=_TABLE),
        csv.ParseOptions(delimiter=".", quote_char=False),
        csv.ConvertOptions(include_columns=wanted, column_types=dict.fromkeys(wanted, pa.int64())),
    )
    seqs, numbers, nanos = (table.column(name).to_pylist() for name in wanted)
    return seqs, numbers, nanos


class PullState(Enum):
    """The status of a request: reported by the server, or concluded on this side."""

    HEARTBEAT = "the consumer is there and has nothing new"
    DRY = "the consumer has no more at the moment"
    EXPIRED = "the time of the request is over"
    FULL = "the answer is as large as it may be"
    TOO_LARGE = "the next message alone is larger than the answer may be"
    GONE = "the consumer was deleted, moved or lost its server"
    ABSENT = "no server answers for the consumer"
    REFUSED = "the server refused the request"
    GAP = "a delivery was lost"
    SILENCE = "nothing arrived in time"


_BY_CODE = {
    "100": PullState.HEARTBEAT,
    "404": PullState.DRY,
    "408": PullState.EXPIRED,
    "409": PullState.GONE,
    "503": PullState.ABSENT,
}
_BY_TEXT = {
    "409 Batch Completed": PullState.FULL,
    "409 Message Size Exceeds MaxBytes": PullState.TOO_LARGE,
}


@dataclass(frozen=True, slots=True)
class PullStatus:
    """The status of a request, and the server's text.

    ``left`` is how many messages of the request were not delivered. ``delivered`` is the number of
    the consumer's last delivery.
    """

    state: PullState
    text: str = ""
    left: int = 0
    delivered: int = 0

    @classmethod
    def of(cls, headers: Mapping[str, str]) -> PullStatus:
        """Reads the headers of a status message."""
        code = headers.get("Status", "")
        text = f"{code} {headers.get('Description', '')}".strip()
        return cls(
            _BY_TEXT.get(text) or _BY_CODE.get(code, PullState.REFUSED),
            text,
            int(headers.get("Nats-Pending-Messages", 0)),
            int(headers.get("Nats-Last-Consumer", 0)),
        )


class PullRequest(TypedDict, total=False):
    """A request for messages, in the server's form. Times are in nanoseconds."""

    batch: Required[int]
    expires: int
    max_bytes: int
    no_wait: bool
    idle_heartbeat: int


Take = Callable[[Deliveries], None]
OnStatus = Callable[[PullStatus], None]


class PullConsumer:
    """Requests messages from one consumer. Everything happens on the client's loop.

    ``take`` gets the messages, a batch at a time, and ``on_status`` the statuses of requests made
    without ``fetch``. A consumer that is ``is_exclusive`` has one reader, so the numbers of its
    deliveries have no gaps. After a gap no more messages are taken, and the status is ``GAP``.
    """

    def __init__(
        self,
        client: SecuredClient,
        stream: str,
        name: str,
        take: Take,
        on_status: OnStatus = lambda _: None,
        *,
        is_exclusive: bool = True,
    ) -> None:
        self.name = name
        self.subject = f"$JS.API.CONSUMER.MSG.NEXT.{stream}.{name}"
        self.received = 0
        """The number of messages and statuses that have arrived so far."""
        self.next_delivery = 1
        """The number that the next delivery must have."""
        self._client = client
        self._take = take
        self._on_status = on_status
        self._in_step = is_exclusive
        self._inbox = client.new_inbox()
        self._subscription: Subscription | None = None
        self._is_over = False
        self._requests = 0
        self._missing = 0
        self._answer: asyncio.Future[PullStatus] | None = None

    async def open(self) -> None:
        """Subscribes to the deliveries; called before the first request."""
        self._subscription = await self._client.listen(f"{self._inbox}.*", self._receive)

    async def close(self) -> None:
        """Ends the subscription; messages in flight are not taken."""
        self._is_over = True
        if self._subscription is not None:
            await self._subscription.unsubscribe()

    async def request(self, request: PullRequest) -> None:
        """Sends a request without waiting for messages."""
        self._requests += 1
        reply = f"{self._inbox}.{self._requests}"
        await self._client.publish(self.subject, json.dumps(request).encode(), reply=reply)

    async def fetch(
        self, request: PullRequest, *, silence: float = math.inf, within: float = math.inf
    ) -> PullStatus:
        """Sends a request and returns its final status, when ``take`` has all its messages.

        The status is ``SILENCE`` when nothing arrived for ``silence`` seconds, or when the answer
        was not complete ``within`` that many. ``AccessError`` when the login may not request.
        """
        self._missing = request["batch"]
        self._answer = asyncio.get_running_loop().create_future()
        if self._is_over:
            return PullStatus(PullState.GAP)
        async with self._client.unless_denied(self.subject):
            await self.request(request)
            return await self._wait(self._answer, silence, time.monotonic() + within)

    async def _wait(
        self, answer: asyncio.Future[PullStatus], silence: float, deadline: float
    ) -> PullStatus:
        while True:
            before = self.received
            timeout = min(silence, deadline - time.monotonic())
            await asyncio.wait([answer], timeout=None if timeout == math.inf else max(0.0, timeout))
            if answer.done():
                return answer.result()
            if before == self.received or time.monotonic() >= deadline:
                return PullStatus(PullState.SILENCE)

    def _receive(self, parcel: Parcel) -> None:
        self.received += len(parcel)
        start = 0
        for row, reply in enumerate(parcel.replies):
            if not reply.startswith(_DELIVERED):
                # In order of arrival: a status is about the deliveries before it.
                self._deliver(parcel.cut(start, row))
                status = PullStatus.of(parcel.headers(row) or {})
                self._report(status, parcel.subjects[row].decode())
                start = row + 1
        self._deliver(parcel.cut(start, len(parcel)) if start else parcel)

    def _deliver(self, parcel: Parcel) -> None:
        if not parcel or self._is_over:
            return
        deliveries = Deliveries.of(parcel)
        if self._in_step and not self._follows(deliveries.numbers):
            # The whole batch is dropped: the next consumer delivers it again.
            self._is_over = True
            self._report(PullStatus(PullState.GAP))
            return
        self._take(deliveries)
        self._missing -= len(parcel)
        if self._missing <= 0 and self._answer is not None and not self._answer.done():
            self._answer.set_result(PullStatus(PullState.FULL))

    def _follows(self, numbers: list[int]) -> bool:
        first, self.next_delivery = self.next_delivery, self.next_delivery + len(numbers)
        return numbers == list(range(first, self.next_delivery))

    def _report(self, status: PullStatus, subject: str | None = None) -> None:
        if self._answer is None:
            self._on_status(status)
        elif subject in (None, f"{self._inbox}.{self._requests}") and not self._answer.done():
            self._answer.set_result(status)


async def follow(
    client: SecuredClient,
    stream: str,
    subject: str,
    after: int,
    *,
    decode: Callable[[Deliveries], Sequence[T]],
    take: Callable[[Sequence[T]], None],
    fail: Callable[[EbbflowError], None],
    waiting: Callable[[], int] = lambda: 0,
) -> Follower:
    """Delivers messages after a sequence, present and future, until the follower is closed.

    ``take`` gets the decoded messages that have arrived together, on the client's loop; ``fail``
    gets the error after which no more are delivered. ``ApiError`` when the server refuses.
    """
    follower = Follower(
        client,
        stream,
        subject,
        after,
        take=lambda deliveries: take(decode(deliveries)),
        fail=fail,
        waiting=waiting,
    )
    await follower.open()
    return follower


class Follower:
    """Delivers the messages after ``seen``. Everything happens on the client's loop.

    ``take`` gets the messages in batches, ``fail`` the error after which no more are delivered.
    ``waiting`` returns how many delivered messages are not processed yet; they count against the
    window of messages that the follower requests ahead.
    """

    def __init__(
        self,
        client: SecuredClient,
        stream: str,
        subject: str,
        seen: int,
        *,
        take: Take,
        fail: Callable[[EbbflowError], None],
        waiting: Callable[[], int],
    ) -> None:
        self.consumer = LightConsumer(stream)
        self._client = client
        self._stream = stream
        self._subject = subject
        self.seen = seen
        self._take = take
        self._fail = fail
        self._waiting = waiting
        self._pull: PullConsumer | None = None
        self._requested = 0
        self._size = _WINDOW_BYTES / _WINDOW
        self._is_renewing = False
        self._moved = asyncio.Event()
        self._unwatch: Callable[[], None] = lambda: None
        self._tasks: set[asyncio.Task[None]] = set()

    async def open(self) -> None:
        """Begins; ``ApiError`` when the server refuses the first consumer."""
        await self._renew_until_done(unless=(api.ApiError,))
        self._start(self._watch_silence())

    async def close(self) -> None:
        """Ends; the consumer is deleted, by the server itself if need be."""
        for task in self._tasks:
            task.cancel()
        self._unwatch()
        await self._drop_consumer()

    async def catch_up(self) -> None:
        """Returns when all messages that were stored before the call have been delivered.

        Only for a follower of all subjects: with a filter it would not reach the last sequence.
        """
        last = await self._read_last()
        while self.seen < last:
            self._moved.clear()
            try:
                async with asyncio.timeout(_LOOK_EVERY):
                    await self._moved.wait()
            except TimeoutError:
                last = min(last, await self._read_last())  # the last messages may have expired

    async def _read_last(self) -> int:
        state = await api.read_info(self._client, self._stream)
        return int(state["last_seq"]) if state["messages"] else 0

    def ask(self) -> None:
        """Requests more messages if the window has room."""
        window = int(min(MOST_MESSAGES, max(_WINDOW, _WINDOW_BYTES / self._size)))
        room = window - self._waiting() - self._requested
        if room < window // 2 or self._is_renewing or self._pull is None:
            return
        # Counted before it is sent: another call must not request the same room again.
        self._requested += room
        self._start(self._request(self._pull, room))

    async def _request(self, pull: PullConsumer, room: int) -> None:
        expires, heartbeat = int(_EXPIRES * NANOS), int(_HEARTBEAT * NANOS)
        # A request that cannot be sent gets no answer, which ``_watch_silence`` notices.
        with contextlib.suppress(nats.errors.Error):
            await pull.request(PullRequest(batch=room, expires=expires, idle_heartbeat=heartbeat))

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # --- messages and statuses --------------------------------------------------------------------

    def _deliver(self, deliveries: Deliveries) -> None:
        self._requested = max(0, self._requested - len(deliveries))
        new = deliveries.after(self.seen)
        if new:
            # Counted as seen only after ``take``: a new consumer begins right after ``seen``.
            self._take(new)
            self.seen = new.seqs[-1]
            self._moved.set()
            for size in new.parcel.sizes():
                self._size += (size - self._size) / 16
        self.ask()

    def _handle_status(self, status: PullStatus) -> None:
        if status.state is PullState.HEARTBEAT:
            if self._pull is not None and status.delivered >= self._pull.next_delivery:
                self._restart()  # a delivery was lost
        elif status.state is PullState.EXPIRED and status.left:
            self._requested = max(0, self._requested - status.left)
            self.ask()
        else:
            self._restart()

    async def _watch_silence(self) -> None:
        """Replaces a consumer that sends neither messages nor heartbeats."""
        arrived = missed = 0
        client = self._client
        connections = client.stats["reconnects"]
        while True:
            await asyncio.sleep(_HEARTBEAT)
            # Counts rounds instead of time: a process that was suspended reads what arrived first.
            now = self._pull.received if self._pull is not None else 0
            missed, arrived = missed + 1 if self._requested and now == arrived else 0, now
            if client.stats["reconnects"] != connections:
                # The consumer may be fine, but its requests may have been dropped.
                connections, self._requested = client.stats["reconnects"], 0
                self.ask()
            elif missed >= _MISSED and client.is_connected:
                missed = 0
                self._restart()

    # --- another consumer -------------------------------------------------------------------------

    def _restart(self) -> None:
        if not self._is_renewing:
            # In another task: this may run in the subscription's callback, which ends with it.
            self._is_renewing = True
            self._start(self._renew_or_fail())

    async def _renew_or_fail(self) -> None:
        try:
            await asyncio.sleep(_PAUSE)  # the same cause may end the next consumer at once
            await self._renew_until_done()
        except EbbflowError as error:
            self._fail(error)

    async def _renew_until_done(self, unless: tuple[type[Exception], ...] = ()) -> None:
        self._is_renewing = True
        while True:
            try:
                await self._renew()
                break
            except unless:
                raise
            except (JetStreamUnavailable, api.ApiError, nats.errors.Error, OSError):
                await asyncio.sleep(_PAUSE)
        self._is_renewing = False
        self.ask()

    async def _renew(self) -> None:
        """Makes a new consumer that continues after the last message delivered."""
        await self._drop_consumer()
        client = self._client
        self.consumer, self._requested = LightConsumer(self._stream), 0
        name = self.consumer.name
        pull = PullConsumer(client, self._stream, name, self._deliver, self._handle_status)
        self._unwatch()
        self._unwatch = client.when_denied(pull.subject, self._fail)
        # Subscribes first, so that no delivery is lost.
        await pull.open()
        self._pull = pull
        await self.consumer.make(client, self._subject, self.seen, _IDLE_CONSUMER)

    async def _drop_consumer(self) -> None:
        pull, self._pull = self._pull, None
        if pull is not None:
            await pull.close()
            await self.consumer.forget(self._client)
