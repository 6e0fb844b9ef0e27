"""Pipelines that read from Pulsar and write to it: nacks, an outage, the order of keys."""

from __future__ import annotations

import threading
import time
from collections import Counter

import pytest

from ebbflow import Limits, Message, Nack, Pipeline, Response
from ebbflow.connectors import Pulsar
from tests.spark.runs import Failures
from tests.waiting import until

pytestmark = [pytest.mark.slow, pytest.mark.long, pytest.mark.usefixtures("spark")]


def at(broker, topic, **fields):
    return Pulsar(server_addr=broker.address, topic=topic, **fields)


def numbers(count):
    return [b"%d" % number for number in range(count)]


def stored(broker, topic, count):
    return Counter(int(message.data()) for message in broker.messages(topic, at_least=count))


@pytest.mark.guarantee("pulsar-loses-no-message")
def test_nacked_messages_are_redelivered_after_their_delay_and_all_arrive_once(
    run, pulsar_broker, journal, server_letters
):
    here, there = pulsar_broker.topic(3), pulsar_broker.topic(2)
    pulsar_broker.fill(here, [*numbers(2_000), b"never"], (f"k{n % 7}" for n in range(2_001)))

    def some_later(datum):
        if datum.value == b"never":
            raise Nack(delay="100ms", max_deliveries=2, reason="not today")
        if int(datum.value) % 20 == 0:
            journal.write([int(datum.value), datum.deliveries, datum.nack_reason, time.time()])
            if datum.deliveries == 1:
                raise Nack(delay="700ms", reason="not now")
        return Message(datum.value)

    pipeline = Pipeline("copy").source("in", at(pulsar_broker, here), transformer=some_later)
    summary = run(pipeline.sink("out", at(pulsar_broker, there)))

    assert stored(pulsar_broker, there, 2_000) == dict.fromkeys(range(2_000), 1)
    assert summary.vertices["in"].redelivered == 102
    (letter,) = server_letters("copy")
    assert (letter.value, letter.reason, letter.deliveries) == (b"never", "not today", 3)
    calls = {}
    for number, deliveries, reason, moment in journal.read():
        calls.setdefault(number, {})[deliveries] = (reason, moment)
    assert calls.keys() == set(range(0, 2_000, 20))
    for found in calls.values():
        assert found.keys() == {1, 2}
        assert (found[1][0], found[2][0]) == (None, "not now")
        assert found[2][1] - found[1][1] >= 0.7
    until(lambda: pulsar_broker.backlog(here, "copy-in") == 0)


@pytest.mark.guarantee("pulsar-loses-no-message")
def test_a_key_shared_subscription_keeps_the_order_of_each_key(run, pulsar_broker, journal):
    topic = pulsar_broker.topic()
    pulsar_broker.fill(topic, numbers(3_000), (f"key-{n % 50}" for n in range(3_000)))
    source = at(pulsar_broker, topic, subscription_type="keyShared")

    def store(data):
        journal.write(*([datum.keys[0], int(datum.value)] for datum in data))
        return [Response.ok(datum.id) for datum in data]

    run(Pipeline("shop").source("in", source, partitions=2).sink("out", store))

    received = {}
    for key, number in journal.read():
        received.setdefault(key, []).append(number)
    assert received == {f"key-{n}": list(range(n, 3_000, 50)) for n in range(50)}


@pytest.mark.guarantee("pulsar-loses-no-message")
def test_a_message_over_its_redelivery_limit_goes_to_the_dead_letter_topic(
    run, pulsar_broker, journal, store, server_letters
):
    topic, dead = pulsar_broker.topic(), pulsar_broker.topic()
    pulsar_broker.fill(topic, numbers(200))
    policy = {"topic": dead, "maxRedelivery": 3}
    source = at(pulsar_broker, topic, subscription_name="shop", dead_letter_policy=policy)

    def never_some(datum):
        number = int(datum.value)
        if number % 50 == 0:
            most = 1 if number else None  # Ebbflow's own limit applies first
            raise Nack(delay="200ms", max_deliveries=most, reason=f"call {datum.deliveries}")
        return Message(datum.value)

    summary = run(Pipeline("shop").source("in", source, transformer=never_some).sink("out", store))

    assert sorted(map(int, journal.read())) == [n for n in range(200) if n % 50]
    (message,) = pulsar_broker.messages(dead, at_least=1)
    assert (message.data(), message.properties()["NACK_REASON"]) == (b"0", "call 4")
    letters = {int(letter.value): letter.deliveries for letter in server_letters("shop")}
    assert letters == {50: 2, 100: 2, 150: 2}
    assert summary.vertices["in"].dead_lettered == 3
    until(lambda: pulsar_broker.backlog(topic, "shop") == 0)


class RestartsTheBroker(Failures):
    """Kills the broker when some messages have arrived, and starts it when the sink waits."""

    def __init__(self, broker, after):
        self.broker, self.after, self.waited = broker, after, set()
        self.thread = None

    def look(self, status):
        super().look(status)
        for view in status.vertices:
            if view.waiting:
                self.waited.add(view.name)
        if self.thread is None and status["out"].counts.done > self.after:
            self.broker.kill()
            self.thread = threading.Thread(target=self.restart)
            self.thread.start()

    def restart(self):
        try:
            until(lambda: "out" in self.waited)
        finally:
            self.broker.start()


@pytest.mark.guarantee("pulsar-loses-no-message")
def test_a_killed_broker_is_waited_for_and_no_message_is_penalised(
    run, pulsar_broker, server_letters
):
    here, there = pulsar_broker.topic(), pulsar_broker.topic()
    pulsar_broker.fill(here, numbers(5_000))

    def slowly(datum):
        time.sleep(0.002)
        return Message(datum.value)

    source = at(pulsar_broker, here, subscription_name="shop", max_unack=500)
    limits = Limits(read_batch_size=100)
    pipeline = Pipeline("copy").source("in", source, transformer=slowly, limits=limits)
    watcher = RestartsTheBroker(pulsar_broker, 500)
    summary = run(pipeline.sink("out", at(pulsar_broker, there)), watcher=watcher, timeout="400s")
    watcher.thread.join()

    found = stored(pulsar_broker, there, 5_000)
    print(f"{found.total() - len(found)} duplicates, waited: {watcher.waited}")
    assert found.keys() == set(range(5_000))
    assert server_letters("copy") == []
    assert summary.vertices["in"].dead_lettered == summary.vertices["out"].dead_lettered == 0
    assert "out" in watcher.waited
    assert pulsar_broker.backlog(here, "shop") == 0
