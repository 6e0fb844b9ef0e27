"""A broker is killed and restarted: the source and the sink continue."""

from __future__ import annotations

import threading

import pytest

from ebbflow.connectors.kafka.kafka_client import (
    KafkaAccess,
    KafkaSinkSettings,
    KafkaSourceSettings,
)
from ebbflow.connectors.kafka.sink import KafkaSink
from ebbflow.connectors.kafka.source import KafkaSource
from ebbflow.domain.message import Status
from tests.connectors.kafka.test_sink import rows_of, write
from tests.connectors.kafka.test_source import offsets, read_until, take

pytestmark = pytest.mark.slow


def sink_with(kafka, topic, milliseconds):
    access = KafkaAccess((kafka.address,), (("message.timeout.ms", str(milliseconds)),))
    sink = KafkaSink(KafkaSinkSettings(access, topic))
    sink.open()
    return sink


@pytest.mark.long
@pytest.mark.guarantee("kafka-skips-no-record")
def test_source_and_sink_survive_an_outage_without_loss_or_duplicates(kafka):
    topic = kafka.topic()
    source = KafkaSource(KafkaSourceSettings(KafkaAccess((kafka.address,)), (topic,), topic))
    source.open()
    patient, hasty = sink_with(kafka, topic, 30_000), sink_with(kafka, topic, 1_000)
    write(patient, b"before")
    source.ack(offsets(take(source, 1)))
    read_until(lambda: source.exhausted, source)

    kafka.kill()
    response = hasty(rows_of(b"too early"))[0]
    restart = threading.Thread(target=kafka.start)
    restart.start()
    try:
        written = write(patient, *(b"%d" % n for n in range(100)))
    finally:
        restart.join()
    messages = take(source, 100, within=40.0)
    source.ack(offsets(messages))
    source.close()

    assert response.status is Status.UNAVAILABLE
    assert "Connection refused" in response.error
    assert set(written) == {Status.OK}
    assert sorted(int(message.value) for message in messages) == list(range(100))
    assert kafka.ends(topic) == {0: 101}
    assert kafka.lag(topic, topic) == {0: 0}
