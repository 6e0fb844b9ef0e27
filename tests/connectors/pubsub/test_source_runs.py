"""Pipelines between subscriptions and topics: nacks are exact, and an outage loses nothing."""

from __future__ import annotations

import time

import pytest

pytest.importorskip("google.pubsub_v1")

from ebbflow import Message, Nack, Pipeline
from ebbflow.connectors import Pubsub
from tests.connectors.pubsub.server import PROJECT
from tests.spark.runs import StopWhen

pytestmark = [pytest.mark.slow, pytest.mark.long, pytest.mark.usefixtures("spark")]


class Cut(StopWhen):
    """Cuts the server off for some seconds when some messages are done; stops at the end."""

    def __init__(self, relay, ended):
        super().__init__(ended)
        self.relay, self.until = relay, None

    def look(self, status):
        super().look(status)
        if self.until is None and status["out"].counts.done > 20:
            self.relay.cut()
            self.until = time.monotonic() + 6
        elif self.until and time.monotonic() > self.until:
            self.relay.mend()
            self.until = float("inf")


@pytest.mark.guarantee("pubsub-loses-no-message")
def test_nacks_are_exact_and_an_outage_loses_nothing(run, pubsub, journal, server_letters):
    source, target = pubsub.make(), pubsub.make()
    pubsub.send(source, *map(str, range(200)))

    def decide(datum):
        number = int(datum.value)
        journal.write([number, datum.deliveries, datum.nack_reason, time.time()])
        if number % 50 == 7:
            raise Nack("never", delay="300ms", max_deliveries=2)
        if number % 50 == 8 and datum.deliveries == 1:
            raise Nack("not now", delay="1500ms")
        time.sleep(0.05)
        return Message(datum.value)

    given = Pubsub(project=PROJECT, subscription=source, lease="10s", endpoint=pubsub.url)
    written = Pubsub(project=PROJECT, topic=target, endpoint=pubsub.url)
    pipeline = Pipeline("shop").source("in", given).map("decide", decide).sink("out", written)

    def ended(status):
        return status["out"].counts.done >= 196 and status["decide"].dead_letters >= 4

    run(pipeline, drain=False, watcher=Cut(pubsub.relay, ended))

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
        assert calls[number][-1][2] - calls[number][-2][2] >= 1.5
    letters = server_letters("shop")
    assert sorted(int(letter.value) for letter in letters) == sorted(never)
    assert {int(message.data) for message in pubsub.receive(target)} == set(range(200)) - {*never}
    assert pubsub.receive(source) == []


def test_a_slow_map_keeps_its_messages_longer_than_their_lease(run, pubsub, journal, store):
    name = pubsub.make(ordered=True)
    for number in range(8):
        for key in "ab":
            pubsub.publish(name, {"data": f"{key}{number}".encode(), "ordering_key": key})

    def slowly(datum):
        time.sleep(1.2)
        return Message(datum.value)

    given = Pubsub(project=PROJECT, subscription=name, lease="10s", endpoint=pubsub.url)
    pipeline = Pipeline("shop").source("in", given, transformer=slowly).sink("out", store)
    ended = StopWhen(lambda status: status["out"].counts.done >= 16)
    run(pipeline, drain=False, watcher=ended)
    seen = journal.read()
    for key in "ab":
        assert [each for each in seen if each[0] == key] == [f"{key}{n}" for n in range(8)]
    assert pubsub.receive(name) == []
