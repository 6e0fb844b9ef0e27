"""The SQS source and sink keep the rules for all connectors, against moto's server."""

from __future__ import annotations

import pytest

pytest.importorskip("boto3")

from ebbflow.connectors import SecretRef, Sqs
from ebbflow.connectors.sqs.sqs_messages import read_raw, write_entry
from ebbflow.domain.message import Datum
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
from tests.connectors.relay import Relay

pytestmark = [pytest.mark.slow, pytest.mark.long]

LOGIN = {
    "access_key_id_secret": SecretRef(env="AWS_ACCESS_KEY_ID"),
    "secret_access_key_secret": SecretRef(env="AWS_SECRET_ACCESS_KEY"),
}


@pytest.fixture(scope="module")
def login(sqs_server):
    with pytest.MonkeyPatch.context() as patch, Relay(sqs_server.port) as sqs_server.relay:
        patch.setenv("AWS_ACCESS_KEY_ID", "shop")
        patch.setenv("AWS_SECRET_ACCESS_KEY", "sesame")
        yield sqs_server


class QueueUnderTest(SourceUnderTest):
    """A queue that programs send to."""

    keeps_keys = keeps_headers = True
    largest = 200_000
    waived = blocked_elsewhere("the Postgres queue")

    def __init__(self, server) -> None:
        self._server = server
        self._queue = server.queue()

    def source(self):
        fields = {"visibility_timeout": 5, "endpoint_url": self._server.url}
        return Sqs(aws_region="us-east-1", queue_name=self._queue, **LOGIN, **fields)

    def put(self, samples):
        entries = [
            write_entry(n, Datum(sample.value, keys=sample.keys, headers=sample.headers), False)
            for n, sample in enumerate(samples)
        ]
        address, client = self._server.address(self._queue), self._server.client
        for start in range(0, len(entries), 10):
            try:
                client.send_message_batch(QueueUrl=address, Entries=entries[start : start + 10])
            except client.exceptions.ClientError as error:
                raise Refused(str(error)) from None

    def unsettled(self):
        return sum(self._server.depth(self._queue))


@pytest.fixture(scope="module")
def source_trial(login, tmp_path_factory):
    under_test = QueueUnderTest(login)
    with SourceTrial(under_test, tmp_path_factory.mktemp("state"), "60s") as trial:
        yield trial


@pytest.mark.guarantee("connectors-keep-the-same-rules")
@pytest.mark.parametrize("rule", SOURCE_RULES)
def test_the_sqs_source_keeps_every_rule(rule, source_trial):
    rule(source_trial)


class TargetUnderTest(SinkUnderTest):
    """A queue that can be cut off; another one keeps what has been taken from it."""

    keeps_keys = keeps_headers = can_go_down = True
    largest = 200_000
    writes_twice = True

    def __init__(self, server) -> None:
        self._server = server
        self._queue = server.queue()
        self._taken: list[Sample] = []

    def sink(self):
        fields = {"endpoint_url": self._server.url}
        return Sqs(aws_region="us-east-1", queue_name=self._queue, **LOGIN, **fields)

    def landed(self):
        for raw in self._server.receive(self._queue):
            message = read_raw(raw, (), ()).message
            self._taken.append(Sample(message.value, tuple(message.keys), message.headers))
        return self._taken

    def go_down(self):
        self._server.relay.cut()

    def come_up(self):
        self._server.relay.mend()


@pytest.fixture(scope="module")
def sink_trial(login, tmp_path_factory):
    under_test = TargetUnderTest(login)
    with SinkTrial(under_test, tmp_path_factory.mktemp("state"), "60s") as trial:
        yield trial


@pytest.mark.guarantee("connectors-keep-the-same-rules")
@pytest.mark.parametrize("rule", SINK_RULES)
def test_the_sqs_sink_keeps_every_rule(rule, sink_trial):
    rule(sink_trial)
