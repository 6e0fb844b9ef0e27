"""Pipelines in memory on a virtual clock: every outcome, without waiting."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from types import FrameType
from typing import Any

import pytest

from ebbflow import Backoff, Datum, Message, MonoVertex, Nack, Pipeline, Response
from ebbflow.connectors import Blackhole, Generator, Http, Kafka, Ports, Serve
from ebbflow.domain.errors import SetupError, SimulationError
from ebbflow.testing import Crash, Outage, Pause, simulate
from tests.outcome_table import COUNT, MAP_CASES, SINK_CASES, Case

ERRORS = Backoff("10ms", steps=2)


def nack_first(datum: Datum) -> Message:
    if datum.deliveries == 1:
        raise Nack(reason="customer not known yet", delay="5s", max_deliveries=3)
    return Message(datum.value)


def store(batch: list[Datum]) -> list[Response]:
    return [Response.ok(datum.id) for datum in batch]


def orders(messages: int = 100) -> Pipeline:
    source = Pipeline("orders").source("in", Generator(messages=messages))
    return source.map("enrich", nack_first).sink("out", store)


def test_nacked_orders_are_redelivered_after_five_seconds_of_virtual_time():
    result = simulate(orders())
    assert result["enrich"].redelivered == 100
    assert result["out"].done == 100
    assert result.elapsed == timedelta(seconds=5)
    assert not result.dead_letters
    (first, *_) = result["enrich"].redeliveries
    assert (first.at, first.due) == (timedelta(0), timedelta(seconds=5))
    assert first.reason == "customer not known yet"
    assert result.pending == 0


def test_a_failing_assert_shows_what_happened():
    assert repr(simulate(orders(1))["enrich"]) == (
        "enrich: read 2, written 1, done 1, redelivered 1\n"
        "  0s in-0 redelivered, due at 5s: customer not known yet"
    )


def test_given_messages_replace_a_source_that_needs_a_system():
    pipeline = (
        Pipeline("web")
        .source("in", Http(ports=Ports(http=8080)))
        .sink("out", Kafka(brokers=["nowhere:9092"], topic="t"))
    )
    messages = [b"bytes", "text", {"a": 1}, Message(b"m", keys=["k"]), Datum(b"d", id="own")]
    result = simulate(pipeline, messages)
    assert result["out"].values == [b"bytes", b"text", b'{"a": 1}', b"m", b"d"]
    assert list(result["out"].outputs[3].keys) == ["k"]
    with pytest.raises(SetupError, match="The source in reads from http"):
        simulate(pipeline)
    with pytest.raises(SetupError, match="Messages are given for im, and web has no source"):
        simulate(pipeline, {"im": []})


@pytest.mark.parametrize(
    ("pipeline", "options", "said"),
    [
        (5, {}, "takes a Pipeline, a MonoVertex, a spec or the path of one, not int"),
        (orders(), {"messages": 5}, "messages must be a list of messages"),
        (orders(), {"incidents": Outage("out", "5s")}, "incidents takes a list, not Outage"),
        (orders(), {"incidents": ["out"]}, "an incident is an Outage, a Pause or a Crash, not str"),
    ],
)
def test_an_argument_of_the_wrong_type_is_an_error_at_the_call(
    pipeline: Any, options: dict[str, Any], said: str
) -> None:
    with pytest.raises(TypeError, match=said):
        simulate(pipeline, **options)


def test_a_query_cannot_be_simulated_and_the_error_says_what_to_do():
    pipeline = Pipeline("q").source("in", Generator(messages=1))
    pipeline = pipeline.map("sum", sql="SELECT value FROM messages").sink("out", Blackhole())
    with pytest.raises(SetupError) as error:
        simulate(pipeline)
    assert str(error.value) == (
        "The vertex sum is a query that Spark plans; it cannot be simulated. "
        "Test it on Spark: run the pipeline with ebbflow.testing.local_spark()."
    )


def test_a_sink_whose_system_is_down_waits_and_no_message_is_penalised():
    result = simulate(orders(10), incidents=[Outage("out", "10m")])
    assert result["out"].done == 10
    assert not result.dead_letters
    assert timedelta(minutes=10) <= result.elapsed < timedelta(minutes=11)


def test_a_paused_vertex_reads_nothing_until_it_is_resumed():
    result = simulate(orders(10), incidents=[Pause("in", "1m")])
    assert result["out"].done == 10
    assert result["enrich"].deliveries[0].at == timedelta(minutes=1)


@pytest.mark.parametrize("vertex", ["in", "enrich", "out"])
@pytest.mark.parametrize("step", range(1, 7))
def test_a_crash_at_any_step_loses_nothing_and_counts_nothing_twice(vertex, step):
    result = simulate(orders(10), incidents=[Crash(vertex, step=step)])
    assert result["enrich"].redelivered == 10
    assert result["out"].done == 10
    assert sorted(set(result["out"].values)) == sorted(result["out"].values)


def test_a_parked_message_is_pending_until_time_passes():
    def tomorrow(datum: Datum) -> Message:
        if datum.deliveries == 1:
            raise Nack(delay="1h")
        return Message(datum.value)

    pipeline = Pipeline("p").source("in", Generator(messages=2)).map("wait", tomorrow)
    result = simulate(pipeline.sink("out", store), until="10m")
    assert result.pending == 2
    assert result["out"].read == 0
    result.advance("49m")
    assert result.pending == 2
    assert result.advance("2m")["out"].done == 2


def count_calls(work: Callable[[], object]) -> int:
    """Counts the calls of functions, in Python and in C, that this thread makes."""
    calls = 0

    def count(frame: FrameType, event: str, arg: object) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    sys.setprofile(count)
    try:
        work()
    finally:
        sys.setprofile(None)
    return calls


def test_simulating_a_thousand_messages_that_wait_for_minutes_takes_few_calls():
    def wait(datum: Datum) -> Message:
        if datum.deliveries <= 3:
            raise Nack(delay=f"{1 + len(datum.id) + int(datum.id[-1])}m")
        return Message(datum.value)

    pipeline = Pipeline("p").source("in", Generator(messages=1_000)).map("wait", wait)
    pipeline = pipeline.sink("out", store)
    result = simulate(pipeline)  # which also imports what a first simulation needs
    # 0.12 s of CPU without the counting; the limit for a test is half a second.
    assert count_calls(partial(simulate, pipeline)) < 1_500_000
    assert (result["wait"].redelivered, result["out"].done) == (3_000, 1_000)
    assert result.elapsed > timedelta(minutes=30)


def test_errors_in_user_code_have_the_line_and_the_traceback_of_user_code():
    def bug(datum: Datum) -> Message:
        return Message(json.loads(datum.value)["data"].encode())

    pipeline = Pipeline("p").source("in", Http()).map("m", bug).sink("out", store)
    result = simulate(pipeline, [{"data": "x"}, {}])
    (error,) = result["m"].errors
    assert (error.kind, error.text) == ("KeyError", "'data'")
    assert str(error.where).startswith("test_simulate.py:")
    assert "/ebbflow/" not in str(error.traceback)
    assert f"KeyError: 'data' ({error.where}), 6 times, message in-0-1" in repr(result)


def test_nacking_a_message_forever_without_a_delay_is_an_error():
    def never(datum: Datum) -> Message:
        raise Nack

    pipeline = Pipeline("p").source("in", Generator(messages=1)).map("m", never)
    with pytest.raises(SimulationError, match="m redelivers messages forever without a delay"):
        simulate(pipeline.sink("out", store))


def test_a_bug_that_affects_every_message_ends_the_simulation_and_is_named():
    def bug(datum: Datum) -> Message:
        raise KeyError("data")

    pipeline = Pipeline("p").source("in", Generator(messages=50)).map("m", bug)
    result = simulate(pipeline.sink("out", store))
    waiting = result["m"].waiting
    assert re.fullmatch(
        r"every message fails with KeyError: 'data' at test_simulate.py:\d+; fix the code",
        str(waiting),
    )
    assert result.pending == 50


def test_served_answers_are_grouped_by_request():
    mono = MonoVertex("ask").serve(ports=Ports(http=8080)).map(lambda d: Message(d.value.upper()))
    result = simulate(mono.sink(Serve()), [Datum(b"hi", id="q")])
    assert [*result.answers.values()] == [[b"HI"]]
    assert result["ask"].served == 1


class _Journal:
    """What the sinks of a case received, as in the same table on Spark."""

    def __init__(self, case: Case) -> None:
        self.case = case
        self.entries: list[tuple[str, int, str]] = []

    def sink(self, role, decide):
        def write(data):
            responses = []
            for datum in data:
                value = json.loads(datum.value)["value"]
                response = decide(datum) if value == 3 and decide else Response.ok(datum.id)
                self.entries.append((role, value, str(response)))
                responses += [] if response is None else [response]
            return responses

        return write

    def options(self):
        options = dict(self.case.options)
        options.pop("serve", None)
        for role in ("fallback", "on_success"):
            if role in options:
                decide = options[role] if callable(options[role]) else None
                options[role] = self.sink(role, decide)
        return options

    def map(self, datum):
        special = json.loads(datum.value)["value"] == 3
        return self.case.map(datum) if special else Message(datum.value)

    def written(self, role: str) -> int:
        accepted = ("Status.OK", "Status.ON_SUCCESS") if role != "sink" else ("Status.OK",)
        return sum(
            name == role and value == 3 and any(status in response for status in accepted)
            for name, value, response in self.entries
        )

    @property
    def calls(self) -> int:
        return sum(role == "sink" and value == 3 for role, value, _ in self.entries)

    def as_pipeline(self) -> Pipeline:
        pipeline = Pipeline("table", serving_store=self.store)
        pipeline = pipeline.source("in", Generator(messages=COUNT))
        if self.case.map:
            pipeline = pipeline.map("map", self.map, on_error=ERRORS, **self.case.map_options)
        sink = self.sink("sink", self.case.sink)
        return pipeline.sink("out", sink, on_error=ERRORS, **self.options())

    def as_monovertex(self) -> MonoVertex:
        mono = MonoVertex("table", on_error=ERRORS, serving_store=self.store)
        mono = mono.source(Generator(messages=COUNT))
        mono = mono.map(self.map, **self.case.map_options) if self.case.map else mono
        return mono.sink(self.sink("sink", self.case.sink), **self.options())

    @property
    def store(self) -> str | None:
        return "nats" if self.case.options.get("serve") else None


@pytest.mark.parametrize("form", ["pipeline", "mono"])
@pytest.mark.parametrize("case", [*SINK_CASES, *MAP_CASES], ids=str)
def test_every_case_of_the_outcome_table_ends_as_on_spark(case, form):
    journal = _Journal(case)
    if form == "mono":
        result, name = simulate(journal.as_monovertex()), "table"
    else:
        result, name = simulate(journal.as_pipeline()), "map" if case.map else "out"
    counts = result[name].counts.as_dict() | ({"written": 0} if case.map else {})
    usual = {"read": COUNT, "done": COUNT} | ({} if case.map else {"written": COUNT})
    expected = dict.fromkeys(counts, 0) | usual
    assert counts == {name: count + case.ends.get(name, 0) for name, count in expected.items()}
    assert journal.written("sink") == case.stored
    assert journal.written("fallback") == case.fallback
    assert journal.written("on_success") == case.succeeded
    assert case.map or journal.calls == case.calls
    letters = [(letter.reason, letter.error or "") for letter in result.dead_letters]
    assert len(letters) == (case.letter is not None)
    if case.letter is not None:
        ((reason, error),) = letters
        assert reason == case.letter[0]
        assert case.letter[1] in error
