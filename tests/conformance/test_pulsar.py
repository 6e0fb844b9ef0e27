"""The Pulsar source and sink keep the rules for all connectors, against a real broker."""

from __future__ import annotations

from contextlib import closing

import pytest

from ebbflow.connectors import Pulsar
from ebbflow.engine import frames
from ebbflow.testing import (
    SINK_RULES,
    SOURCE_RULES,
    Refused,
    Sample,
    SinkTrial,
    SinkUnderTest,
    SourceTrial,
    SourceUnderTest,
)

pytestmark = [pytest.mark.slow, pytest.mark.long]


def _facts_of(sample):
    from ebbflow.connectors.pulsar.pulsar_messages import write_messages

    columns = {"id": [""], "value": [sample.value], "keys": [sample.keys]}
    columns["headers"] = [list(sample.headers.items())]
    (outgoing,) = write_messages(frames.batch_of(columns, 1))
    return outgoing.facts


def _sample_of(message):
    from ebbflow.connectors.pulsar.pulsar_messages import columns_of_messages

    (row,) = columns_of_messages([message], [b"0:0:0:0"]).to_pylist()
    return Sample(row["value"], tuple(row.get("keys") or ()), dict(row.get("headers") or ()))


class PulsarSourceUnderTest(SourceUnderTest):
    """A topic with four partitions and the subscription that reads it."""

    keeps_keys = True
    keeps_headers = True

    def __init__(self, broker, **options) -> None:
        self._broker = broker
        self._topic = broker.topic(4)
        self._options = options
        self._producer = broker.producer(self._topic)

    def source(self):
        return Pulsar(
            server_addr=self._broker.address,
            topic=self._topic,
            subscription_name="shop",
            **self._options,
        )

    def put(self, samples):
        failed = []

        def note(result, _):
            if result.name != "Ok":
                failed.append(result)

        for sample in samples:
            self._producer.send_async(sample.value, note, **_facts_of(sample))
        self._producer.flush()
        if failed:
            raise Refused(str(failed[0]))

    def unsettled(self):
        return self._broker.backlog(self._topic, "shop")

    def left_behind(self):
        found = self._broker.subscription(self._topic, "shop").get("consumers", [])
        return [f"consumer {consumer.get('address')}" for consumer in found]


@pytest.fixture(scope="module")
def source_trial(pulsar_broker, tmp_path_factory):
    under_test = PulsarSourceUnderTest(pulsar_broker)
    with SourceTrial(under_test, tmp_path_factory.mktemp("state")) as trial:
        yield trial


@pytest.mark.guarantee("connectors-keep-the-same-rules")
@pytest.mark.parametrize("rule", SOURCE_RULES)
def test_the_pulsar_source_keeps_every_rule(rule, source_trial):
    rule(source_trial)


class PulsarSinkUnderTest(SinkUnderTest):
    """A topic, and a broker that can be killed."""

    keeps_keys = True
    keeps_headers = True
    can_go_down = True
    writes_twice = True  # a killed broker may have stored what it did not confirm

    def __init__(self, broker) -> None:
        self._broker = broker
        self._up = True
        self._topic = broker.topic()
        self._landed: list[Sample] = []
        self._reader = broker.member(self._topic, "looking-on")

    def sink(self):
        return Pulsar(server_addr=self._broker.address, topic=self._topic)

    def landed(self):
        import pulsar

        while True:
            try:
                message = self._reader.receive(50)
            except pulsar.PulsarException:
                return self._landed
            self._landed.append(_sample_of(message))
            self._reader.acknowledge(message)

    def close(self):
        self._reader.close()

    def go_down(self):
        self._broker.kill()
        self._up = False

    def come_up(self):
        if not self._up:
            self._broker.start()
        self._up = True


@pytest.fixture(scope="module")
def sink_trial(pulsar_broker, tmp_path_factory):
    with (
        closing(PulsarSinkUnderTest(pulsar_broker)) as under_test,
        SinkTrial(under_test, tmp_path_factory.mktemp("state"), "60s") as trial,
    ):
        yield trial


@pytest.mark.guarantee("connectors-keep-the-same-rules")
@pytest.mark.parametrize("rule", SINK_RULES)
def test_the_pulsar_sink_keeps_every_rule(rule, sink_trial):
    rule(sink_trial)
