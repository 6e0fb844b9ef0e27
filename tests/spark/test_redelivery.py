"""Nacks on Spark and JetStream: delay, maximum deliveries, reason and delivery count."""

from __future__ import annotations

import json
import time
from collections import Counter, defaultdict

import pytest

from ebbflow import Backoff, Limits, Message, NackOptions, Pipeline, Response, nack
from ebbflow.connectors import Blackhole, Generator
from ebbflow.deadletters import DeadLetters
from ebbflow.nats.locate import open_link, start_embedded
from tests.spark.runs import StopWhen

pytestmark = pytest.mark.slow


def generated(count: int, name: str = "test") -> Pipeline:
    return Pipeline(name).source("in", Generator(messages=count))


@pytest.mark.guarantee("redeliveries-are-never-early")
def test_thousands_of_messages_nacked_twice_arrive_on_their_third_delivery(run, journal):
    def nack_twice(datum):
        if datum.deliveries < 3:
            return Message.to_nack(NackOptions(delay=700, reason="not yet"))
        return Message(datum.value)

    def observed(datum):
        now = time.time()
        result = nack_twice(datum)
        journal.write([json.loads(datum.value)["value"], datum.deliveries, now])
        return result

    def store(data):
        return [Response.ok(datum.id) for datum in data]

    summary = run(generated(3_000).map("twice", observed).sink("out", store))

    calls = defaultdict(list)
    for value, deliveries, at in journal.read():
        calls[value].append((deliveries, at))
    assert summary.vertices["out"].done == 3_000
    assert sorted(calls) == list(range(3_000))
    assert all([d for d, _ in sorted(seen)] == [1, 2, 3] for seen in calls.values())
    waits = [
        later - earlier
        for seen in calls.values()
        for (_, earlier), (_, later) in zip(sorted(seen), sorted(seen)[1:], strict=False)
    ]
    assert min(waits) >= 0.7
    twice = summary.vertices["twice"]
    assert (twice.read, twice.redelivered, twice.done) == (9_000, 6_000, 3_000)


@pytest.mark.guarantee("max-deliveries-is-exact")
def test_with_max_deliveries_two_a_message_is_called_three_times_and_then_dead_lettered(
    run, journal, tmp_path
):
    def always_nack(datum):
        journal.write(datum.deliveries)
        nack(delay="10ms", max_deliveries=2, reason="no customer")

    summary = run(generated(1).map("stubborn", always_nack).sink("out", Blackhole()))

    assert sorted(journal.read()) == [1, 2, 3]
    assert summary.vertices["stubborn"].dead_lettered == 1
    assert summary.vertices["stubborn"].redelivered == 2


@pytest.mark.guarantee("outcomes-hold")
def test_a_nack_among_several_outputs_forwards_none_of_them(run, journal):
    def three_then_nack(datum):
        yield Message(b"one")
        yield Message(b"two")
        if datum.deliveries == 1:
            yield Message.to_nack(NackOptions(delay=50))
        yield Message(b"three")

    def store(data):
        journal.write(*(datum.value.decode() for datum in data))
        return [Response.ok(datum.id) for datum in data]

    summary = run(generated(20).map("several", three_then_nack).sink("out", store))

    assert Counter(journal.read()) == {"one": 20, "two": 20, "three": 20}
    assert summary.vertices["several"].redelivered == 20


@pytest.mark.guarantee("redeliveries-are-never-early")
def test_messages_nacked_with_a_long_delay_do_not_hold_up_the_others(run):
    def park_every_fifth(datum):
        if json.loads(datum.value)["value"] % 5 == 0:
            nack(delay="10m", reason="parked")
        return Message(datum.value)

    def is_through(status):
        return status["out"].counts.done == 4_000 and status["park"].counts.redelivered == 1_000

    pipeline = generated(5_000).map("park", park_every_fifth).sink("out", Blackhole())

    assert run(pipeline, drain=False, watcher=StopWhen(is_through)).ended == "stopped"


@pytest.mark.guarantee("failures-stay-with-their-message")
def test_an_exception_is_retried_with_back_off_and_then_dead_lettered_with_its_traceback(
    run, server_letters
):
    def fragile(datum):
        value = json.loads(datum.value)["value"]
        if value == 7:
            raise KeyError("customer 7 has no address")
        return Message(datum.value)

    quick = Backoff("20ms", steps=2, factor=2)
    summary = run(generated(50).map("fragile", fragile, on_error=quick).sink("out", Blackhole()))

    assert summary.vertices["out"].done == 49
    assert summary.vertices["fragile"].redelivered == 2
    (letter,) = server_letters("test")
    assert (letter.reason, letter.vertex, letter.deliveries) == ("KeyError", "fragile", 3)
    assert letter.error == "KeyError: 'customer 7 has no address'"
    assert "in fragile" in letter.traceback
    assert json.loads(letter.value)["value"] == 7
    assert letter.first_seen <= letter.last_seen


@pytest.mark.guarantee("sink-contract")
def test_a_sink_decides_the_outcome_of_each_message_of_its_batch(run, journal, server_letters):
    def store(data):
        assert len(data) <= 16
        for datum in data:
            value = json.loads(datum.value)["value"]
            if value % 10 == 3:
                yield Response.failure(datum.id, f"{value} is not wanted")
            elif value % 10 == 4 and datum.deliveries == 1:
                yield Response.nack(datum.id, NackOptions(delay="100ms", reason="store is busy"))
            else:
                journal.write([value, datum.deliveries, datum.nack_reason])
                yield Response.ok(datum.id)

    summary = run(generated(200).sink("out", store, limits=Limits(read_batch_size=16)))

    written = {value: (deliveries, reason) for value, deliveries, reason in journal.read()}
    assert sorted(written) == [value for value in range(200) if value % 10 != 3]
    assert written[4] == (2, "store is busy")
    assert written[5] == (1, None)
    out = summary.vertices["out"]
    assert (out.done, out.dead_lettered, out.redelivered) == (180, 20, 20)
    assert {letter.error for letter in server_letters("test")} >= {"3 is not wanted"}


@pytest.mark.guarantee("sink-contract")
def test_one_bad_message_in_a_sink_batch_does_not_affect_its_neighbours(run, journal):
    def store(data):
        if any(json.loads(datum.value)["value"] == 5 for datum in data):
            raise RuntimeError("5 breaks the batch")
        journal.write(*(json.loads(datum.value)["value"] for datum in data))
        return [Response.ok(datum.id) for datum in data]

    quick = Backoff("20ms", steps=2)
    summary = run(generated(300).sink("out", store, on_error=quick))

    assert sorted(journal.read()) == [value for value in range(300) if value != 5]
    assert summary.vertices["out"].dead_lettered == 1


@pytest.mark.guarantee("failures-stay-with-their-message")
def test_a_message_larger_than_the_servers_limit_is_dead_lettered_with_that_reason(
    run, server_letters
):
    def inflate(datum):
        if json.loads(datum.value)["value"] == 1:
            return Message(b"x" * 9_000_000)
        return Message(datum.value)

    summary = run(generated(3).map("inflate", inflate).sink("out", Blackhole()))

    assert summary.vertices["out"].done == 2
    (letter,) = server_letters("test")
    assert letter.reason == "message too large"
    assert letter.deliveries == 1
    assert "9,000,000 bytes is over the limit" in letter.error


def test_a_replayed_dead_letter_is_delivered_as_a_first_delivery(run, journal, tmp_path):
    def stubborn(datum):
        journal.write([datum.deliveries, datum.nack_reason])
        if not (tmp_path / "fixed").exists():
            nack(max_deliveries=1, reason="no customer")
        return Message(datum.value)

    def pipeline():
        return generated(1).map("stubborn", stubborn).sink("out", Blackhole())

    run(pipeline())
    with start_embedded(tmp_path / "state") as server, open_link(server) as link:
        letters = DeadLetters(link, "test")
        assert letters.replay(letters.list()).sent == 1
        assert list(letters.list()) == []
    (tmp_path / "fixed").touch()
    summary = run(pipeline())

    calls = sorted(journal.read(), key=str)
    assert calls == [[1, None], [1, None], [2, "no customer"]]
    assert summary.vertices["out"].done == 1
    assert summary.totals["stubborn"].dead_lettered == 1
