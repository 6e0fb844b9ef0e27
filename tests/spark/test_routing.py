"""Where messages go: conditions, joins, cycles, full buffers, bypasses, order, event time."""

from __future__ import annotations

import json
import os
import re
import time
from collections import Counter, defaultdict
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from ebbflow import Limits, Message, MonoVertex, NackOptions, Pipeline, Response
from ebbflow.connectors import Generator, Log
from ebbflow.status.run_report import Watcher
from tests.waiting import until

pytestmark = pytest.mark.slow


def value(datum):
    return json.loads(datum.value)["value"]


@pytest.fixture
def collect(journal):
    """A sink that records values under a name."""

    def named(name):
        def sink(data):
            journal.write(*([name, datum.value.decode()] for datum in data))
            return [Response.ok(datum.id) for datum in data]

        return sink

    return named


@pytest.fixture
def collected(journal):
    def read():
        found = defaultdict(list)
        for name, text in journal.read():
            found[name].append(text)
        return found

    return read


def test_conditions_choose_the_edges_and_unmatched_messages_are_dropped_and_counted(
    run, collect, collected
):
    def tag(datum):
        kinds = [["even", "small"], ["odd"], ["even"], []][value(datum) % 4]
        return Message(str(value(datum)).encode(), tags=kinds)

    pipeline = Pipeline("test").source("in", Generator(messages=40)).map("tag", tag)
    pipeline = (
        pipeline.sink("any", collect("any"), tags=["even", "odd"])
        .sink("both", collect("both"), tags=["even", "small"], operator="and")
        .sink("neither", collect("neither"), tags=["even", "odd", "none"], operator="not")
    )
    run(pipeline)
    found = {name: sorted(map(int, texts)) for name, texts in collected().items()}
    assert found["any"] == [n for n in range(40) if n % 4 != 3]
    assert found["both"] == [n for n in range(40) if n % 4 == 0]
    assert found["neither"] == [n for n in range(40) if n % 4 == 3]


def test_an_output_that_matches_no_edge_is_dropped(run, collect):
    def tag(datum):
        return Message(datum.value, tags=["kept"] if value(datum) < 5 else ["other"])

    pipeline = Pipeline("test").source("in", Generator(messages=20)).map("tag", tag)
    summary = run(pipeline.sink("out", collect("out"), tags=["kept"]))

    assert (summary.vertices["tag"].done, summary.vertices["tag"].dropped) == (5, 15)


def test_branches_join_again_and_every_copy_arrives(run, collect, collected):
    pipeline = Pipeline("test").source("in", Generator(messages=50))
    pipeline = (
        pipeline.map("left", lambda d: Message(b"left"))
        .map("right", lambda d: Message(b"right"), after="in")
        .map("join", lambda d: Message(d.value), after=["left", "right"])
        .sink("out", collect("out"))
    )
    run(pipeline)

    assert Counter(collected()["out"]) == {"left": 50, "right": 50}


def test_a_message_cycles_through_a_vertex_until_its_tag_leads_out(run, collect, collected):
    def three_rounds(datum):
        text = datum.value.decode()
        rounds = int(text) if text.isdigit() else 0
        return Message(str(rounds + 1).encode(), tags=["again" if rounds < 2 else "out"])

    pipeline = Pipeline("test").source("in", Generator(messages=30))
    pipeline = pipeline.map("round", three_rounds).edge("round", "round", tags=["again"])
    summary = run(pipeline.sink("out", collect("out"), tags=["out"]))

    assert Counter(collected()["out"]) == {"3": 30}
    assert summary.vertices["round"].read == 90


def test_a_message_can_cycle_back_to_an_earlier_vertex(run, collect, collected):
    def first(datum):
        text = datum.value.decode()
        return Message((text if text.startswith("x") else "").encode() + b"x")

    def second(datum):
        return Message(datum.value, tags=["back" if len(datum.value) < 3 else "on"])

    pipeline = Pipeline("test").source("in", Generator(messages=20))
    pipeline = pipeline.map("first", first).map("second", second)
    pipeline = pipeline.edge("second", "first", tags=["back"])
    run(pipeline.sink("out", collect("out"), tags=["on"]))

    assert Counter(collected()["out"]) == {"xxx": 20}


@pytest.mark.guarantee("back-pressure-loses-nothing")
def test_a_full_buffer_makes_the_writer_wait_and_nothing_is_lost(run, collect, collected):
    slow = collect("out")

    def crawling(data):
        time.sleep(0.02)
        return slow(data)

    small = Limits(buffer_max_length=2, buffer_usage_limit=100, read_batch_size=200)
    pipeline = Pipeline("test", inline=False).source("in", Generator(messages=20_000))
    summary = run(pipeline.sink("out", crawling, limits=small))

    assert summary.vertices["out"].done == 20_000
    assert len(set(collected()["out"])) == 20_000


class FullBuffer(Watcher):
    """Lets the sink continue after the source has waited for room; measures the source's memory."""

    def __init__(self, folder):
        self.pid, self.gate = folder / "pid", folder / "gate"
        self.fulls, self.sizes = [], []

    def look(self, status):
        self.fulls.append(status["in"].publishing.full)
        if self.fulls[-1] > 20 and not self.gate.exists():
            self.sizes.append(self._resident())
        if self.fulls[-1] > 150:
            self.gate.touch()

    def _resident(self):
        status = Path(f"/proc/{self.pid.read_text()}/status").read_text()
        return int(re.search(r"VmRSS:\s+(\d+) kB", status)[1]) / 1024


@pytest.mark.long
@pytest.mark.guarantee("back-pressure-loses-nothing")
def test_a_writer_that_waits_for_a_full_buffer_counts_it_and_does_not_grow(run, tmp_path):
    watcher = FullBuffer(tmp_path)
    pid, gate = watcher.pid, watcher.gate

    def passes(datum):
        if not pid.exists():
            pid.write_text(str(os.getpid()))
        return Message(datum.value)

    def waits(data):
        until(gate.exists, 300)
        return [Response.ok(datum.id) for datum in data]

    small = Limits(buffer_max_length=2, buffer_usage_limit=100)
    generator = Generator(messages=100_000, msg_size=140)
    # In one task the source would wait for the sink's call.
    pipeline = Pipeline("test", inline=False).source("in", generator, transformer=passes)
    summary = run(pipeline.sink("out", waits, limits=small), watcher=watcher)

    assert summary.vertices["out"].done == 100_000
    assert watcher.fulls == sorted(watcher.fulls)
    assert summary.publishing["in"].full > 150
    assert len(watcher.sizes) > 3
    # A copy per attempt would be 20 times as much; a reused worker may still grow a little.
    assert max(watcher.sizes) - min(watcher.sizes) < 8, watcher.sizes


@pytest.mark.guarantee("back-pressure-loses-nothing")
def test_a_full_buffer_drops_and_counts_messages_if_the_edge_says_so(run, collect, collected):
    slow = collect("out")

    def crawling(data):
        time.sleep(0.3)
        return slow(data)

    small = Limits(buffer_max_length=1, buffer_usage_limit=100, read_batch_size=100)
    pipeline = Pipeline("test", inline=False).source("in", Generator(messages=3_000, rpu=1_500))
    summary = run(pipeline.sink("out", crawling, limits=small, on_full="discard_latest"))

    source, sink = summary.vertices["in"], summary.vertices["out"]
    assert source.dropped > 0
    assert source.done + source.dropped == 3_000
    assert source.written == source.done == sink.done == len(collected()["out"])


def test_a_transformer_sets_event_times_and_tags_and_can_return_several_messages(
    run, collect, collected
):
    start = datetime(2021, 12, 31, 23, 59, 58, tzinfo=UTC)

    def by_year(datum):
        moment = start + timedelta(seconds=value(datum))
        tag = "before" if moment.year < 2022 else "within"
        return [Message(str(moment).encode(), tags=[tag, "all"], event_time=moment)] * 2

    def keeps_time(datum):
        return Message(f"{datum.value.decode()} {datum.event_time}".encode())

    pipeline = Pipeline("test").source("in", Generator(messages=5), transformer=by_year)
    pipeline = (
        pipeline.map("early", keeps_time, tags=["before"], after="in")
        .sink("before", collect("before"))
        .sink("all", collect("all"), after="in", tags=["all"])
    )
    run(pipeline)

    assert sorted(collected()["before"]) == sorted(
        [f"{start + timedelta(seconds=n)} {start + timedelta(seconds=n)}" for n in (0, 1)] * 2
    )
    assert len(collected()["all"]) == 10


def test_a_nack_in_the_transformer_redelivers_from_the_source(run, collect, collected):
    def later(datum):
        moment = datum.event_time
        if datum.deliveries < 3 and value(datum) % 2:
            return Message.to_nack(NackOptions(delay=50, reason="not yet"), event_time=moment)
        return Message(str(datum.deliveries).encode(), event_time=moment)

    pipeline = Pipeline("test").source("in", Generator(messages=40), transformer=later)
    summary = run(pipeline.sink("out", collect("out")))

    assert Counter(collected()["out"]) == {"1": 20, "3": 20}
    assert summary.vertices["in"].redelivered == 40


@pytest.mark.guarantee("the-watermark-only-rises")
def test_the_watermark_reaches_later_vertices_and_never_decreases(run, journal):
    base = datetime(2024, 1, 1, tzinfo=UTC)

    def timed(datum):
        return Message(datum.value, event_time=base + timedelta(seconds=value(datum)))

    def watch(datum):
        mark = datum.watermark
        journal.write([value(datum), mark and (mark - base).total_seconds()])
        return Message(datum.value)

    generator = {"messages": 400, "rpu": 400}
    pipeline = Pipeline("test").source("in", Generator(**generator), transformer=timed)
    run(pipeline.map("first", lambda d: Message(d.value)).map("second", watch).sink("o", Log()))

    seen = journal.read()
    marks = [mark for _, mark in sorted(seen) if mark is not None]
    assert marks
    assert marks == sorted(marks)
    assert all(mark is None or mark <= number for number, mark in seen)
    assert max(marks) > min(marks), "it rises, even with few chunks on a busy machine"


def test_bypass_rules_route_from_transformer_and_map_directly_to_a_sink(run, collect, collected):
    def first(datum):
        tags = {0: ["to-fallback"], 1: ["to-success"]}.get(value(datum) % 5, [])
        return Message(str(value(datum)).encode(), tags=tags)

    def second(datum):
        tags = {2: ["to-fallback"], 3: ["to-success"]}.get(int(datum.value) % 5, [])
        return Message(datum.value + b" mapped", tags=tags)

    mono = (
        MonoVertex("test")
        .source(Generator(messages=50), transformer=first)
        .map(second)
        .sink(collect("sink"), fallback=collect("fallback"), on_success=collect("success"))
        .bypass(fallback=["to-fallback"], on_success=["to-success"])
    )
    counts = run(mono).vertices["test"]
    found = {name: sorted(texts) for name, texts in collected().items()}
    assert found["sink"] == sorted(f"{n} mapped" for n in range(50) if n % 5 == 4)
    assert found["fallback"] == sorted(
        [f"{n}" for n in range(50) if n % 5 == 0] + [f"{n} mapped" for n in range(50) if n % 5 == 2]
    )
    assert found["success"] == sorted(
        [f"{n}" for n in range(50) if n % 5 == 1] + [f"{n} mapped" for n in range(50) if n % 5 == 3]
    )
    assert (counts.done, counts.fallback, counts.on_success) == (30, 20, 20)


def test_with_a_bypass_to_the_sink_everything_else_is_dropped(run, collect, collected):
    def tag(datum):
        return Message(str(value(datum)).encode(), tags=["keep"] if value(datum) < 3 else [])

    mono = MonoVertex("test").source(Generator(messages=10)).map(tag)
    counts = run(mono.sink(collect("sink")).bypass(sink=["keep"])).vertices["test"]

    assert sorted(collected()["sink"]) == ["0", "1", "2"]
    assert (counts.done, counts.dropped) == (3, 7)


@pytest.mark.guarantee("order-by-key")
def test_ordered_vertices_keep_the_order_of_each_key_through_nacks(run, journal):
    def keyed(datum):
        number = value(datum)
        return Message(str(number).encode(), keys=[f"key-{number % 10}"])

    def stubborn(datum):
        number = int(datum.value)
        if number % 97 == 0 and datum.deliveries < 3:
            return Message.to_nack(NackOptions(delay=30, reason="hold"))
        return Message(datum.value)

    def store(data):
        for datum in data:
            if int(datum.value) % 101 == 0 and datum.deliveries == 1:
                yield Response.nack(datum.id, NackOptions(delay=20))
            else:
                journal.write([datum.keys[0], int(datum.value), time.time_ns()])
                yield Response.ok(datum.id)

    pipeline = Pipeline("test", ordered=True)
    pipeline = pipeline.source("in", Generator(messages=1_000), transformer=keyed)
    pipeline = pipeline.map("m", stubborn, partitions=2).sink("out", store, partitions=3)
    summary = run(pipeline)

    by_key = defaultdict(list)
    for key, number, _at in sorted(journal.read(), key=lambda entry: entry[2]):
        if number not in by_key[key]:  # a row after a nack in the same call may be redelivered
            by_key[key].append(number)
    assert all(numbers == sorted(numbers) for numbers in by_key.values())
    assert sorted(n for numbers in by_key.values() for n in numbers) == list(range(1_000))
    assert summary.vertices["m"].redelivered == 22
    assert summary.vertices["m"].read == summary.vertices["m"].ended


@pytest.mark.guarantee("order-by-key")
def test_two_sources_into_an_ordered_vertex_keep_the_order_of_each_key(run, journal):
    def from_source(name):
        def keyed(datum):
            number = value(datum)
            return Message(f"{name} {number}".encode(), keys=[f"{name}-{number % 10}"])

        return keyed

    def store(data):
        journal.write(*([datum.keys[0], datum.value.decode(), time.time_ns()] for datum in data))
        return [Response.ok(datum.id) for datum in data]

    pipeline = Pipeline("test", ordered=True)
    for name in ("a", "b"):
        pipeline = pipeline.source(name, Generator(messages=500), transformer=from_source(name))
    pipeline = pipeline.sink("out", store, after=["a", "b"], partitions=2)
    run(pipeline)

    by_key = defaultdict(list)
    for key, text, _at in sorted(journal.read(), key=lambda entry: entry[2]):
        by_key[key].append(int(text.split()[1]))
    assert len(by_key) == 20
    assert all(numbers == sorted(numbers) for numbers in by_key.values())
    assert sum(map(len, by_key.values())) == 1_000


def test_metadata_is_carried_from_the_transformer_to_the_sink(run, journal):
    def first(datum):
        return Message(datum.value, metadata={"shop": {"order": b"17"}})

    def store(data):
        journal.write(*(datum.metadata["shop"]["order"].decode() for datum in data))
        return [Response.ok(datum.id) for datum in data]

    pipeline = Pipeline("test").source("in", Generator(messages=3), transformer=first)
    run(pipeline.map("m", lambda d: Message(d.value)).sink("out", store))

    assert journal.read() == ["17"] * 3
