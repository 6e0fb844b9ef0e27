"""The Pulsar sink by itself, on a real broker: what it sends, and how it responds."""

from __future__ import annotations

from contextlib import ExitStack, contextmanager

import pytest

from ebbflow.connectors.pulsar.pulsar_client import PulsarAccess
from ebbflow.connectors.pulsar.sink import PulsarSink, PulsarSinkSettings
from ebbflow.domain.errors import SetupError
from ebbflow.domain.message import Status
from tests.connectors.pulsar.test_messages import rows_of

pytestmark = [pytest.mark.slow, pytest.mark.long]


@pytest.fixture
def sink_to(pulsar_broker):
    with ExitStack() as stack:

        def sink_to(topic, **options):
            access = PulsarAccess(pulsar_broker.address)
            sink = PulsarSink(PulsarSinkSettings(access, topic, **options))
            sink.open()
            stack.callback(sink.close)
            return sink

        yield sink_to


def plain(*values, key=None):
    return rows_of(*((value, key and [key], None, None) for value in values))


@contextmanager
def partition(monkeypatch, number):
    with monkeypatch.context() as patch:
        patch.setenv("NUMAFLOW_REPLICA", str(number))
        yield


def test_messages_are_stored_when_the_sink_returns(pulsar_broker, sink_to):
    topic = pulsar_broker.topic(2)
    values = [b"%d" % number for number in range(1_000)]
    assert sink_to(topic)(plain(*values, key="ann")) == {}
    found = pulsar_broker.messages(topic, at_least=1_000)
    assert [message.data() for message in found] == values
    assert {message.partition_key() for message in found} == {"ann"}
    assert len({message.message_id().partition() for message in found}) == 1
    assert found[0].properties() == {"__key_len": "1", "__key_0": "ann"}


def test_a_message_that_is_too_large_fails_alone(pulsar_broker, sink_to):
    topic = pulsar_broker.topic()
    answers = sink_to(topic)(plain(b"a", b"x" * 6_000_000, b"b"))
    assert {row: answer.status for row, answer in answers.items()} == {1: Status.FAILURE}
    assert answers[1].error == "MessageTooBig"
    assert [message.data() for message in pulsar_broker.messages(topic, 2)] == [b"a", b"b"]


def test_producers_of_further_partitions_have_a_number_after_the_name(
    pulsar_broker, sink_to, monkeypatch
):
    topic = pulsar_broker.topic()
    sink = sink_to(topic, producer_name="shop")
    assert sink(plain(b"0")) == {}
    with partition(monkeypatch, 1):
        assert sink(plain(b"1")) == {}
        assert sink_to(topic, producer_name="billing")(plain(b"2")) == {}
    found = pulsar_broker.messages(topic, at_least=3)
    names = {message.data(): message.producer_name() for message in found}
    assert names == {b"0": "shop", b"1": "shop-1", b"2": "billing-1"}


def test_a_producer_name_that_is_in_use_counts_as_unavailable(pulsar_broker, sink_to):
    topic = pulsar_broker.topic()
    owner = pulsar_broker.client.create_producer(topic, producer_name="shop")
    sink = PulsarSink(PulsarSinkSettings(PulsarAccess(pulsar_broker.address), topic, "shop"))
    (answer,) = sink(plain(b"0")).values()
    assert answer.status is Status.UNAVAILABLE
    owner.close()
    assert sink(plain(b"0")) == {}
    sink.close()


def test_an_invalid_topic_is_reported_when_the_sink_opens(sink_to):
    with pytest.raises(SetupError, match="does not allow using topic 'no/where/t'") as raised:
        sink_to("no/where/t")
    assert raised.value.next_step == "Create the topic, or correct topic:."
