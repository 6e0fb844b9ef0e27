"""The Kafka source by itself, against a real broker: what it returns, commits and reports."""

from __future__ import annotations

import time
import uuid
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta

import pytest
from confluent_kafka import Producer, TopicPartition

from ebbflow.connectors.kafka.kafka_client import KafkaAccess, KafkaSourceSettings
from ebbflow.connectors.kafka.source import KafkaSource
from ebbflow.domain.errors import SetupError
from ebbflow.domain.secrets import Secret
from ebbflow.domain.user_source import SourceMessage
from tests.connectors.kafka.broker import PASSWORD, USER, free_ports
from tests.waiting import until

pytestmark = pytest.mark.slow


@pytest.fixture
def group():
    return f"g-{uuid.uuid4().hex[:8]}"


@pytest.fixture
def opened(kafka, group):
    """Sources of one group; whatever is opened is closed."""
    sources = []

    def make(*topics, access=None, **config):
        access = access or KafkaAccess((kafka.address,), tuple(config.items()))
        source = KafkaSource(KafkaSourceSettings(access, topics, group))
        source.open()
        sources.append(source)
        return source

    yield make
    for source in sources:
        source.close()


def messages_of(columns):
    """The rows that a source has read, as messages."""
    rows = ({name: value for name, value in row.items() if value is not None}
            for row in columns.to_pylist())  # fmt: skip
    return [SourceMessage(**row | {"headers": dict(row.get("headers", ()))}) for row in rows]


def take(source, count, within=20.0):
    """This many messages, or as many as have arrived when the time is over."""
    messages, deadline = [], time.monotonic() + within
    while len(messages) < count and time.monotonic() < deadline:
        messages += messages_of(source.read(count - len(messages), timedelta(seconds=0.2)))
    return messages


def read_until(condition, *sources):
    """Read until the condition holds: a source learns of changes while it is read."""

    def holds():
        if not (found := condition()):
            for source in sources:
                assert source.read(100, timedelta(seconds=0.05)).num_rows == 0
        return found

    until(holds)


def offsets(messages):
    return [message.offset for message in messages]


@contextmanager
def another_member(kafka, group, topic):
    """A consumer of another program, in the group for a while; it commits nothing."""
    member = kafka.member(group, **{"session.timeout.ms": 6000, "heartbeat.interval.ms": 500})
    member.subscribe([topic])
    yield member
    member.close()


# --- records as messages ------------------------------------------------------------------------


def test_a_record_becomes_a_message_with_its_key_headers_and_time(kafka, opened):
    topic = kafka.topic()
    headers = [("trace", b"7"), ("trace", b"8"), ("raw", b"\xff"), ("none", None)]
    kafka.fill(topic, [b"hello"], key=b"ann", headers=headers, timestamp=1_700_000_000_123)

    (message,) = take(opened(topic), 1)

    assert message.value == b"hello"
    assert message.keys == ["ann"]
    assert message.headers == {"trace": "8", "raw": "\\xff", "none": ""}
    assert message.event_time == datetime(2023, 11, 14, 22, 13, 20, 123_000, tzinfo=UTC)
    assert message.offset == f"{topic}:0:0".encode()
    assert message.partition == 0


def test_a_tombstone_becomes_an_empty_message_that_is_marked_as_one(kafka, opened):
    topic = kafka.topic()
    kafka.fill(topic, [None, b""], key=b"gone")

    deleted, empty = take(opened(topic), 2)

    assert (deleted.value, deleted.headers) == (b"", {"__tombstone": "true"})
    assert (empty.value, empty.headers) == (b"", {})


def test_all_topics_and_all_their_partitions_are_read(kafka, opened):
    large, small = kafka.topic(3), kafka.topic(2)
    kafka.fill(large, (b"%d" % n for n in range(300)))
    kafka.fill(small, (b"%d" % n for n in range(300, 400)))

    source = opened(large, small)
    messages = take(source, 400)

    assert sorted(int(message.value) for message in messages) == list(range(400))
    assert len(set(offsets(messages))) == 400
    assert source.partitions() == [0, 1, 2]


# --- commits ------------------------------------------------------------------------------------


@pytest.mark.guarantee("kafka-skips-no-record")
def test_only_messages_before_the_first_unsettled_one_are_committed(kafka, group, opened):
    topic = kafka.topic()
    kafka.fill(topic, (b"%d" % n for n in range(100)))
    source = opened(topic)
    messages = take(source, 100)

    source.ack(offsets(messages[:10] + messages[11:]))
    read_until(lambda: kafka.lag(group, topic) == {0: 90}, source)
    assert not source.exhausted
    source.ack(offsets(messages[10:11]))
    read_until(lambda: kafka.lag(group, topic) == {0: 0} and source.exhausted, source)


@pytest.mark.guarantee("kafka-skips-no-record")
def test_the_next_source_resumes_at_the_first_unsettled_message(kafka, group, opened):
    topic = kafka.topic()
    kafka.fill(topic, (b"%d" % n for n in range(100)))
    first = opened(topic)
    messages = take(first, 100)
    first.ack(offsets(messages[:30] + messages[50:]))
    first.close()

    assert kafka.lag(group, topic) == {0: 70}
    again = take(opened(topic), 70)
    assert [int(message.value) for message in again] == list(range(30, 100))
    assert offsets(again) == offsets(messages[30:])


def test_transactions_leave_no_lag(kafka, group, opened):
    topic = kafka.topic()
    producer = Producer(kafka.plain | {"transactional.id": group})
    producer.init_transactions(20)
    for end in (producer.commit_transaction, producer.abort_transaction):
        producer.begin_transaction()
        producer.produce(topic, b"in a transaction")
        producer.flush()
        end()

    source = opened(topic)
    source.ack(offsets(take(source, 1)))

    read_until(lambda: kafka.lag(group, topic) == {0: 0}, source)  # and nothing more comes
    assert kafka.ends(topic) == {0: 4}


def test_a_source_is_exhausted_when_the_ends_are_reached_and_not_before(kafka, opened):
    topic = kafka.topic(3)
    kafka.fill(topic, [b"1", b"2"])
    source = opened(topic)

    assert not source.exhausted
    messages = take(source, 2)
    source.ack(offsets(messages))
    read_until(lambda: source.exhausted, source)
    kafka.fill(topic, [b"3"])
    messages = take(source, 1)
    assert not source.exhausted
    source.ack(offsets(messages))
    read_until(lambda: source.exhausted, source)


def test_pending_is_the_number_of_unread_messages(kafka, opened):
    topic = kafka.topic()
    kafka.fill(topic, (b"%d" % n for n in range(500)))
    source = opened(topic)

    assert len(take(source, 100)) == 100
    until(lambda: source.pending() == 400)


@pytest.mark.guarantee("kafka-skips-no-record")
def test_a_start_at_the_end_is_kept_even_if_nothing_was_read_yet(kafka, group, opened, monkeypatch):
    topic = kafka.topic()
    kafka.fill(topic, [b"old"])
    monkeypatch.setattr(KafkaSource, "_commit", lambda self: None)
    settings = {"auto.offset.reset": "latest"}
    first = opened(topic, **settings)
    read_until(lambda: kafka.lag(group, topic) == {0: 0}, first)
    first.close()

    kafka.fill(topic, [b"new"])
    assert [message.value for message in take(opened(topic, **settings), 1)] == [b"new"]


# --- the group ----------------------------------------------------------------------------------


@pytest.mark.guarantee("kafka-skips-no-record")
def test_a_rebalance_of_partitions_skips_nothing(kafka, group, opened):
    topic = kafka.topic(4)
    kafka.fill(topic, (b"%d" % n for n in range(400)))
    source = opened(topic)
    first = take(source, 400)
    settled = [m for m in first if int(m.value) % 2]
    source.ack(offsets(settled))

    with another_member(kafka, group, topic) as other:
        read_until(lambda: other.poll(0.05) and len(other.assignment()) == 2, source)
        assert len(source.partitions()) == 2
        source.ack(offsets(first))  # of partitions that it no longer has, too
        theirs = [partition.partition for partition in other.assignment()]
        read_until(
            lambda: all(kafka.lag(group, topic)[p] == 0 for p in source.partitions()), source
        )
        assert all(kafka.lag(group, topic)[p] > 0 for p in theirs)

    left = sum(kafka.lag(group, topic).values())
    again = take(source, left)
    assert {m.partition for m in again} == set(theirs)
    assert {m.offset for m in first if m.partition in theirs} >= set(offsets(again))
    source.ack(offsets(again))
    read_until(lambda: set(kafka.lag(group, topic).values()) == {0}, source)


def test_a_full_member_does_not_block_the_group(kafka, group, opened):
    topic = kafka.topic(2)
    kafka.fill(topic, (b"%d" % n for n in range(12_000)))
    source = opened(topic)
    first = take(source, 10)

    with another_member(kafka, group, topic) as other:
        until(lambda: other.poll(0.1) and len(other.assignment()) == 1)

    source.ack(offsets(first))
    seen = {message.offset for message in first}
    deadline = time.monotonic() + 120
    while len(seen) < 12_000 and time.monotonic() < deadline:
        messages = messages_of(source.read(500, timedelta(seconds=0.2)))
        source.ack(offsets(messages))
        seen.update(offsets(messages))
    assert len(seen) == 12_000


def test_a_member_is_not_exhausted_while_another_has_something_left(kafka, opened):
    topic = kafka.topic(2)
    sources = [opened(topic), opened(topic)]
    read_until(lambda: all(len(source.partitions()) == 1 for source in sources), *sources)
    for partition in range(2):
        kafka.fill(topic, [b"x"] * 50, partition=partition)
    messages = [take(source, 50) for source in sources]

    sources[0].ack(offsets(messages[0]))
    looked_twice = time.monotonic() + 2.5
    read_until(lambda: time.monotonic() > looked_twice, sources[0])
    assert not sources[0].exhausted

    sources[1].ack(offsets(messages[1]))
    read_until(lambda: all(source.exhausted for source in sources), *sources)


def test_members_beyond_the_number_of_partitions_are_exhausted(kafka, opened):
    topic = kafka.topic(1)
    kafka.fill(topic, [b"1"])
    sources = [opened(topic), opened(topic)]
    values = set()

    def read():
        for source in sources:
            messages = messages_of(source.read(10, timedelta(seconds=0.05)))
            values.update(message.value for message in messages)
            source.ack(offsets(messages))
        return all(source.exhausted for source in sources)

    until(read)
    assert values == {b"1"}


def test_the_newer_group_protocol_works_too(kafka, group, opened):
    topic = kafka.topic(2)
    kafka.fill(topic, (b"%d" % n for n in range(50)))
    source = opened(topic, **{"group.protocol": "consumer"})
    source.ack(offsets(take(source, 50)))
    read_until(lambda: source.exhausted, source)
    source.close()
    assert kafka.lag(group, topic) == {0: 0, 1: 0}


# --- errors and logins --------------------------------------------------------------------------


def test_a_missing_topic_is_reported(kafka, opened):
    with pytest.raises(SetupError) as raised:
        opened("no-such-topic")
    assert str(raised.value) == (
        f"Kafka at {kafka.address} has no topic 'no-such-topic'. Create it, or correct topic:."
    )


def test_a_deleted_topic_fails_the_vertex_until_it_exists_again(kafka, opened):
    topic = kafka.topic()
    source = opened(topic, **{"topic.metadata.refresh.interval.ms": "500"})
    read_until(lambda: source.exhausted, source)
    kafka.delete(topic)

    with pytest.raises(SetupError, match="cannot continue: UNKNOWN_TOPIC_OR_PART: Subscribed"):
        read_until(lambda: False, source)
    kafka.topic(name=topic)
    kafka.fill(topic, [b"new"])
    assert [message.value for message in take(source, 1)] == [b"new"]


def test_unreachable_brokers_are_reported(opened):
    (port,) = free_ports(1)
    with pytest.raises(SetupError) as raised:
        opened("orders", access=KafkaAccess((f"127.0.0.1:{port}",), answer_within=2.0))
    text = str(raised.value)
    assert text.startswith(f"Kafka at 127.0.0.1:{port} did not answer within 2 s: _TRANSPORT: ")
    assert "Connection refused" in text
    assert text.endswith("Check that it is up, and that brokers:, tls: and sasl: are right.")


def login(kafka, mechanism="PLAIN", password=PASSWORD, ca=None):
    tls = {"ssl.ca.pem": (ca or kafka.ca).cert_pem.bytes().decode()}
    user = {"sasl.mechanism": mechanism, "sasl.username": USER, "sasl.password": password}
    tls, user = (tuple((name, Secret(text)) for name, text in of.items()) for of in (tls, user))
    return KafkaAccess((kafka.protected,), (), tls, user)


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"])
def test_the_source_logs_in_over_tls(kafka, opened, mechanism):
    topic = kafka.topic()
    kafka.fill(topic, [b"secret"])
    assert len(take(opened(topic, access=login(kafka, mechanism)), 1)) == 1


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-512"])
def test_a_wrong_password_is_reported_but_not_shown(kafka, opened, mechanism):
    access = login(kafka, mechanism, "red-queen")
    with pytest.raises(SetupError) as raised:
        opened(kafka.topic(), access=access)
    text = str(raised.value)
    assert text.startswith(f"Kafka at {kafka.protected} refused the login: _AUTHENTICATION: ")
    assert text.endswith("Correct sasl: in the spec.")
    assert "red-queen" not in text + repr(access)


def test_a_server_with_the_wrong_certificate_is_not_trusted(kafka, opened):
    import trustme

    with pytest.raises(SetupError) as raised:
        opened(kafka.topic(), access=login(kafka, ca=trustme.CA()))
    text = str(raised.value)
    assert text.startswith(f"Kafka at {kafka.protected} cannot be reached over TLS: _SSL: ")
    assert text.endswith("Correct tls: in the spec.")


def test_unknown_settings_are_reported(kafka, opened):
    with pytest.raises(SetupError) as raised:
        opened(kafka.topic(), **{"no.such.setting": "1"})
    assert str(raised.value) == (
        "Kafka's client rejects its settings: No such configuration property: "
        '"no.such.setting". Correct config:, tls: or sasl: in the spec.'
    )


def test_a_source_resumes_at_the_offset_that_another_program_committed(kafka, group, opened):
    topic = kafka.topic()
    kafka.fill(topic, (b"%d" % n for n in range(10)))
    member = kafka.member(group)
    member.commit(offsets=[TopicPartition(topic, 0, 7)], asynchronous=False)
    member.close()
    assert [int(message.value) for message in take(opened(topic), 3)] == [7, 8, 9]
