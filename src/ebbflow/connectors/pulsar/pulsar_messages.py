"""Pulsar's messages as columns of messages and back: ids, keys, properties, times.

A Pulsar message has one key, but a message here can have several. As in Numaflow, properties carry
them (``__key_len``, ``__key_0`` and so on). A message without a value, which deletes its key from a
compacted topic, becomes an empty message with the header ``__tombstone``. The Kafka connectors do
the same.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import pulsar
import pyarrow as pa

from ebbflow.connectors.kafka.records import read_columns, write_records

_TIME = pa.timestamp("us", tz="UTC")
_YEAR_10000 = 253_402_300_800_000
_UNREADABLE = {"__properties": "not UTF-8"}


def pulsar_offset(found: Any) -> bytes:
    """Returns a message id as text: ledger, entry, index in its batch, and partition."""
    partition = max(found.partition(), 0)
    return b"%d:%d:%d:%d" % (found.ledger_id(), found.entry_id(), found.batch_index(), partition)


def columns_of_messages(
    messages: Sequence[pulsar.Message], offsets: Sequence[bytes]
) -> pa.RecordBatch:
    """Returns Pulsar's messages as columns. A message has the same offset in every process."""
    headers = [list(properties_of(message).items()) for message in messages]
    deleted = [row for row, message in enumerate(messages) if message.has_null_value()]
    columns: dict[str, pa.Array] = {
        "offset": pa.array(offsets, pa.binary()),
        "value": pa.array([message.data() for message in messages], pa.binary()),
        "event_time": pa.array(map(_time_of, messages), pa.timestamp("ms", "UTC")).cast(_TIME),
        "partition": pa.array([_partition_of(offset) for offset in offsets], pa.int32()),
        **read_columns([message.partition_key() or None for message in messages], headers, deleted),
    }
    return pa.RecordBatch.from_pydict(columns)


def properties_of(message: pulsar.Message) -> dict[str, str]:
    """Returns the properties, or a header that says that they cannot be read."""
    try:
        properties: dict[str, str] = message.properties()
    except UnicodeDecodeError:
        return dict(_UNREADABLE)
    return properties


def _partition_of(offset: bytes) -> int:
    return int(offset.rpartition(b":")[2])


def _time_of(message: pulsar.Message) -> int | None:
    """Returns the event time, else the publish time; ``None`` outside the range of a datetime."""
    milliseconds: int = message.event_timestamp() or message.publish_timestamp()
    return milliseconds if 0 < milliseconds < _YEAR_10000 else None


class PulsarContent(NamedTuple):
    """The arguments of a producer for a message: its content and its other facts."""

    content: bytes | None
    facts: dict[str, Any]


def write_messages(messages: pa.RecordBatch) -> Iterator[PulsarContent]:
    """Yields the content to send for each message, in order."""
    records = write_records(messages, set_key=True, set_timestamp=True)
    rows = zip(records.values, records.headers, records.keys, records.timestamps, strict=False)
    for value, headers, key, milliseconds in rows:
        facts: dict[str, Any] = {
            "properties": {name: text.decode() for name, text in headers.items()}
        }
        if key:
            facts["partition_key"] = key.decode()
        if milliseconds > 0:  # Pulsar has no times before 1970
            facts["event_timestamp"] = milliseconds
        yield PulsarContent(value, facts)
