"""The Pulsar source by itself, on a real broker: reading, acknowledging, dead letters, logins."""

from __future__ import annotations

import time
from collections import Counter
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from itertools import cycle, pairwise

import pulsar
import pytest

from ebbflow.connectors.pulsar.pulsar_client import PulsarAccess
from ebbflow.connectors.pulsar.source import PulsarSource, PulsarSourceSettings
from ebbflow.domain.errors import SetupError, Unavailable
from ebbflow.domain.message import NackOptions
from ebbflow.domain.secrets import Secret
from ebbflow.domain.user_source import NackOffset, redelivers
from tests.ports import free_port
from tests.waiting import until

pytestmark = [pytest.mark.slow, pytest.mark.long]


@pytest.fixture
def open_source(pulsar_broker):
    with ExitStack() as stack:

        def open_source(topic, **options):
            access = PulsarAccess(pulsar_broker.address)
            source = PulsarSource(PulsarSourceSettings(access, topic, "shop", **options))
            source.open()
            stack.callback(source.close)
            return source

        yield open_source


def read(source, limit=10_000, timeout=0.5):
    return source.read(limit, timedelta(seconds=timeout)).to_pylist()


def take(source, count, within=60.0):
    """Read that many messages."""
    rows, deadline = [], time.monotonic() + within
    while len(rows) < count and time.monotonic() < deadline:
        rows += read(source)
    return rows


def offsets(rows):
    return [row["offset"] for row in rows]


def numbers(*limits):
    return [b"%d" % n for n in range(*limits)]


def is_done(broker, topic):
    return broker.backlog(topic, "shop") == 0


def test_a_message_has_its_keys_headers_and_times(pulsar_broker, open_source):
    topic = pulsar_broker.topic()
    source = open_source(topic)
    producer = pulsar_broker.client.create_producer(topic)
    at = 1_700_000_000_123
    producer.send(b"a", properties={"trace": "ü"}, partition_key="ann", event_timestamp=at)
    keys = {"__key_len": "2", "__key_0": "ann", "__key_1": "bob"}
    producer.send(b"", properties=keys, partition_key="ann:bob")
    producer.send(None, partition_key="ann")
    producer.close()
    first, second, third = take(source, 3)

    assert (first["value"], first["keys"], first["headers"]) == (b"a", ["ann"], [("trace", "ü")])
    assert first["event_time"] == datetime.fromtimestamp(at / 1000, UTC)
    assert (second["value"], second["keys"], second["headers"]) == (b"", ["ann", "bob"], [])
    assert datetime.now(UTC) - second["event_time"] < timedelta(minutes=5)
    assert (third["value"], third["headers"]) == (b"", [("__tombstone", "true")])
    assert len({*offsets([first, second, third])}) == 3


@pytest.mark.guarantee("pulsar-loses-no-message")
def test_unacknowledged_messages_are_redelivered_to_another_process(pulsar_broker, open_source):
    topic = pulsar_broker.topic(3)
    one = open_source(topic)
    pulsar_broker.fill(topic, numbers(300))
    rows = take(one, 300)
    assert not one.exhausted
    one.ack(offsets(rows[:100]))
    one.close()

    other = open_source(topic)
    again = take(other, 200)
    known = {row["offset"]: row["value"] for row in rows}
    # Of a batch that was acknowledged in part, a broker may redeliver all.
    assert set(offsets(rows[100:])) <= set(offsets(again)) <= set(offsets(rows))
    assert all(known[row["offset"]] == row["value"] for row in again)
    other.ack(offsets(again))
    until(lambda: read(other) == [] and other.exhausted)
    until(lambda: is_done(pulsar_broker, topic))


def test_two_processes_share_the_messages(pulsar_broker, open_source):
    topic = pulsar_broker.topic()
    one, other = open_source(topic), open_source(topic)
    producer = pulsar_broker.client.create_producer(topic, batching_enabled=False)
    for value in numbers(100):
        producer.send(value)
    producer.close()
    # The broker decides how many each receives, by how soon it asks for more.
    mine, theirs = [], []

    def all_arrived():
        mine.extend(read(one))
        theirs.extend(read(other))
        return len(mine) + len(theirs) >= 100

    until(all_arrived)
    assert mine
    assert theirs
    assert sorted(int(row["value"]) for row in mine + theirs) == list(range(100))


def test_messages_in_flight_have_a_limit(pulsar_broker, open_source):
    topic = pulsar_broker.topic()
    source = open_source(topic, max_unack=10)
    pulsar_broker.fill(topic, numbers(30))
    rows = take(source, 10)
    assert len(rows) == 10
    assert read(source) == []
    source.ack(offsets(rows[:4]))
    assert len(take(source, 4)) == 4


def test_messages_of_an_earlier_connection_are_not_redelivered_once_settled(
    pulsar_broker, open_source
):
    topic = pulsar_broker.topic()
    first = open_source(topic)
    pulsar_broker.fill(topic, numbers(50))
    rows = take(first, 50)
    first.close()
    second = open_source(topic)
    second.ack(offsets(rows))  # the pipeline has settled them meanwhile
    until(lambda: read(second) == [] and is_done(pulsar_broker, topic))


@pytest.mark.guarantee("pulsar-loses-no-message")
def test_a_message_nacked_too_often_goes_to_the_dead_letter_topic(pulsar_broker, open_source):
    topic, dead = pulsar_broker.topic(), pulsar_broker.topic()
    source = open_source(topic, dead_letters=(dead, 2))
    assert redelivers(source)
    assert not redelivers(open_source(pulsar_broker.topic()))
    pulsar_broker.fill(topic, [b"good", b"bad"], cycle(["ann"]))
    times, delivered = [], Counter()

    def settle_all():
        for row in read(source):
            delivered[row["value"]] += 1
            if row["value"] == b"good":
                source.ack([row["offset"]])
            else:
                times.append(time.monotonic())
                nack = NackOffset(row["offset"], NackOptions(delay="300ms", reason="not now"))
                source.nack([nack])
        return source.exhausted

    until(settle_all)
    assert delivered == {b"good": 1, b"bad": 3}
    assert all(later - earlier >= 0.3 for earlier, later in pairwise(times))
    (message,) = pulsar_broker.messages(dead, at_least=1)
    assert (message.data(), message.partition_key()) == (b"bad", "ann")
    facts = message.properties()
    assert facts["NACK_REASON"] == "not now"
    assert facts["REAL_SUBSCRIPTION"] == "shop"
    assert facts["REAL_TOPIC"].endswith(topic)
    until(lambda: is_done(pulsar_broker, topic))


def test_a_key_shared_subscription_keeps_a_key_with_one_process_and_in_order(
    pulsar_broker, open_source
):
    topic = pulsar_broker.topic()
    sources = [open_source(topic, subscription_type="keyShared") for _ in range(2)]
    pulsar_broker.fill(topic, numbers(600), (f"key-{n % 20}" for n in range(600)))
    received = {}

    def read_all():
        for place, source in enumerate(sources):
            for row in read(source, timeout=0.1):
                received.setdefault(row["keys"][0], []).append((int(row["value"]), place))
                source.ack([row["offset"]])
        return sum(map(len, received.values())) == 600

    until(read_all)
    for key, found in received.items():
        assert [number for number, _ in found] == list(range(int(key[4:]), 600, 20))
        assert len({place for _, place in found}) == 1
    assert {found[0][1] for found in received.values()} == {0, 1}


def test_a_subscription_may_start_at_the_end(pulsar_broker, open_source):
    topic = pulsar_broker.topic()
    pulsar_broker.fill(topic, [b"before"])
    source = open_source(topic, initial_position="latest")
    pulsar_broker.fill(topic, [b"after"])
    assert [row["value"] for row in take(source, 1)] == [b"after"]


def test_the_source_logs_in_with_a_token_over_tls(pulsar_broker):
    topic = pulsar_broker.topic()
    ca = Secret(pulsar_broker.ca.cert_pem.bytes().decode())
    token = Secret(pulsar_broker.token("shop"))
    access = PulsarAccess(pulsar_broker.protected, token, tls=(("ca", ca),))
    source = PulsarSource(PulsarSourceSettings(access, topic, "shop"))
    source.open()
    pulsar_broker.fill(topic, [b"1"])
    assert len(take(source, 1)) == 1
    source.close()


def test_a_failed_login_connection_or_topic_is_reported_when_the_source_opens(pulsar_broker):
    address, topic = pulsar_broker.address, pulsar_broker.topic()
    nowhere = f"pulsar://127.0.0.1:{free_port()}"
    silent = {
        PulsarAccess(address, Secret("a.b.c")): f"Pulsar at {address}: TimeOut",
        PulsarAccess(nowhere): f"Pulsar at {nowhere}: TimeOut",
        PulsarAccess(pulsar_broker.protected): f"Pulsar at {pulsar_broker.protected}: ConnectError",
    }
    for access, text in silent.items():
        with pytest.raises(Unavailable) as raised:
            PulsarSource(PulsarSourceSettings(access, topic, "shop")).open()
        assert str(raised.value) == f"{text}; it is down, or serverAddr, auth or tls is wrong"
    with pytest.raises(SetupError) as wrong:
        PulsarSource(PulsarSourceSettings(PulsarAccess(address), "no/where/t", "shop")).open()
    assert wrong.value.what == (
        f"Pulsar at {address} does not allow using topic 'no/where/t': TopicNotFound."
    )


def test_a_subscription_held_exclusively_elsewhere_counts_as_unavailable(
    pulsar_broker, open_source
):
    topic = pulsar_broker.topic()
    owner = pulsar_broker.client.subscribe(topic, "shop", pulsar.ConsumerType.Exclusive)
    with pytest.raises(Unavailable, match="now: ConsumerBusy"):
        open_source(topic)
    owner.close()
