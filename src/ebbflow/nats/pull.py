"""Consumers for reading a stream in order, and what the messages say that consumers deliver.

A light consumer keeps no state worth saving: no acks, no leases, in the memory of one server. Any
reader that loses one makes another right behind the last message it has seen.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

from nats.aio.msg import Msg

from ebbflow.nats import api
from ebbflow.nats.client import SecuredClient

# A consumer is put on any server. One that was lost just now may still be chosen, and does not
# answer: another attempt chooses again.
_CREATE = 1.5
_NANOS = 1_000_000_000
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class LightConsumer:
    """One that is to be made, under a name that no other has."""

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
        """Make it, for messages behind a sequence; its facts are returned.

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
            "inactive_threshold": int(idle * _NANOS),
        }
        request = {"stream_name": self.stream, "config": config, "action": "create"}
        call = f"CONSUMER.CREATE.{self.stream}.{self.name}"
        return await api.call(client, call, request, patience=_CREATE)

    @property
    def pull_subject(self) -> str:
        """Where it is asked for messages."""
        return pull_subject(self.stream, self.name)

    async def forget(self, client: SecuredClient) -> None:
        """Have it deleted, without waiting: the server forgets idle consumers by itself."""
        await client.publish(f"$JS.API.CONSUMER.DELETE.{self.stream}.{self.name}", b"")


def pull_subject(stream: str, consumer: str) -> str:
    """Where a consumer is asked for messages."""
    return f"$JS.API.CONSUMER.MSG.NEXT.{stream}.{consumer}"


class Delivery(NamedTuple):
    """What the reply subject of a delivered message says: which message, and which delivery."""

    seq: int
    number: int
    nanos: int

    @classmethod
    def of(cls, message: Msg) -> Delivery | None:
        """``None`` for what is no message of the stream but a word of the server's about it."""
        if not message.reply.startswith("$JS.ACK."):
            return None
        # $JS.ACK.stream.consumer.deliveries.seq.number.time.pending, or longer with a domain.
        tokens = message.reply.split(".")
        first = 5 if len(tokens) == 9 else 7
        return cls(*map(int, tokens[first : first + 3]))

    @property
    def time(self) -> datetime:
        """When the message was stored."""
        return EPOCH + timedelta(microseconds=self.nanos // 1000)
