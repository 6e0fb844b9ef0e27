"""Messages for Pulsar: keys, headers, tombstones and times, without a broker."""

from __future__ import annotations

from datetime import UTC, datetime

from ebbflow.connectors.pulsar.pulsar_messages import write_messages
from ebbflow.engine import frames


def rows_of(*messages):
    names = ("value", "keys", "headers", "event_time")
    columns = dict(zip(names, map(list, zip(*messages, strict=True)), strict=True))
    columns["id"] = [str(number) for number in range(len(messages))]
    return frames.batch_of(columns, len(messages))


def test_keys_become_the_partition_key_and_the_properties_of_numaflow():
    at = datetime(2026, 1, 2, 3, 4, 5, 678_000, UTC)
    rows = rows_of((b"a", ["ann", "bob"], [("trace", "ü")], at), (b"", None, None, None))
    first, second = write_messages(rows)
    assert first.content == b"a"
    assert first.facts == {
        "properties": {"trace": "ü", "__key_len": "2", "__key_0": "ann", "__key_1": "bob"},
        "partition_key": "ann:bob",
        "event_timestamp": round(at.timestamp() * 1000),
    }
    assert second == (b"", {"properties": {"__key_len": "0"}})


def test_a_tombstone_has_no_content_and_a_time_before_1970_is_left_out():
    early = datetime(1969, 12, 31, tzinfo=UTC)
    rows = rows_of((b"", ["ann"], [("__tombstone", "true")], early))
    (written,) = write_messages(rows)
    assert written.content is None
    assert written.facts.keys() == {"properties", "partition_key"}
    assert written.facts["properties"] == {"__key_len": "1", "__key_0": "ann"}
