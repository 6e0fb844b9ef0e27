"""A stream on a cluster as a source: acks and nacks survive an election."""

from __future__ import annotations

import time
from datetime import timedelta

import pytest

from ebbflow.connectors.nats.durable import Durable
from ebbflow.connectors.nats.jetstream_source import JetStreamSettings, JetStreamSource
from ebbflow.domain.message import NackOptions
from ebbflow.domain.user_source import NackOffset
from ebbflow.nats import api
from ebbflow.nats.bulk import publish_all
from ebbflow.nats.publish import PublishRetry
from ebbflow.nats.wire import Publishes
from tests.waiting import until

pytestmark = pytest.mark.slow


def read_all(source, number):
    found, deadline = [], time.monotonic() + 40
    while len(found) < number:
        assert time.monotonic() < deadline, f"only {len(found)} messages came"
        found += source.read(500, timedelta(seconds=0.5)).column("offset").to_pylist()
    return found


def consumer(cluster, stream):
    return cluster.link.run(api.call(cluster.link.client, f"CONSUMER.INFO.{stream}.c"))


@pytest.mark.guarantee("jetstream-source-settles-natively")
def test_acks_and_nacks_are_not_lost_without_a_leader(cluster, names):
    stream = names.pipeline
    config = {"name": stream, "subjects": [stream], "num_replicas": 3, "allow_direct": True}
    cluster.make(config)
    client = cluster.link.client
    values = [b"%d" % n for n in range(300)]
    patient = PublishRetry(attempts=-1, ack_wait=30.0)
    rows = Publishes([stream.encode()] * len(values), [b""] * len(values), values)
    assert cluster.link.run(publish_all(client, rows, patient)) == {}
    source = JetStreamSource(JetStreamSettings(cluster.link.server, Durable(stream, "c")))
    source.open()
    try:
        offsets = read_all(source, 300)
        leader = consumer(cluster, stream)["cluster"]["leader"]
        cluster.kill(next(node for node in cluster.all if node.name == leader))

        source.ack(offsets[:200])
        source.nack([NackOffset(offset, NackOptions("500ms")) for offset in offsets[200:]])

        again = read_all(source, 100)
        assert sorted(again) == sorted(offsets[200:])
        source.ack(again)
        until(lambda: source.exhausted)
        assert consumer(cluster, stream)["num_ack_pending"] == 0
    finally:
        source.close()
