"""Whatever user code does, every message ends in exactly one place and is counted there."""

from __future__ import annotations

import json
import random
import tempfile
from collections import Counter
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ebbflow import Message, MonoVertex, NackOptions, Pipeline, Response
from ebbflow.deadletters import DeadLetters
from ebbflow.nats.locate import open_link, start_embedded
from ebbflow.spark.run import run_pipeline
from tests.spark.runs import Failures, Journal
from tests.thorough import examples

pytestmark = pytest.mark.slow


def value(datum):
    return json.loads(datum.value)["value"]


@pytest.mark.guarantee("nothing-is-lost")
def test_a_store_that_is_down_for_some_loses_nothing_and_holds_up_nobody(run, journal, tmp_path):
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

    pipeline = Pipeline("test").source("in", generator={"messages": 2_000, "rpu": 400})
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

    quick = {"interval": "20ms", "steps": 2}
    limits = {"read_batch_size": 50}
    pipeline = Pipeline("test").source("in", generator={"messages": 20_000})
    summary = run(pipeline.sink("out", careless, on_error=quick, limits=limits))

    out = summary.vertices["out"]
    assert set(journal.read()) == set(range(20_000))
    assert (out.done, out.dead_lettered) == (19_998, 2)
    assert out.read == out.ended
    letters = server_letters("test")
    assert sorted(json.loads(letter.value)["value"] for letter in letters) == [77, 15_077]
    assert all(letter.reason == "ContractViolation" for letter in letters)


BEHAVIOURS = ["ok", "ok", "ok", "drop", "raise", "nack", "limited", "fail", "two", "wrong"]
SINK_BEHAVIOURS = [
    "ok",
    "ok",
    "ok",
    "failure",
    "fallback",
    "on_success",
    "nack",
    "missing",
    "twice",
    "unknown",
    "raise",
]

topologies = st.fixed_dictionaries(
    {
        "mono": st.booleans(),
        "maps": st.integers(0, 2),
        "partitions": st.integers(1, 2),
        "fallback": st.booleans(),
        "on_success": st.booleans(),
        "retry": st.booleans(),
        "seed": st.integers(0, 2**32),
    }
)


def random_map(seed):
    def step(datum):
        # By message and delivery, so that whatever is replayed decides the same way.
        chance = random.Random(f"{seed} {datum.id} {datum.deliveries}")
        match chance.choice(BEHAVIOURS):
            case "drop":
                return None
            case "raise":
                raise ValueError("at random")
            case "nack":
                return Message.to_nack(NackOptions(delay=chance.choice([None, 20])))
            case "limited":
                return Message.to_nack(NackOptions(max_deliveries=1))
            case "fail":
                return Message.to_fail("at random")
            case "two":
                return [Message(datum.value), Message(datum.value)]
            case "wrong":
                return "text"
            case _:
                return Message(datum.value)

    return step


def random_sink(seed, journal, role):
    def sink(data):
        for datum in data:
            chance = random.Random(f"{seed} {role} {datum.id} {datum.deliveries}")
            answer = {
                "failure": lambda d: [Response.failure(d.id, "at random")],
                "fallback": lambda d: [Response.fallback(d.id)],
                "on_success": lambda d: [Response.on_success(d.id)],
                "nack": lambda d: [Response.nack(d.id, NackOptions(max_deliveries=2))],
                "missing": lambda d: [],
                "twice": lambda d: [Response.ok(d.id)] * 2,
                "unknown": lambda d: [Response.ok(d.id), Response.ok("nobody")],
                "raise": lambda d: 1 / 0,
            }.get(chance.choice(SINK_BEHAVIOURS), lambda d: [Response.ok(d.id)])
            yield from answer(datum)

    return sink


def built(plan, journal):
    seed = plan["seed"]
    retry = {"retry": {"interval": "5ms", "steps": 1}, "on_failure": "drop"}
    options = dict(retry) if plan["retry"] else {}
    for role in ("fallback", "on_success"):
        if plan[role]:
            options[role] = random_sink(seed, journal, role)
    errors = {"interval": "5ms", "steps": 1}
    sink = random_sink(seed, journal, "sink")
    if plan["mono"]:
        mono = MonoVertex("test", on_error=errors).source(
            generator={"messages": 60}, transformer=random_map(seed)
        )
        mono = mono.map(random_map(seed + 1)) if plan["maps"] else mono
        return mono.sink(sink, **options)
    pipeline = Pipeline("test").source("in", generator={"messages": 60})
    for number in range(plan["maps"]):
        step = random_map(seed + number)
        pipeline.map(f"m{number}", step, on_error=errors, partitions=plan["partitions"])
    return pipeline.sink("out", sink, on_error=errors, **options)


@pytest.mark.guarantee("nothing-is-lost", "outcomes-hold")
@settings(
    max_examples=examples(12),
    deadline=None,
    print_blob=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(plan=topologies)
def test_random_user_code_on_random_topologies_ends_every_message_exactly_once(plan):
    with tempfile.TemporaryDirectory() as folder:
        journal = Journal(Path(folder) / "journal")
        state = Path(folder) / "state"
        summary = run_pipeline(
            built(plan, journal).spec, drain=True, timeout="150s", state=state, watcher=Failures()
        )
        with start_embedded(state) as server, open_link(server) as link:
            letters = Counter(s.letter.vertex for s in DeadLetters(link, "test").list())

    assert summary.ended == "drained"
    for name, counts in summary.vertices.items():
        assert counts.read == counts.ended, name
        assert counts.dead_lettered == letters[name], name
    # What one vertex writes is what the next one reads, but for what comes back to it.
    names = list(summary.vertices)
    for before, after in pairwise(names):
        read = summary.vertices[after]
        assert summary.vertices[before].written == read.read - read.redelivered
