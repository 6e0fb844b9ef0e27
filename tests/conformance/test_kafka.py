"""The Kafka source and sink keep the rules for all connectors, against a real broker."""

from __future__ import annotations

from contextlib import closing

import pytest

from ebbflow.connectors import Kafka
from ebbflow.connectors.kafka.records import read_columns, write_records
from ebbflow.engine import frames
from ebbflow.testing import (
    SINK_RULES,
    Refused,
    Sample,
    SinkTrial,
    SinkUnderTest,
    SourceTrial,
    SourceUnderTest,
)
from tests.conformance.conftest import PATIENCE
from tests.conformance.waiving import RULES_FLOODED_WHEN_ASKED, blocked_when_asked

pytestmark = [pytest.mark.slow, pytest.mark.long]


def _headers_of(sample):
    columns = {"id": [""], "value": [b""], "keys": [sample.keys]}
    columns["headers"] = [list(sample.headers.items())]
    return next(iter(write_records(frames.batch_of(columns, 1)).headers))


def _sample_of(record):
    columns = read_columns([record.key()], [record.headers()])
    keys, headers = (
        columns[name][0].as_py() if name in columns else () for name in ("keys", "headers")
    )
    return Sample(record.value(), tuple(keys), dict(headers))


class KafkaSourceUnderTest(SourceUnderTest):
    """A topic with four partitions and the group that reads it."""

    keeps_keys = True
    keeps_headers = True
    waived = blocked_when_asked()

    def __init__(self, kafka) -> None:
        from confluent_kafka import Producer

        self._kafka = kafka
        self._topic = kafka.topic(4)
        self._producer = Producer(kafka.plain)

    def source(self):
        brokers, topic = [self._kafka.address], self._topic
        return Kafka(brokers=brokers, topic=topic, consumer_group=topic)

    def put(self, samples):
        from confluent_kafka import KafkaException

        for sample in samples:
            try:
                self._producer.produce(self._topic, sample.value, headers=_headers_of(sample))
            except KafkaException as error:
                raise Refused(str(error)) from None
        self._producer.flush()

    def unsettled(self):
        return sum(self._kafka.lag(self._topic, self._topic).values())

    def left_behind(self):
        return [f"member {member}" for member in self._kafka.members(self._topic)]


@pytest.fixture(scope="module")
def source_trial(kafka, tmp_path_factory):
    with SourceTrial(
        KafkaSourceUnderTest(kafka), tmp_path_factory.mktemp("state"), PATIENCE
    ) as trial:
        yield trial


@pytest.mark.parametrize("rule", RULES_FLOODED_WHEN_ASKED)
def test_the_kafka_source_keeps_every_rule(rule, source_trial):
    rule(source_trial)


class KafkaSinkUnderTest(SinkUnderTest):
    """A topic, and a broker that can be killed."""

    keeps_keys = True
    keeps_headers = True
    can_go_down = True
    writes_twice = True  # a killed broker may have stored what it did not confirm

    def __init__(self, kafka) -> None:
        from confluent_kafka import TopicPartition

        self._kafka = kafka
        self._up = True
        self._topic = kafka.topic()
        self._landed: list[Sample] = []
        self._reader = kafka.member("looking on")
        self._reader.assign([TopicPartition(self._topic, 0, 0)])

    def sink(self):
        config = {"message.timeout.ms": 2000}
        brokers, topic = [self._kafka.address], self._topic
        return Kafka(brokers=brokers, topic=topic, config=config)

    def landed(self):
        while events := self._reader.consume(1_000, 0.05):
            self._landed += [_sample_of(event) for event in events if event.error() is None]
        return self._landed

    def close(self):
        self._reader.close()

    def go_down(self):
        self._kafka.kill()
        self._up = False

    def come_up(self):
        if not self._up:
            self._kafka.start()
        self._up = True


@pytest.fixture(scope="module")
def sink_trial(kafka, tmp_path_factory):
    with (
        closing(KafkaSinkUnderTest(kafka)) as under_test,
        SinkTrial(under_test, tmp_path_factory.mktemp("state"), PATIENCE) as trial,
    ):
        yield trial


@pytest.mark.parametrize("rule", SINK_RULES)
def test_the_kafka_sink_keeps_every_rule(rule, sink_trial):
    rule(sink_trial)
