"""The Pub/Sub sink: batches with an outcome for each message, on Google's server for tests."""

from __future__ import annotations

from contextlib import ExitStack

import pytest

pytest.importorskip("google.pubsub_v1")

from ebbflow.connectors.pubsub.pubsub_client import PubsubAccess
from ebbflow.connectors.pubsub.sink import PubsubSink, PubsubSinkSettings
from ebbflow.domain.message import Datum, Status
from tests.connectors.pubsub.server import PROJECT

pytestmark = pytest.mark.long


@pytest.fixture
def opened(pubsub):
    with ExitStack() as stack:

        def opened(name, **options):
            access = PubsubAccess(PROJECT, "topic", name, pubsub.url)
            sink = PubsubSink(PubsubSinkSettings(access, **options))
            stack.callback(sink.close)
            sink.open()
            return sink

        yield opened


def test_every_message_of_several_batches_is_published_and_answered(pubsub, opened):
    name = pubsub.make()
    data = [Datum(b"%d" % n, id=f"in-{n}", headers={"n": str(n)}) for n in range(2_500)]
    responses = opened(name)(data)
    assert [response.id for response in responses] == [datum.id for datum in data]
    assert {response.status for response in responses} == {Status.OK}
    received = pubsub.receive(name)
    assert sorted(int(message.data) for message in received) == list(range(2_500))
    assert all(message.attributes["n"].encode() == message.data for message in received)


def test_an_outage_penalises_no_message_and_the_sink_recovers(pubsub, opened):
    name = pubsub.make()
    sink = opened(name)
    pubsub.relay.cut()
    try:
        (response,) = sink([Datum(b"1", id="1")])
    finally:
        pubsub.relay.mend()
    assert response.status is Status.UNAVAILABLE
    assert f"Pub/Sub topic {name} of shop: " in response.error
    responses = []
    while not responses or responses[-1].status is not Status.OK:
        responses += sink([Datum(b"1", id="1")])
    assert len(pubsub.receive(name)) == 1


def test_a_missing_topic_counts_as_unavailable(opened):
    (response,) = opened("nowhere")([Datum(b"1", id="1")])
    assert response.status is Status.UNAVAILABLE
    assert response.error == "There is no Pub/Sub topic nowhere of shop that this login can see"


def test_a_refused_message_fails_alone(pubsub, opened):
    name = pubsub.make()
    data = [Datum(b"%d" % number, id=str(number)) for number in range(9)]
    data.insert(4, Datum(b"x" * 5_000_000, id="large"))
    responses = opened(name)(data)
    assert {response.id for response in responses if response.status is not Status.OK} == {"large"}
    assert responses[4].status is Status.FAILURE
    assert len(pubsub.receive(name)) == 9


def test_keys_can_become_ordering_keys_and_empty_values_arrive(pubsub, opened):
    name = pubsub.make(ordered=True)
    opened(name, set_ordering_key=True)([Datum(b"", id="1", keys=["a"])])
    (message,) = pubsub.receive(name)
    assert message.ordering_key == "a"
    assert message.data == b""
    assert "ebbflow.keys" not in message.attributes
