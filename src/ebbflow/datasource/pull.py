"""One light consumer, asked for one block of messages at a time.

What it delivers is complete and in order, or its end says that it cannot be relied on any more.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from enum import Enum
from typing import NamedTuple, Self

import nats.errors
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription

from ebbflow.datasource.leader import Leader
from ebbflow.nats.client import SecuredClient
from ebbflow.nats.pull import Delivery, LightConsumer

_SILENCE = 3.0


class Stored(NamedTuple):
    """A message of the stream. ``nanos`` is when it was stored, since 1970."""

    subject: str
    sequence: int
    nanos: int
    headers: dict[str, str] | None
    data: bytes


class End(Enum):
    """Why a block has no more messages."""

    FULL = "it is as large as it may be"
    DRY = "the consumer has no more at the moment"
    TOO_LARGE = "the next message alone is larger than the block may be"
    GONE = "the consumer is gone, or something was lost on the way"


_STATUS = {
    "404 No Messages": End.DRY,
    "409 Batch Completed": End.FULL,
    "409 Message Size Exceeds MaxBytes": End.TOO_LARGE,
}


class Pull:
    """A consumer and the inbox that it delivers to."""

    def __init__(self, client: SecuredClient, leader: Leader, sequence: int) -> None:
        self._client = client
        self._leader = leader
        self._consumer: LightConsumer | None = None
        self._inbox = client.new_inbox()
        self._subscription: Subscription | None = None
        self._request = 0
        self._behind = sequence
        self._most = self._deliveries = 0
        self._next_delivery = 1
        self._messages: list[Stored] = []
        self._end: End | None = End.GONE
        self._ended = asyncio.Event()

    @classmethod
    async def behind(cls, client: SecuredClient, leader: Leader, sequence: int) -> Self:
        """A consumer of the messages behind a sequence."""
        pull = cls(client, leader, sequence)
        pull._subscription = await client.subscribe(
            f"{pull._inbox}.*", cb=pull._arrived, pending_msgs_limit=-1, pending_bytes_limit=-1
        )
        pull._consumer, _ = await leader.consume_after(sequence)
        return pull

    async def close(self) -> None:
        """Stop, and have the consumer deleted."""
        with contextlib.suppress(nats.errors.Error):
            if self._subscription is not None:
                await self._subscription.unsubscribe()
            if self._consumer is not None:
                await self._consumer.forget(self._client)

    async def block(self, most: int, size: int) -> tuple[list[Stored], End]:
        """What is there, at most so many messages and bytes, and why it is not more."""
        assert self._consumer is not None
        self._request += 1
        self._most, self._deliveries = most, 0
        self._messages, self._end = [], None
        self._ended.clear()
        request = json.dumps({"batch": most, "max_bytes": size, "no_wait": True}).encode()
        subject = self._consumer.pull_subject
        async with self._client.unless_denied(subject):
            await self._client.publish(subject, request, reply=f"{self._inbox}.{self._request}")
            return self._messages, await self._wait()

    async def _wait(self) -> End:
        heard = -1
        while self._end is None:
            if heard == self._deliveries:
                return End.GONE
            heard = self._deliveries
            try:
                await asyncio.wait_for(self._ended.wait(), _SILENCE)
            except TimeoutError:
                continue
        return self._end

    async def _arrived(self, message: Msg) -> None:
        if self._end is not None:
            return
        if (delivery := Delivery.of(message)) is not None:
            self._delivered(message, delivery)
        elif message.subject == f"{self._inbox}.{self._request}":
            headers = message.headers or {}
            status = f"{headers.get('Status')} {headers.get('Description')}"
            self._finish(_STATUS.get(status, End.GONE))

    def _delivered(self, message: Msg, delivery: Delivery) -> None:
        if delivery.number != self._next_delivery:
            self._finish(End.GONE)
            return
        self._next_delivery += 1
        self._deliveries += 1
        # On a replica that lags behind a consumer may begin earlier than it was told to.
        if delivery.seq > self._behind:
            facts = message.subject, delivery.seq, delivery.nanos
            self._messages.append(Stored(*facts, message.headers, message.data))
        if self._deliveries == self._most:
            self._finish(End.FULL)

    def _finish(self, end: End) -> None:
        self._end = end
        self._ended.set()
