"""The Pulsar source: messages of a subscription, each acknowledged when it is settled.

Usually it has no ``nack``: Ebbflow keeps nacked messages and acknowledges them to Pulsar. Pulsar's
own negative acknowledgement has one delay for all messages, loses its counts with the broker, and
redelivers a whole batch for one message. With a dead letter policy the source keeps nacked messages
itself until their delays are over, and sends messages that were nacked too often to the policy's
topic.

When a process ends, Pulsar redelivers its unacknowledged messages to another consumer of the
subscription.
"""

from __future__ import annotations

import contextlib
import heapq
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import pulsar
import pyarrow as pa

from ebbflow.connectors.pulsar.pulsar_client import (
    PulsarAccess,
    PulsarConnection,
    PulsarProducer,
    describe_result,
)
from ebbflow.connectors.pulsar.pulsar_messages import (
    columns_of_messages,
    properties_of,
    pulsar_offset,
)
from ebbflow.domain.errors import Unavailable
from ebbflow.domain.user_source import NackOffset, Source

_MOST_IN_FLIGHT = 40_000
_PREFETCHED = 1_000
_AT_ONCE, _AT_ONCE_BYTES = 2_000, 16 * 1024 * 1024
_MOST_WAIT = 0.05
_QUIET = 1.0
_RECONNECT_WITHIN = 30.0
_REMEMBERED = 100_000

TYPES = {
    "shared": pulsar.ConsumerType.Shared,
    "keyShared": pulsar.ConsumerType.KeyShared,
}
"""The types of a subscription by their names in a spec."""

POSITIONS = {
    "earliest": pulsar.InitialPosition.Earliest,
    "latest": pulsar.InitialPosition.Latest,
}
"""The initial positions of a new subscription, by their names in a spec."""


@dataclass(frozen=True, slots=True)
class PulsarSourceSettings:
    """The topic, the subscription, and the dead letter policy.

    ``dead_letters`` has the topic for dead letters, and how often a message is redelivered before
    it is sent there.
    """

    access: PulsarAccess
    topic: str
    subscription_name: str
    subscription_type: str = "shared"
    initial_position: str = "earliest"
    consumer_name: str | None = None
    max_unack: int | None = None
    dead_letters: tuple[str, int] | None = None


class SettledOffsets:
    """The offsets that were settled last: at least ``most``, and at most twice as many.

    After a lost connection Pulsar redelivers some of these messages: those whose acknowledgements
    it did not get, and those that share a batch with an unacknowledged message.
    """

    def __init__(self, most: int = _REMEMBERED) -> None:
        self._most = most
        self._new: set[bytes] = set()
        self._old: set[bytes] = set()

    def __contains__(self, offset: bytes) -> bool:
        return offset in self._new or offset in self._old

    def add(self, offset: bytes) -> None:
        """Adds an offset."""
        if len(self._new) == self._most:
            self._new, self._old = set(), self._new
        self._new.add(offset)


@dataclass(slots=True)
class _Unsettled:
    """A message in flight, with several Pulsar ids if it was redelivered meanwhile."""

    message: pulsar.Message
    ids: list[Any]
    nacks: int = 0


class PulsarSource(Source):
    """One consumer of the subscription. A vertex with several partitions has several consumers."""

    def __init__(self, settings: PulsarSourceSettings) -> None:
        self._settings = settings
        self._most = min(settings.max_unack or _MOST_IN_FLIGHT, _MOST_IN_FLIGHT)
        self._in_flight: dict[bytes, _Unsettled] = {}
        self._waiting: list[tuple[float, bytes]] = []
        self._settled = SettledOffsets()
        self._connected_at = self._arrived_at = 0.0
        if settings.dead_letters is not None:
            self.nack = self._nack  # type: ignore[method-assign]

    def open(self) -> None:
        """Subscribes; ``SetupError`` for a mistake, ``Unavailable`` if no broker answers."""
        settings, access = self._settings, self._settings.access
        self._connection = PulsarConnection(access)
        try:
            self._consumer = self._subscribe()
            if settings.dead_letters is not None:
                self._dead_letters = PulsarProducer(
                    self._connection, access, settings.dead_letters[0]
                )
        except pulsar.PulsarException as error:
            self._connection.close()
            raise access.explain(error, f"topic {settings.topic!r}") from None
        except BaseException:
            self._connection.close()
            raise
        self._connected_at = self._arrived_at = time.monotonic()

    def _subscribe(self) -> pulsar.Consumer:
        settings = self._settings
        return self._connection.client.subscribe(
            settings.topic,
            settings.subscription_name,
            TYPES[settings.subscription_type],
            initial_position=POSITIONS[settings.initial_position],
            consumer_name=settings.consumer_name,
            receiver_queue_size=min(_PREFETCHED, self._most),
            # If brokers allow it, only the unacknowledged messages of a batch are redelivered.
            batch_index_ack_enabled=True,
        )

    def close(self) -> None:
        """Leaves the subscription: Pulsar redelivers unacknowledged messages at once."""
        self._connection.close()

    # --- reading --------------------------------------------------------------------------------

    def read(self, limit: int, timeout: timedelta) -> pa.RecordBatch:
        """Returns nacked messages whose delay is over, or else new messages."""
        offsets = self._take_due(limit) or self._receive(limit, timeout.total_seconds())
        return columns_of_messages([self._in_flight[offset].message for offset in offsets], offsets)

    def _take_due(self, limit: int) -> list[bytes]:
        due: list[bytes] = []
        while self._waiting and len(due) < limit and self._waiting[0][0] <= time.monotonic():
            _, offset = heapq.heappop(self._waiting)
            if offset in self._in_flight:
                due.append(offset)
        return due

    def _receive(self, limit: int, timeout: float) -> list[bytes]:
        if self._waiting:
            timeout = min(timeout, max(0.0, self._waiting[0][0] - time.monotonic()))
        room = min(limit, self._most - len(self._in_flight))
        if room <= 0:
            time.sleep(min(timeout, _MOST_WAIT))
            self._arrived_at = time.monotonic()  # there may be more
            return []
        messages = self._receive_messages(room, timeout)
        self._watch_connection(bool(messages))
        return [offset for message in messages if (offset := self._take_in(message)) is not None]

    def _receive_messages(self, room: int, timeout: float) -> list[pulsar.Message]:
        """Waits only for the first message; returns others that are there already."""
        messages: list[pulsar.Message] = []
        wait, size = max(1, round(timeout * 1_000)), 0
        try:
            while len(messages) < min(room, _AT_ONCE) and size < _AT_ONCE_BYTES:
                messages.append(self._consumer.receive(0 if messages else wait))
                size += len(messages[-1].data())
        except pulsar.Timeout:
            pass
        except pulsar.PulsarException as error:
            what = f"subscription {self._settings.subscription_name!r}"
            raise self._settings.access.explain(error, what) from None
        return messages

    def _take_in(self, message: pulsar.Message) -> bytes | None:
        """Returns the offset of a new message; ``None`` if it is in flight or settled already."""
        message_id = message.message_id()
        offset = pulsar_offset(message_id)
        if offset in self._settled:
            self._acknowledge(message_id)
            return None
        if (known := self._in_flight.get(offset)) is not None:
            known.ids.append(message_id)
            return None
        self._in_flight[offset] = _Unsettled(message, [message_id])
        return offset

    def _watch_connection(self, has_arrived: bool) -> None:
        """Raises ``Unavailable`` if the client has been disconnected for a while."""
        now = time.monotonic()
        if has_arrived:
            self._arrived_at = now
        if has_arrived or self._consumer.is_connected():
            self._connected_at = now
        elif now - self._connected_at > _RECONNECT_WITHIN:
            raise Unavailable(f"{self._settings.access}: the connection is lost")
        else:
            self._arrived_at = now  # the broker may have messages once it is back

    @property
    def exhausted(self) -> bool:
        """``True`` if nothing is in flight and nothing has arrived for a second."""
        quiet = time.monotonic() - self._arrived_at
        return not self._in_flight and quiet > _QUIET and bool(self._consumer.is_connected())

    # --- settling -------------------------------------------------------------------------------

    def ack(self, offsets: Sequence[bytes]) -> None:
        """Acknowledges messages; the client groups its acknowledgements."""
        for offset in offsets:
            # Also for messages of an earlier consumer, which Pulsar redelivers.
            self._settled.add(offset)
            known = self._in_flight.pop(offset, None)
            for message_id in known.ids if known else ():
                self._acknowledge(message_id)

    def _acknowledge(self, message_id: Any) -> None:
        # If this fails, the message is redelivered and then acknowledged.
        with contextlib.suppress(pulsar.PulsarException):
            self._consumer.acknowledge(message_id)

    def _nack(self, nacks: Sequence[NackOffset]) -> None:
        """Keeps messages until their delays are over; sends those nacked too often to the topic."""
        assert self._settings.dead_letters is not None
        _, most = self._settings.dead_letters
        now = time.monotonic()
        dead: list[NackOffset] = []
        for nack in nacks:
            known = self._in_flight.get(nack.offset)
            if known is None:  # received by an earlier consumer: Pulsar redelivers it
                continue
            known.nacks += 1
            if known.nacks > most:
                dead.append(nack)
            else:
                due = now + (nack.options.delay or 0) / 1000
                heapq.heappush(self._waiting, (due, nack.offset))
        if dead:
            self._send_dead(dead)
            self.ack([nack.offset for nack in dead])

    def _send_dead(self, nacks: Sequence[NackOffset]) -> None:
        """Sends messages to the dead letter topic; ``Unavailable`` if one is not stored."""
        for nack in nacks:
            message = self._in_flight[nack.offset].message
            reason = {"NACK_REASON": nack.options.reason} if nack.options.reason else {}
            self._dead_letters.send(
                None if message.has_null_value() else message.data(),
                properties=properties_of(message) | _origin(message, self._settings) | reason,
                partition_key=message.partition_key() or None,
                event_timestamp=message.event_timestamp() or None,
            )
        if failed := self._dead_letters.wait():
            why = describe_result(next(iter(failed.values())))
            raise Unavailable(f"{self._settings.access} does not take dead letters: {why}")


def _origin(message: pulsar.Message, settings: PulsarSourceSettings) -> dict[str, str]:
    """Returns the origin of a dead letter, in the properties that Pulsar's own clients use."""
    return {
        "REAL_TOPIC": message.topic_name(),
        "REAL_SUBSCRIPTION": settings.subscription_name,
        "ORIGIN_MESSAGE_ID": str(message.message_id()).strip("()").replace(",", ":"),
    }
