"""Whatever user code does, every message ends in exactly one place and is counted there."""

from __future__ import annotations

import json
import tempfile
from collections import Counter
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings

from ebbflow import Backoff, Limits, NackOptions, Pipeline, Response
from ebbflow.connectors import Generator
from ebbflow.deadletters import DeadLetters
from ebbflow.nats.locate import open_link, start_embedded
from ebbflow.spark.run import run_pipeline
from ebbflow.testing import simulate
from tests.random_pipelines import build, depends_on_batches, topologies
from tests.spark.runs import Failures
from tests.thorough import examples

pytestmark = pytest.mark.slow


def facts_of(letters):
    """The fields in which dead letters of the same messages agree, whether real or simulated."""
    return Counter((each.vertex, each.id, each.reason, each.deliveries) for each in letters)


def value(datum):
    return json.loads(datum.value)["value"]


@pytest.mark.guarantee("nothing-is-lost")
def test_a_store_that_rejects_some_messages_loses_none_and_delays_no_others(run, journal, tmp_path):
    """A quarter of the messages cannot be stored until all the others are."""
    back = tmp_path / "back"

    def store(data):
        for datum in data:
            if value(datum) % 4 == 0 and not back.exists():
                yield Response.nack(datum.id, NackOptions(delay="1s", reason="store is down"))
            else:
                journal.write(value(datum))
                yield Response.ok(datum.id)

    class BringBack(Failures):
        def look(self, status):
            if status["out"].counts.done >= 1_500:
                back.touch()

    pipeline = Pipeline("test").source("in", Generator(messages=2_000, rpu=400))
    summary = run(pipeline.sink("out", store), watcher=BringBack())

    assert sorted(journal.read()) == list(range(2_000))
    assert summary.vertices["out"].dead_lettered == 0
    assert summary.vertices["out"].redelivered > 500


@pytest.mark.guarantee("sink-contract")
def test_wrong_response_counts_never_stall_and_nothing_is_lost(run, journal, server_letters):
    # One batch in a hundred: always missing, once doubled, once missing, always another id.
    wrong = {n: kind for kind in range(4) for n in range(kind * 5_000 + 77, 20_000, 20_000)}

    def careless(data):
        journal.write(*(value(datum) for datum in data))
        for datum in data:
            again = datum.deliveries > 1
            match wrong.get(value(datum)):
                case 0:
                    continue
                case 1 if not again:
                    yield from [Response.ok(datum.id)] * 2
                case 2 if not again:
                    continue
                case 3:
                    yield Response.ok("somebody else")
                case _:
                    yield Response.ok(datum.id)

    quick = Backoff("20ms", steps=2)
    limits = Limits(read_batch_size=50)
    pipeline = Pipeline("test").source("in", Generator(messages=20_000))
    summary = run(pipeline.sink("out", careless, on_error=quick, limits=limits))

    out = summary.vertices["out"]
    assert set(journal.read()) == set(range(20_000))
    assert (out.done, out.dead_lettered) == (19_998, 2)
    assert out.read == out.ended
    letters = server_letters("test")
    assert sorted(json.loads(letter.value)["value"] for letter in letters) == [77, 15_077]
    assert all(letter.reason == "ContractViolation" for letter in letters)


@pytest.mark.guarantee("nothing-is-lost", "outcomes-hold")
@settings(
    max_examples=examples(12, thorough=500),
    deadline=None,
    print_blob=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(plan=topologies)
def test_random_user_code_ends_every_message_exactly_once_as_simulated(plan):
    with tempfile.TemporaryDirectory() as folder:
        state = Path(folder) / "state"
        summary = run_pipeline(
            build(plan).spec, drain=True, timeout="240s", state=state, watcher=Failures()
        )
        with start_embedded(state) as server, open_link(server) as link:
            letters = [stored.letter for stored in DeadLetters(link, "test").list()]

    assert summary.ended == "drained"
    by_vertex = Counter(letter.vertex for letter in letters)
    for name, counts in summary.vertices.items():
        assert counts.read == counts.ended, name
        assert counts.dead_lettered == by_vertex[name], name
    if not depends_on_batches(plan):
        simulated = simulate(build(plan))
        assert {n: v.counts for n, v in simulated.vertices.items()} == dict(summary.vertices)
        assert facts_of(simulated.dead_letters) == facts_of(letters)
    # A vertex reads exactly what the one before it writes, apart from redeliveries.
    names = list(summary.vertices)
    for before, after in pairwise(names):
        read = summary.vertices[after]
        assert summary.vertices[before].written == read.read - read.redelivered
