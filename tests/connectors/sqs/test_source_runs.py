"""Pipelines between queues of SQS: nacks are exact, and an outage penalises no message."""

from __future__ import annotations

import time

import pytest

pytest.importorskip("boto3")

from ebbflow import Message, Nack, Pipeline, Response
from ebbflow.connectors import SecretRef, Sqs
from tests.spark.runs import Failures

pytestmark = [pytest.mark.slow, pytest.mark.long, pytest.mark.usefixtures("spark")]

# Workers, which were started before the test, have no login in their environment.
LOGIN = {
    "access_key_id_secret": SecretRef(env="AWS_ACCESS_KEY_ID"),
    "secret_access_key_secret": SecretRef(env="AWS_SECRET_ACCESS_KEY"),
}


def queue_of(sqs, queue, **fields):
    return Sqs(aws_region="us-east-1", queue_name=queue, endpoint_url=sqs.url, **LOGIN, **fields)


class Cut(Failures):
    """Cuts the server off when some messages are done, and reconnects it some seconds later."""

    def __init__(self, relay):
        self.relay, self.until, self.waited = relay, None, False

    def look(self, status):
        super().look(status)
        if self.until is None and status["out"].counts.done > 20:
            self.relay.cut()
            self.until = time.monotonic() + 6
        elif self.until and time.monotonic() > self.until:
            self.relay.mend()
            self.until = float("inf")


def test_nacks_are_exact_and_an_outage_loses_nothing(run, sqs, journal, server_letters):
    source, target = sqs.queue(), sqs.queue()
    sqs.send(source, *map(str, range(200)))

    def decide(datum):
        number = int(datum.value)
        journal.write([number, datum.deliveries, datum.nack_reason, time.time()])
        if number % 50 == 7:
            raise Nack("never", delay="300ms", max_deliveries=2)
        if number % 50 == 8 and datum.deliveries == 1:
            raise Nack("not now", delay="1500ms")
        time.sleep(0.02)
        return Message(datum.value)

    pipeline = Pipeline("shop").source("in", queue_of(sqs, source, visibility_timeout=60))
    pipeline = pipeline.map("decide", decide).sink("out", queue_of(sqs, target))
    summary = run(pipeline, watcher=Cut(sqs.relay))

    assert summary.ended == "drained"
    calls = {}
    for number, *call in journal.read():
        calls.setdefault(number, []).append(call)
    never, later = ([n for n in calls if n % 50 == rest] for rest in (7, 8))
    # What could not be acknowledged during the outage may arrive twice, but not as a redelivery.
    for number, received in calls.items():
        expected = {
            "never": [[1, None], [2, "never"], [3, "never"]],
            "later": [[1, None], [2, "not now"]],
        }
        kind = "never" if number in never else "later" if number in later else ""
        assert sorted({(n, reason or "") for n, reason, _ in received}) == [
            (n, reason or "") for n, reason in expected.get(kind, [[1, None]])
        ]
    for number in later:
        first, again = (min(at for n, _, at in calls[number] if n == which) for which in (1, 2))
        assert again - first >= 1.5
    letters = server_letters("shop")
    assert {int(letter.value) for letter in letters} == set(never)
    landed = [int(each["Body"]) for each in sqs.receive(target)]
    assert set(landed) == set(range(200)) - set(never)
    assert sqs.depth(source) == (0, 0)


@pytest.mark.guarantee("sqs-loses-no-message")
def test_a_slow_map_keeps_its_messages_longer_than_their_visibility_timeout(run, sqs, journal):
    queue = sqs.queue(fifo=True)
    for group in "ab":
        sqs.send(queue, *(f"{group}{n}" for n in range(5)), MessageGroupId=group)

    def slowly(datum):
        time.sleep(0.6)
        journal.write(datum.value.decode())
        return Message(datum.value)

    def done(data):
        return [Response.ok(datum.id) for datum in data]

    fields = queue_of(sqs, queue, visibility_timeout=2)
    run(Pipeline("shop").source("in", fields, transformer=slowly).sink("out", done))
    seen = journal.read()
    assert len(seen) == 10
    for group in "ab":
        assert [each for each in seen if each[0] == group] == [f"{group}{n}" for n in range(5)]
    assert sqs.depth(queue) == (0, 0)
