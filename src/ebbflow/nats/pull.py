"""The pull consumer under every reader of a stream: requests, their inbox, the server's words.

Messages come out in batches, as columns. Each reader adds a policy of its own. ``Follower`` keeps
requests ahead and goes on with a new consumer when one is lost. The JetStream source fetches from a
durable consumer that several processes share. The data source fetches blocks of a bounded size.

A ``LightConsumer`` keeps no state worth saving: no acks, no leases, in the memory of one server.
Any reader that loses one makes another right behind the last message it has seen.
"""

from __future__ import annotations

import asyncio
import json
import math
import secrets
import time
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import Enum
from typing import Any, Required, TypedDict

import pyarrow as pa
import pyarrow.compute as pc
from nats.aio.subscription import Subscription
from pyarrow import csv

from ebbflow.nats import api
from ebbflow.nats.client import SecuredClient
from ebbflow.nats.wire import Parcel

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
NANOS = 1_000_000_000
"""Nanoseconds in a second: JetStream counts time in them."""

# A consumer is put on any server. One that was lost just now may still be chosen, and does not
# answer: another attempt chooses again.
_CREATE = 1.5
_DELIVERED = b"$JS.ACK."
_TOKENS = 9
# A table costs more to set up than a few messages to read.
_FEW = 50
_TABLE = 64 * 1024 * 1024
STORED_AT = pa.timestamp("us", tz="UTC")


@dataclass(frozen=True, slots=True)
class LightConsumer:
    """A consumer for one reader, under a name that no other has."""

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
        """Makes it on the server, for messages behind a sequence, and returns its facts.

        An empty subject is for all. The server forgets it after ``idle`` seconds without a request.
        ``JetStreamUnavailable`` soon, when the server chosen does not answer: make another one.
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
        """Has it deleted, without waiting: the server forgets idle consumers by itself."""
        await client.publish(f"$JS.API.CONSUMER.DELETE.{self.stream}.{self.name}", b"")


Facts = tuple[list[int], list[int], list[int]]
"""Sequence, number and time of messages."""


@dataclass(frozen=True, slots=True)
class Deliveries:
    """A batch of delivered messages as columns, in the order of their delivery.

    ``numbers`` count the deliveries of the consumer. ``nanos`` are when the messages were stored,
    since 1970. An answer to a message, such as its acknowledgement, goes to its reply subject.
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
        """Returns several batches, one behind the other, as one."""
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
        """Returns the messages behind a sequence: all of them, as a rule.

        On a replica that lags behind, a consumer may begin earlier than it was told to.
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
        """Returns the first messages, and the others if there are any."""
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
        """The number of messages that the consumer had left when it delivered the last one."""
        reply = self.parcel.replies[-1]
        return int(reply.split(b".")[_first_token(reply) + 3])


NO_DELIVERIES = Deliveries(Parcel(b""), [], [], [])


def has_domain(reply: bytes) -> bool:
    """Returns whether the server that delivered with this reply subject is of a domain."""
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
    """Reads them as what they are, a table with dots between its columns."""
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


class Word(Enum):
    """How it stands with a request: the server's own word, or what this side makes of the rest."""

    HEARTBEAT = "the consumer is there and has nothing new"
    DRY = "the consumer has no more at the moment"
    EXPIRED = "the time of the request is over"
    FULL = "the answer is as large as it may be"
    TOO_LARGE = "the next message alone is larger than the answer may be"
    GONE = "the consumer was deleted, moved or lost its server"
    ABSENT = "nobody answers for the consumer"
    REFUSED = "the server does not take the request"
    GAP = "something was lost on the way"
    SILENCE = "nothing came in time"


_BY_CODE = {
    "100": Word.HEARTBEAT,
    "404": Word.DRY,
    "408": Word.EXPIRED,
    "409": Word.GONE,
    "503": Word.ABSENT,
}
_BY_TEXT = {
    "409 Batch Completed": Word.FULL,
    "409 Message Size Exceeds MaxBytes": Word.TOO_LARGE,
}


@dataclass(frozen=True, slots=True)
class PullStatus:
    """A word about a request, and the server's text.

    ``left`` is how many messages the request still had coming. ``delivered`` is the number of the
    consumer's last delivery.
    """

    word: Word
    text: str = ""
    left: int = 0
    delivered: int = 0

    @classmethod
    def of(cls, headers: Mapping[str, str]) -> PullStatus:
        """Reads the headers of a message that is no message of the stream."""
        code = headers.get("Status", "")
        text = f"{code} {headers.get('Description', '')}".strip()
        return cls(
            _BY_TEXT.get(text) or _BY_CODE.get(code, Word.REFUSED),
            text,
            int(headers.get("Nats-Pending-Messages", 0)),
            int(headers.get("Nats-Last-Consumer", 0)),
        )


class PullRequest(TypedDict, total=False):
    """What a request asks for, as the server takes it. Times are in nanoseconds."""

    batch: Required[int]
    expires: int
    max_bytes: int
    no_wait: bool
    idle_heartbeat: int


Take = Callable[[Deliveries], None]
Hear = Callable[[PullStatus], None]


class PullConsumer:
    """Asks one consumer for messages. Everything happens on the client's loop.

    ``take`` gets the messages, a batch at a time, and ``hear`` the words about requests that nobody
    waits for. A consumer that is ``in_step`` has one reader, so the numbers of its deliveries have
    no gap. After one that has, nothing more is taken, and the word is ``GAP``.
    """

    def __init__(
        self,
        client: SecuredClient,
        stream: str,
        name: str,
        take: Take,
        hear: Hear = lambda _: None,
        *,
        in_step: bool = True,
    ) -> None:
        self.name = name
        self.subject = f"$JS.API.CONSUMER.MSG.NEXT.{stream}.{name}"
        self.heard = 0
        """The number of messages and words that have arrived so far."""
        self.next_delivery = 1
        """The number that the next delivery has to have."""
        self._client = client
        self._take = take
        self._hear = hear
        self._in_step = in_step
        self._inbox = client.new_inbox()
        self._subscription: Subscription | None = None
        self._is_over = False
        self._requests = 0
        self._missing = 0
        self._answer: asyncio.Future[PullStatus] | None = None

    async def open(self) -> None:
        """Listens for deliveries, before the first request."""
        self._subscription = await self._client.listen(f"{self._inbox}.*", self._receive)

    async def close(self) -> None:
        """Listens no more; what is still on its way is not taken."""
        self._is_over = True
        if self._subscription is not None:
            await self._subscription.unsubscribe()

    async def request(self, request: PullRequest) -> None:
        """Sends a request, without waiting for anything."""
        self._requests += 1
        reply = f"{self._inbox}.{self._requests}"
        await self._client.publish(self.subject, json.dumps(request).encode(), reply=reply)

    async def fetch(
        self, request: PullRequest, *, silence: float = math.inf, within: float = math.inf
    ) -> PullStatus:
        """Sends a request and returns with the word that ends it, when ``take`` has it all.

        The word is ``SILENCE`` when nothing came for ``silence`` seconds, or when the answer was
        not complete ``within`` so many. ``AccessError`` when the login may not ask.
        """
        self._missing = request["batch"]
        self._answer = asyncio.get_running_loop().create_future()
        if self._is_over:
            return PullStatus(Word.GAP)
        async with self._client.unless_denied(self.subject):
            await self.request(request)
            return await self._wait(self._answer, silence, time.monotonic() + within)

    async def _wait(
        self, answer: asyncio.Future[PullStatus], silence: float, deadline: float
    ) -> PullStatus:
        while True:
            heard = self.heard
            timeout = min(silence, deadline - time.monotonic())
            await asyncio.wait([answer], timeout=None if timeout == math.inf else max(0.0, timeout))
            if answer.done():
                return answer.result()
            if heard == self.heard or time.monotonic() >= deadline:
                return PullStatus(Word.SILENCE)

    def _receive(self, parcel: Parcel) -> None:
        self.heard += len(parcel)
        start = 0
        for row, reply in enumerate(parcel.replies):
            if not reply.startswith(_DELIVERED):
                # In their order: a word is about the deliveries before it.
                self._hand_on(parcel.cut(start, row))
                word = PullStatus.of(parcel.headers(row) or {})
                self._tell(word, parcel.subjects[row].decode())
                start = row + 1
        self._hand_on(parcel.cut(start, len(parcel)) if start else parcel)

    def _hand_on(self, parcel: Parcel) -> None:
        if not parcel or self._is_over:
            return
        deliveries = Deliveries.of(parcel)
        if self._in_step and not self._follows(deliveries.numbers):
            # Of the whole batch nothing is taken: the next consumer delivers it again.
            self._is_over = True
            self._tell(PullStatus(Word.GAP))
            return
        self._take(deliveries)
        self._missing -= len(parcel)
        if self._missing <= 0 and self._answer is not None and not self._answer.done():
            self._answer.set_result(PullStatus(Word.FULL))

    def _follows(self, numbers: list[int]) -> bool:
        first, self.next_delivery = self.next_delivery, self.next_delivery + len(numbers)
        return numbers == list(range(first, self.next_delivery))

    def _tell(self, status: PullStatus, subject: str | None = None) -> None:
        if self._answer is None:
            self._hear(status)
        elif subject in (None, f"{self._inbox}.{self._requests}") and not self._answer.done():
            self._answer.set_result(status)
