"""The Kafka sink by itself, against a real broker: what it writes, and what it answers."""

from __future__ import annotations

import time

import pytest

from ebbflow import Datum
from ebbflow.connectors.kafka.settings import KafkaAccess, KafkaSinkSettings
from ebbflow.connectors.kafka.sink import KafkaSink
from ebbflow.connectors.kafka.source import message_of
from ebbflow.errors import SetupError
from ebbflow.message import Status
from tests.connectors.kafka.broker import free_ports
from tests.connectors.kafka.test_source import login

pytestmark = pytest.mark.slow


@pytest.fixture
def sink_to(kafka):
    def make(topic, access=None, set_key=False, retried=False, **config):
        access = access or KafkaAccess((kafka.address,), tuple(config.items()))
        sink = KafkaSink(KafkaSinkSettings(access, topic, set_key, retried))
        sink.open()
        return sink

    return make


def data_of(*values, **fields):
    return [Datum(value, id=str(number), **fields) for number, value in enumerate(values)]


def statuses(responses):
    return [response.status for response in responses]


def test_every_message_is_a_record_with_its_keys_and_headers(kafka, sink_to):
    topic = kafka.topic()
    sink = sink_to(topic, set_key=True)

    responses = sink(data_of(b"one", b"", keys=["ann", "bob"], headers={"trace": "7"}))

    assert [response.id for response in responses] == ["0", "1"]
    assert statuses(responses) == [Status.OK, Status.OK]
    first, second = kafka.records(topic)
    assert (first.value(), second.value()) == (b"one", b"")
    assert first.key() == b"ann:bob"
    headers = {"trace": b"7", "__key_len": b"2", "__key_0": b"ann", "__key_1": b"bob"}
    assert dict(first.headers()) == headers


def test_without_set_key_a_record_has_no_key(kafka, sink_to):
    topic = kafka.topic()
    sink_to(topic)(data_of(b"one", keys=["ann"]))
    (record,) = kafka.records(topic)
    assert record.key() is None


def test_records_with_the_same_keys_are_in_the_same_partition(kafka, sink_to):
    topic = kafka.topic(4)
    data = [Datum(b"", id=f"{k}-{n}", keys=[f"k{k}"]) for k in range(20) for n in range(5)]
    sink_to(topic, set_key=True)(data)
    places = {(record.key(), record.partition()) for record in kafka.records(topic)}
    assert len(places) == 20
    assert len({partition for _, partition in places}) > 1


@pytest.mark.parametrize("keys", [[], [""], ["ann"], ["ann", "bob:carl", "é"]])
def test_what_a_source_reads_is_what_the_sink_was_given(kafka, sink_to, keys):
    topic = kafka.topic()
    headers = {"trace": "7", "é": "ü"}
    sink_to(topic, set_key=True)(data_of(b"\x00\xff", keys=keys, headers=headers))

    (record,) = kafka.records(topic)
    message = message_of(record)
    assert message.value == b"\x00\xff"
    assert (message.keys, message.headers) == (keys, headers)


def test_a_deleted_value_stays_one(kafka, sink_to):
    topic = kafka.topic()
    sink_to(topic, set_key=True)(data_of(b"", keys=["ann"], headers={"__tombstone": "true"}))
    (record,) = kafka.records(topic)
    assert record.value() is None
    assert message_of(record).headers == {"__tombstone": "true"}


@pytest.mark.guarantee("kafka-skips-no-record")
def test_a_message_that_is_too_large_fails_alone(kafka, sink_to):
    topic = kafka.topic(max_message_bytes="10000")
    values = [b"%0100d" % n for n in range(500)]
    values[250] = b"x" * 20_000

    responses = sink_to(topic)(data_of(*values))

    assert statuses(responses) == [Status.OK] * 250 + [Status.FAILURE] + [Status.OK] * 249
    assert responses[250].error == "MSG_SIZE_TOO_LARGE: Broker: Message size too large"
    stored = [record.value() for record in kafka.records(topic)]
    assert sorted(stored) == sorted(values[:250] + values[251:])


def test_a_message_that_the_client_finds_too_large_fails_alone_as_well(kafka, sink_to):
    topic = kafka.topic()
    responses = sink_to(topic)(data_of(b"small", b"x" * 2_000_000))
    assert statuses(responses) == [Status.OK, Status.FAILURE]
    assert responses[1].error.startswith("MSG_SIZE_TOO_LARGE: ")


def test_a_record_that_its_topic_cannot_have_fails_alone(kafka, sink_to):
    topic = kafka.topic(cleanup_policy="compact")
    data = [Datum(b"%d" % n, id=str(n), keys=["k"] if n != 3 else []) for n in range(9)]
    responses = sink_to(topic, set_key=True)(data)
    assert [r.id for r in responses if r.status is Status.FAILURE] == ["3"]
    assert responses[3].error.startswith("INVALID_RECORD: ")
    assert len(kafka.records(topic)) == 8


def test_brokers_that_do_not_take_it_in_time_are_away(kafka, sink_to):
    topic = kafka.topic()
    sink = sink_to(topic, **{"message.timeout.ms": "1000"})
    kafka.admin.delete_topics([topic])[topic].result(20)

    began = time.monotonic()
    responses = sink(data_of(b"1", b"2"))

    assert statuses(responses) == [Status.UNAVAILABLE] * 2
    assert responses[0].error == "_MSG_TIMED_OUT: Local: Message timed out"
    assert time.monotonic() - began < 10


def test_with_a_retry_strategy_it_is_a_failure_instead(kafka, sink_to):
    topic = kafka.topic()
    sink = sink_to(topic, retried=True, **{"message.timeout.ms": "1000"})
    kafka.admin.delete_topics([topic])[topic].result(20)
    (response,) = sink(data_of(b"1"))
    assert response.status is Status.FAILURE
    assert response.error == "_MSG_TIMED_OUT: Local: Message timed out"


def test_more_than_the_producer_holds_at_once_is_written_all_the_same(kafka, sink_to):
    topic = kafka.topic()
    sink = sink_to(topic, **{"queue.buffering.max.messages": "50"})
    responses = sink(data_of(*(b"%d" % n for n in range(1_000))))
    assert set(statuses(responses)) == {Status.OK}
    assert len(kafka.records(topic)) == 1_000


def test_a_batch_may_hold_a_message_twice(kafka, sink_to):
    topic = kafka.topic()
    twice = [Datum(b"1", id="a"), Datum(b"1", id="a")]
    assert statuses(sink_to(topic)(twice)) == [Status.OK, Status.OK]


def test_it_logs_in_over_tls(kafka, sink_to):
    topic = kafka.topic()
    assert statuses(sink_to(topic, login(kafka, "SCRAM-SHA-256"))(data_of(b"1"))) == [Status.OK]


def test_a_topic_that_is_not_there_is_named(kafka, sink_to, monkeypatch):
    monkeypatch.setattr("ebbflow.connectors.kafka.client._ANSWER_WITHIN", 1.0)
    with pytest.raises(SetupError) as raised:
        sink_to("no-such-topic")
    assert str(raised.value) == (
        f"Kafka at {kafka.address} has no topic 'no-such-topic'. Create it, or correct topic:."
    )


def test_brokers_that_are_not_there_are_told(sink_to, monkeypatch):
    monkeypatch.setattr("ebbflow.connectors.kafka.client._ANSWER_WITHIN", 1.0)
    (port,) = free_ports(1)
    with pytest.raises(SetupError, match=f"Kafka at 127.0.0.1:{port} did not answer within 1 s"):
        sink_to("orders", KafkaAccess((f"127.0.0.1:{port}",)))
