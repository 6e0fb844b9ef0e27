"""The Pub/Sub source and sink keep the rules for all connectors, against Google's own server."""

from __future__ import annotations

import pytest

pytest.importorskip("google.pubsub_v1")

from google.api_core.exceptions import GoogleAPICallError

from ebbflow.connectors import Pubsub
from ebbflow.connectors.pubsub.source import attributes_of, read_received
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
from tests.conformance.waiving import blocked_elsewhere
from tests.connectors.pubsub.server import PROJECT
from tests.connectors.relay import Relay

pytestmark = [pytest.mark.slow, pytest.mark.long]


@pytest.fixture(scope="module")
def server(pubsub_server):
    with Relay(pubsub_server.port) as pubsub_server.relay:
        yield pubsub_server


class SubscriptionUnderTest(SourceUnderTest):
    """A subscription of a topic that programs publish to."""

    keeps_keys = keeps_headers = True
    waived = blocked_elsewhere("the Postgres queue")
    # The server sleeps for half a second between two checks, and leases take time to be sent.
    lateness = 4.0

    def __init__(self, server) -> None:
        self._server = server
        self._name = server.make()

    def source(self):
        fields = {"lease": "10s", "endpoint": self._server.url}
        return Pubsub(project=PROJECT, subscription=self._name, **fields)

    def put(self, samples):
        messages = [
            {
                "data": sample.value,
                "attributes": attributes_of(sample.headers, sample.keys, empty=not sample.value),
            }
            for sample in samples
        ]
        try:
            self._server.publish(self._name, *messages)
        except GoogleAPICallError as error:
            raise Refused(str(error)) from None


@pytest.fixture(scope="module")
def source_trial(server, tmp_path_factory):
    under_test = SubscriptionUnderTest(server)
    with SourceTrial(under_test, tmp_path_factory.mktemp("state"), "60s") as trial:
        yield trial


@pytest.mark.guarantee("connectors-keep-the-same-rules")
@pytest.mark.parametrize("rule", SOURCE_RULES)
def test_the_pubsub_source_keeps_every_rule(rule, source_trial):
    rule(source_trial)


class TopicUnderTest(SinkUnderTest):
    """A topic that can be cut off, with a subscription that receives all of it."""

    keeps_keys = keeps_headers = can_go_down = True
    writes_twice = True

    def __init__(self, server) -> None:
        self._server = server
        self._name = server.make()
        self._taken: list[Sample] = []

    def sink(self):
        return Pubsub(project=PROJECT, topic=self._name, endpoint=self._server.url)

    def landed(self):
        for received in self._server.take(self._name):
            message = read_received(type(received).pb(received)).message
            self._taken.append(Sample(message.value, tuple(message.keys), message.headers))
        return self._taken

    def go_down(self):
        self._server.relay.cut()

    def come_up(self):
        self._server.relay.mend()


@pytest.fixture(scope="module")
def sink_trial(server, tmp_path_factory):
    under_test = TopicUnderTest(server)
    with SinkTrial(under_test, tmp_path_factory.mktemp("state"), "60s") as trial:
        yield trial


@pytest.mark.guarantee("connectors-keep-the-same-rules")
@pytest.mark.parametrize("rule", SINK_RULES)
def test_the_pubsub_sink_keeps_every_rule(rule, sink_trial):
    rule(sink_trial)
