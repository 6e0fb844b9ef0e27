"""Pipelines on a user's stream: all messages arrive, and NATS' own tools show the true state."""

from __future__ import annotations

import os
import signal
import time
from collections import Counter
from itertools import pairwise

import pytest

from ebbflow import Backoff, Message, Nack, Pipeline
from ebbflow.connectors import JetStream
from ebbflow.status.run_report import Watcher
from tests.nats.outside import Outside, Stream
from tests.waiting import until

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("spark")]


@pytest.fixture
def stream(outside: Outside) -> Stream:
    return outside.stream()


def reading(stream, **fields):
    return {"url": stream.outside.url, "stream": stream.name, "consumer": "c"} | fields


@pytest.mark.guarantee("jetstream-source-settles-natively")
def test_nats_own_tools_show_the_exact_acks_naks_and_redeliveries(
    run, stream, store, journal, tmp_path
):
    stream.fill([b"%d" % n for n in range(3_000)], producers=4)
    seen, looked = [], tmp_path / "looked"

    def nack_every_tenth(datum):
        number = int(datum.value)
        if number == 0 and datum.deliveries == 2:
            until(looked.exists)  # in flight until the watcher has looked
        if number % 10 == 0 and datum.deliveries < 3:
            raise Nack(delay="300ms", reason=f"delivery {datum.deliveries}")
        return Message(datum.value)

    class Looking(Watcher):
        def look(self, status):
            info = stream.info()
            if info["num_redelivered"]:
                seen.append(info)
                looked.touch()

    pipeline = Pipeline("test").source(
        "in", JetStream(**reading(stream)), transformer=nack_every_tenth
    )
    stream.consumer(max_ack_pending=-1)
    with stream.advisories("MSG_NAKED") as naked, stream.advisories("MSG_TERMINATED") as ended:
        summary = run(pipeline.sink("out", store), watcher=Looking())

    assert summary.ended == "drained"
    assert Counter(map(int, journal.read())) == dict.fromkeys(range(3_000), 1)
    counts = summary.vertices["in"]
    assert (counts.done, counts.redelivered) == (3_000, 600)
    # Each nack is a nak of the same message, on its first and its second delivery.
    assert Counter(one["deliveries"] for one in naked) == {1: 300, 2: 300}
    assert not ended
    assert 0 < seen[0]["num_redelivered"] <= seen[0]["num_ack_pending"]
    info = stream.info()
    assert (info["num_pending"], info["num_ack_pending"], info["num_redelivered"]) == (0, 0, 0)
    assert info["ack_floor"]["stream_seq"] == 3_000
    assert info["delivered"]["consumer_seq"] == 3_600


@pytest.mark.guarantee("jetstream-source-settles-natively")
def test_deliveries_and_failures_are_exact_in_several_partitions(
    run, stream, store, journal, another_journal, server_letters
):
    stream.fill([b"%d" % n for n in range(200)])

    def refuse(datum):
        number = int(datum.value)
        another_journal.write([number, datum.deliveries, time.time()])
        if number % 10 == 0:
            raise Nack(delay="400ms", max_deliveries=3, reason="never")
        if number % 10 == 5:
            raise ValueError("no good")
        return Message(datum.value)

    pipeline = Pipeline("test").source(
        "in",
        JetStream(**reading(stream)),
        transformer=refuse,
        partitions=2,
        on_error=Backoff("100ms", steps=2),
    )
    with stream.advisories("MSG_NAKED") as naked:
        run(pipeline.sink("out", store))

    calls = another_journal.read()
    for number in range(0, 200, 5):
        mine = sorted((at, count) for one, count, at in calls if one == number)
        nacked = number % 10 == 0
        assert [count for _, count in mine] == ([1, 2, 3, 4] if nacked else [1, 2, 3])
        waits = [later - earlier for (earlier, _), (later, _) in pairwise(mine)]
        assert min(waits) >= (0.4 if nacked else 0.1)
    letters = server_letters("test")
    facts = Counter((one.deliveries, one.reason) for one in letters)
    assert facts == {(4, "never"): 20, (3, "ValueError"): 20}
    assert Counter(one["deliveries"] for one in naked) == {1: 40, 2: 40, 3: 20}
    assert Counter(map(int, journal.read())) == {n: 1 for n in range(200) if n % 5}
    assert stream.info()["num_ack_pending"] == 0


def test_an_unsuitable_consumer_is_reported_on_one_line_by_its_vertex(run, stream, store):
    stream.consumer(ack_policy="none")
    failures, concerns = [], []

    class StopOnFailure(Watcher):
        def look(self, status):
            if status["in"].failure:
                failures.append((status["in"].failure, status["out"].failure))
                concerns.append([concern.vertex for concern in status.problems])
                assert not status["out"].errors
                os.kill(os.getpid(), signal.SIGINT)

    run(
        Pipeline("test").source("in", JetStream(**reading(stream))).sink("out", store),
        watcher=StopOnFailure(),
    )

    assert failures[0][0] == (
        f"SourceError: source in: Consumer c of stream {stream.name} has ack policy none; "
        "it has to be explicit. Name another consumer in the spec, or leave that out "
        "to have one made."
    )
    assert failures[0][1] == "shares a task with in, which has failed"
    assert concerns[0] == ["in"]
