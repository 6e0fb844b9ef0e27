"""The Kafka source: records of topics as messages, committed only when they are settled.

It has no ``nack``: what is nacked is kept by Ebbflow and counts as settled, so that it holds up no
partition and is never skipped.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import cast

from confluent_kafka import TIMESTAMP_NOT_AVAILABLE, Message

from ebbflow.connectors.kafka.client import Partition
from ebbflow.connectors.kafka.member import Member
from ebbflow.connectors.kafka.records import TOMBSTONE, Headers, read_headers
from ebbflow.connectors.kafka.settings import KafkaSourceSettings
from ebbflow.source import Source, SourceMessage

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class KafkaSource(Source):
    """One member of the group; a vertex with several partitions is several members."""

    def __init__(self, settings: KafkaSourceSettings) -> None:
        self._member = Member(settings)

    def open(self) -> None:
        """Joins the group; ``SetupError`` if the brokers or a topic are not there."""
        self._member.join()

    def close(self) -> None:
        """Commits what is settled and leaves the group."""
        self._member.leave()

    def read(self, limit: int, timeout: float) -> list[SourceMessage]:
        """Returns what has come, up to ``limit`` messages."""
        return [message_of(record) for record in self._member.take(limit, timeout)]

    def ack(self, offsets: Sequence[bytes]) -> None:
        """These are settled."""
        self._member.settle(map(_place, offsets))

    def pending(self) -> int | None:
        """Returns how far this member is behind the ends of its partitions, if that is known."""
        return self._member.behind()

    def partitions(self) -> list[int]:
        """Returns the numbers of the partitions that this member has, of all topics."""
        return sorted({number for _, number in self._member.partitions})

    @property
    def exhausted(self) -> bool:
        """True when the group has read everything to the end, and everything is settled."""
        return self._member.done


def _place(offset: bytes) -> tuple[Partition, int]:
    topic, partition, number = offset.decode().rsplit(":", 2)
    return (topic, int(partition)), int(number)


def message_of(record: Message) -> SourceMessage:
    """Returns a record as a message of the pipeline; its offset is the same whoever reads it."""
    keys, headers = read_headers(record.key(), cast("Headers", record.headers()))
    value = record.value()
    if value is None:
        headers[TOMBSTONE] = "true"
    return SourceMessage(
        value=value or b"",
        offset=f"{record.topic()}:{record.partition()}:{record.offset()}".encode(),
        event_time=_event_time(*record.timestamp()),
        keys=keys,
        headers=headers,
        partition=record.partition(),
    )


def _event_time(kind: int, milliseconds: int) -> datetime | None:
    if kind == TIMESTAMP_NOT_AVAILABLE:
        return None
    with contextlib.suppress(OverflowError):
        return _EPOCH + timedelta(milliseconds=milliseconds)
    return None  # no time that a calendar has
