"""The Kafka sink by itself, against a real broker: what it writes, and how it responds."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta

import pytest

from ebbflow.connectors.kafka.kafka_client import KafkaAccess, KafkaSinkSettings
from ebbflow.connectors.kafka.sink import KafkaSink
from ebbflow.connectors.kafka.source import columns_of_records
from ebbflow.domain.errors import SetupError
from ebbflow.domain.message import Status
from ebbflow.engine import frames
from tests.connectors.kafka.broker import free_ports
from tests.connectors.kafka.test_source import login, messages_of

pytestmark = pytest.mark.slow


@pytest.fixture
def sink_to(kafka):
    def make(topic, access=None, set_key=False, set_timestamp=False, **config):
        access = access or KafkaAccess((kafka.address,), tuple(config.items()))
        sink = KafkaSink(KafkaSinkSettings(access, topic, set_key, set_timestamp))
        sink.open()
        return sink

    return make


def rows_of(*values, keys=None, headers=None):
    """Messages for the sink, all with the same keys unless ``keys`` is a list of lists."""
    every = keys if keys and isinstance(keys[0], list) else [keys or None] * len(values)
    columns = {
        "id": [str(number) for number in range(len(values))],
        "value": list(values),
        "keys": every,
        "headers": [list((headers or {}).items()) or None] * len(values),
    }
    return frames.batch_of(columns, len(values))


def statuses(rows, answers):
    """The status of each message; one without a response has been written."""
    return [answers[row].status if row in answers else Status.OK for row in range(rows.num_rows)]


def write(sink, *values, **fields):
    """Have the sink write messages; returns the status of each."""
    rows = rows_of(*values, **fields)
    return statuses(rows, sink(rows) or {})


def test_every_message_becomes_a_record_with_its_keys_and_headers(kafka, sink_to):
    topic = kafka.topic()
    sink = sink_to(topic, set_key=True)

    written = write(sink, b"one", b"", keys=["ann", "bob"], headers={"trace": "7"})

    assert written == [Status.OK, Status.OK]
    first, second = kafka.records(topic)
    assert (first.value(), second.value()) == (b"one", b"")
    assert first.key() == b"ann:bob"
    headers = {"trace": b"7", "__key_len": b"2", "__key_0": b"ann", "__key_1": b"bob"}
    assert dict(first.headers()) == headers


def test_without_set_key_a_record_has_no_key(kafka, sink_to):
    topic = kafka.topic()
    write(sink_to(topic), b"one", keys=["ann"])
    (record,) = kafka.records(topic)
    assert record.key() is None


def test_messages_without_keys_and_headers_are_written_in_order(kafka, sink_to):
    topic = kafka.topic()
    values = [b"%d" % number for number in range(3_000)]
    assert set(write(sink_to(topic, set_key=True), *values)) == {Status.OK}
    records = kafka.records(topic)
    assert [record.value() for record in records] == values
    assert {record.key() for record in records} == {None}
    assert all(record.headers() == [("__key_len", b"0")] for record in records)


def test_records_with_the_same_keys_are_in_the_same_partition(kafka, sink_to):
    topic = kafka.topic(4)
    write(sink_to(topic, set_key=True), *[b""] * 100, keys=[[f"k{n % 20}"] for n in range(100)])
    places = {(record.key(), record.partition()) for record in kafka.records(topic)}
    assert len(places) == 20
    assert len({partition for _, partition in places}) > 1


@pytest.mark.parametrize("keys", [[], [""], ["ann"], ["ann", "bob:carl", "é"]])
def test_a_source_reads_exactly_what_the_sink_wrote(kafka, sink_to, keys):
    topic = kafka.topic()
    headers = {"trace": "7", "é": "ü"}
    write(sink_to(topic, set_key=True), b"\x00\xff", keys=keys, headers=headers)

    (message,) = messages_of(columns_of_records(kafka.records(topic)))
    assert message.value == b"\x00\xff"
    assert (list(message.keys), message.headers) == (keys, headers)


def test_event_times_become_timestamps_if_the_spec_asks_for_it(kafka, sink_to):
    topic = kafka.topic()
    then = datetime(2026, 1, 2, 3, 4, 5, 678_000, tzinfo=UTC)
    columns = {"id": ["0", "1"], "value": [b"old", b"new"], "event_time": [then, None]}
    before = datetime.now(UTC) - timedelta(minutes=1)

    assert not sink_to(topic, set_timestamp=True)(frames.batch_of(columns, 2))

    old, new = messages_of(columns_of_records(kafka.records(topic)))
    assert old.event_time == then
    assert new.event_time > before


def test_a_tombstone_stays_a_tombstone(kafka, sink_to):
    topic = kafka.topic()
    write(sink_to(topic, set_key=True), b"", keys=["ann"], headers={"__tombstone": "true"})
    (record,) = kafka.records(topic)
    assert record.value() is None
    (message,) = messages_of(columns_of_records([record]))
    assert message.headers == {"__tombstone": "true"}


@pytest.mark.guarantee("kafka-skips-no-record")
def test_a_message_that_is_too_large_fails_alone(kafka, sink_to):
    topic = kafka.topic(max_message_bytes="10000")
    values = [b"%0100d" % n for n in range(500)]
    values[250] = b"x" * 20_000

    answers = sink_to(topic)(rows_of(*values))

    assert {row: answer.status for row, answer in answers.items()} == {250: Status.FAILURE}
    assert answers[250].error == "MSG_SIZE_TOO_LARGE: Broker: Message size too large"
    stored = [record.value() for record in kafka.records(topic)]
    assert sorted(stored) == sorted(values[:250] + values[251:])


def test_messages_that_the_client_rejects_as_too_large_fail_alone(kafka, sink_to):
    topic, large = kafka.topic(), b"x" * 2_000_000
    rows = rows_of(b"1", large, large, b"2", large)
    answers = sink_to(topic)(rows)
    assert {row: answer.status for row, answer in answers.items()} == dict.fromkeys(
        (1, 2, 4), Status.FAILURE
    )
    assert all(answer.error.startswith("MSG_SIZE_TOO_LARGE: ") for answer in answers.values())
    assert [record.value() for record in kafka.records(topic)] == [b"1", b"2"]


def test_a_record_that_its_topic_rejects_fails_alone(kafka, sink_to):
    topic = kafka.topic(cleanup_policy="compact")
    rows = rows_of(*(b"%d" % n for n in range(9)), keys=[["k"] if n != 3 else [] for n in range(9)])
    answers = sink_to(topic, set_key=True)(rows)
    assert {row: answer.status for row, answer in answers.items()} == {3: Status.FAILURE}
    assert answers[3].error.startswith("INVALID_RECORD: ")
    assert len(kafka.records(topic)) == 8


def test_a_message_not_taken_in_time_counts_as_unavailable(kafka, sink_to):
    topic = kafka.topic()
    sink = sink_to(topic, **{"message.timeout.ms": "1000"})
    kafka.delete(topic)

    began = time.monotonic()
    answers = sink(rows_of(b"1", b"2"))

    assert [answers[row].status for row in range(2)] == [Status.UNAVAILABLE] * 2
    assert answers[0].error == "_MSG_TIMED_OUT: Local: Message timed out"
    assert time.monotonic() - began < 10


class Silent:
    """A producer that accepts everything and never reports an outcome."""

    def produce(self, *arguments):
        pass

    def flush(self, timeout):
        return 1

    def purge(self):
        pass


@pytest.mark.guarantee("kafka-skips-no-record")
def test_messages_without_a_delivery_report_do_not_count_as_written(kafka, sink_to):
    sink = sink_to(kafka.topic())
    sink._outbox.producer = Silent()
    answers = sink(rows_of(b"1", b"2", b"3"))
    assert [answers[row].status for row in range(3)] == [Status.UNAVAILABLE] * 3
    assert answers[0].error == "_TIMED_OUT: Local: Timed out"


@pytest.mark.guarantee("kafka-skips-no-record")
def test_messages_still_in_flight_after_the_longest_wait_count_as_unavailable(kafka, sink_to):
    topic = kafka.topic()
    sink = sink_to(topic, **{"batch.num.messages": "1"})
    sink._outbox._longest = 0.0
    rows = rows_of(*(b"%d" % n for n in range(500)))
    answers = sink(rows) or {}

    stored = {int(record.value()) for record in kafka.records(topic)}
    written = {row for row in range(500) if row not in answers}
    assert written <= stored
    assert {answer.status for answer in answers.values()} <= {Status.UNAVAILABLE}
    assert answers


def test_more_messages_than_the_producer_holds_at_once_are_all_written(kafka, sink_to):
    topic = kafka.topic()
    sink = sink_to(topic, **{"queue.buffering.max.messages": "50"})
    values = [b"%d" % n for n in range(1_000)]
    assert set(write(sink, *values)) == {Status.OK}
    assert [record.value() for record in kafka.records(topic)] == values


def test_the_sink_logs_in_over_tls(kafka, sink_to):
    topic = kafka.topic()
    assert write(sink_to(topic, login(kafka, "SCRAM-SHA-256")), b"1") == [Status.OK]


def test_a_missing_topic_is_reported(kafka, sink_to):
    with pytest.raises(SetupError) as raised:
        sink_to("no-such-topic", KafkaAccess((kafka.address,), answer_within=1.0))
    assert str(raised.value) == (
        f"Kafka at {kafka.address} has no topic 'no-such-topic'. Create it, or correct topic:."
    )


def test_unreachable_brokers_are_reported(sink_to):
    (port,) = free_ports(1)
    with pytest.raises(SetupError, match=f"Kafka at 127.0.0.1:{port} did not answer within 1 s"):
        sink_to("orders", KafkaAccess((f"127.0.0.1:{port}",), answer_within=1.0))
