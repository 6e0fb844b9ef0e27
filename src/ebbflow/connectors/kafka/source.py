"""The Kafka source: records of topics as messages, committed only when they are settled.

It has no ``nack``: what is nacked is kept by Ebbflow and counts as settled, so that it holds up no
partition and is never skipped. Records become columns as many at a time as have come; no Python
code of ours runs for a single one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import pyarrow as pa
import pyarrow.compute as pc
from confluent_kafka import TIMESTAMP_NOT_AVAILABLE, Message

from ebbflow.connectors.kafka.member import Member
from ebbflow.connectors.kafka.progress import write_offsets
from ebbflow.connectors.kafka.records import Headers, read_columns
from ebbflow.connectors.kafka.settings import KafkaSourceSettings
from ebbflow.domain.source import Source

_TIME = pa.timestamp("us", tz="UTC")
_YEAR_1, _YEAR_10000 = -62_135_596_800_000, 253_402_300_800_000
"""In milliseconds since 1970, the bounds of the times that a calendar has."""


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

    def read(self, limit: int, timeout: float) -> pa.RecordBatch:
        """Returns what has come, up to ``limit`` messages."""
        return columns_of(self._member.take(limit, timeout))

    def ack(self, offsets: Sequence[bytes]) -> None:
        """Notes that these are settled; they are committed soon."""
        self.ack_columns(pa.array(offsets, pa.binary()))

    def ack_columns(self, offsets: pa.BinaryArray) -> None:
        """Notes that these are settled; they are committed soon."""
        self._member.settle(offsets)

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


def columns_of(records: Sequence[Message]) -> pa.RecordBatch:
    """Returns records as messages of the pipeline; an offset is the same whoever reads it."""
    values = list(map(Message.value, records))
    partitions = cast("list[int]", list(map(Message.partition, records)))
    topics = cast("list[str]", list(map(Message.topic, records)))
    numbers = cast("list[int]", list(map(Message.offset, records)))
    keys = list(map(Message.key, records))
    headers = cast("list[Headers]", list(map(Message.headers, records)))
    column = pa.array(values, pa.binary())
    deleted = pc.indices_nonzero(pc.is_null(column)).to_pylist() if column.null_count else ()
    columns = {
        "offset": write_offsets(topics, partitions, numbers),
        "value": column.fill_null(b""),
        "event_time": _event_times(list(map(Message.timestamp, records))),
        "partition": pa.array(partitions, pa.int32()),
        **read_columns(keys, headers, deleted),
    }
    return pa.RecordBatch.from_pydict(columns)


def _event_times(timestamps: Sequence[tuple[int, int]]) -> pa.Array:
    """Returns the times of records; null where there is none, or none that a calendar has."""
    kinds = pa.array([kind for kind, _ in timestamps], pa.int8())
    times = pa.array([milliseconds for _, milliseconds in timestamps], pa.int64())
    on_calendar = pc.and_(pc.greater_equal(times, _YEAR_1), pc.less(times, _YEAR_10000))
    known = pc.and_(pc.not_equal(kinds, TIMESTAMP_NOT_AVAILABLE), on_calendar)
    milliseconds = pc.if_else(known, times, pa.scalar(None, pa.int64()))
    return milliseconds.cast(pa.timestamp("ms", tz="UTC")).cast(_TIME)
