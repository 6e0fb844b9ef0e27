"""Pipelines that read from Kafka: nothing is lost, and nothing blocks a partition."""

from __future__ import annotations

import contextlib
import time

import pytest

from ebbflow import Limits, Message, Nack, Pipeline, Response
from ebbflow.connectors import Kafka
from ebbflow.status.run_report import Watcher

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("spark")]


@pytest.fixture
def store(journal):
    def sink(data):
        journal.write(*(int(datum.value) for datum in data))
        return [Response.ok(datum.id) for datum in data]

    return sink


def source(kafka, topic, **fields):
    return Kafka(brokers=[kafka.address], topic=topic, **fields)


def numbers(*limits):
    return (b"%d" % n for n in range(*limits))


def nack_some(datum):
    if int(datum.value) % 20 == 0 and datum.deliveries == 1:
        raise Nack(delay="300ms", reason="not now")
    return Message(datum.value)


@pytest.mark.long
@pytest.mark.guarantee("kafka-skips-no-record")
def test_all_members_together_read_everything_and_no_lag_is_left(run, kafka, store, journal):
    topic = kafka.topic(6)
    fields = source(kafka, topic)
    pipeline = Pipeline("shop").source("in", fields, transformer=nack_some, partitions=2)
    pipeline = pipeline.sink("out", store)
    kafka.fill(topic, numbers(3_000))

    first = run(pipeline)

    assert first.ended == "drained"
    assert set(journal.read()) == set(range(3_000))
    assert first.vertices["in"].redelivered >= 150
    assert set(kafka.lag("shop-in", topic).values()) == {0}

    kafka.fill(topic, numbers(3_001, 3_011))
    second = run(pipeline)

    assert second.vertices["in"].read == 10
    assert set(journal.read()) == set(range(3_000)) | set(range(3_001, 3_011))
    assert set(kafka.lag("shop-in", topic).values()) == {0}


class WithAnotherMember(Watcher):
    """Has another program join the group once some messages have arrived, and leave it soon."""

    def __init__(self, kafka, group, topic):
        self.kafka, self.group, self.topic = kafka, group, topic
        self.took_over = 0

    def look(self, status):
        if not self.took_over and status["out"].counts.done > 1_000:
            member = self.kafka.member(self.group, **{"heartbeat.interval.ms": 500})
            with contextlib.closing(member):
                member.subscribe([self.topic])
                deadline = time.monotonic() + 120
                while not self.took_over and time.monotonic() < deadline:
                    member.poll(0.1)
                    self.took_over = len(member.assignment())


@pytest.mark.long
@pytest.mark.guarantee("kafka-skips-no-record")
def test_nothing_is_skipped_when_another_member_joins_and_leaves(run, kafka, store, journal):
    topic = kafka.topic(4)
    kafka.fill(topic, numbers(20_000))
    fields = source(kafka, topic, consumer_group=topic)
    slow = Limits(read_batch_size=100)

    def slowly(datum):
        time.sleep(0.0005)
        return nack_some(datum)

    pipeline = Pipeline("shop").source("in", fields, transformer=slowly, limits=slow)
    watcher = WithAnotherMember(kafka, topic, topic)
    run(pipeline.sink("out", store), watcher=watcher)

    assert watcher.took_over == 2
    assert set(journal.read()) == set(range(20_000))
    assert set(kafka.lag(topic, topic).values()) == {0}


class CreatesTheTopic(Watcher):
    """Creates the missing topic when the run has reported it."""

    def __init__(self, kafka, topic):
        self.kafka, self.topic, self.complaints = kafka, topic, []

    def look(self, status):
        failure = status["in"].failure
        if failure and not self.complaints:
            self.complaints.append(failure)
            self.kafka.topic(name=self.topic)
            self.kafka.fill(self.topic, [b"1"])


def test_a_missing_topic_is_reported_and_read_once_it_exists(run, kafka, store, journal):
    watcher = CreatesTheTopic(kafka, "not-yet")
    run(
        Pipeline("shop").source("in", source(kafka, "not-yet")).sink("out", store),
        watcher=watcher,
    )

    assert watcher.complaints == [
        f"SourceError: source in: Kafka at {kafka.address} has no topic 'not-yet'. "
        "Create it, or correct topic:."
    ]
    assert journal.read() == [1]
