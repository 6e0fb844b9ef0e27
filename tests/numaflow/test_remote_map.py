"""Maps and transformers in processes of their own decide as those in this process do."""

import json
import sys
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from ebbflow.domain.errors import ContractViolation, StreamBroken, Unavailable
from ebbflow.domain.outcome import DeadLetter, Redeliver, Retry
from ebbflow.engine.blame import POSTPONED
from ebbflow.engine.verdict import EMPTY, Failure, Verdict
from ebbflow.numaflow import function_session
from ebbflow.numaflow.function_session import Failures
from ebbflow.numaflow.process import FunctionPlan
from ebbflow.numaflow.remote import RemoteMap
from ebbflow.usercode.call_watch import RUNNING
from ebbflow.usercode.calling import Handler, run_columnar
from ebbflow.usercode.columns import select_columns
from tests.engine.sample_rows import NOW, some, verdict_on
from tests.numaflow.odd_map import Gathering, OddMap, OddTransformer

Make = Callable[..., tuple[OddMap, RemoteMap]]


@pytest.fixture
def made(tmp_path: Path) -> Iterator[Make]:
    """Starts a function and what calls it."""
    started: list[tuple[OddMap, RemoteMap]] = []

    def make(
        kind: type[OddMap] = OddMap,
        mode: str = "unary-map",
        size: int = 500,
        language: str = "python",
    ) -> tuple[OddMap, RemoteMap]:
        function = kind(tmp_path, mode, language)
        function.start()
        code = RemoteMap(function.plan, "v", size, size)
        started.append((function, code))
        code.open()
        return started[-1]

    yield make
    for function, code in started:
        code.close()
        function.stop()


def rows(*values: str, **columns: Any):
    texts = [value.encode() for value in values]
    names = columns.pop("ids", [f"m{n}" for n in range(len(values))])
    return some(
        *names, value=texts, event_time=columns.pop("event_time", [NOW] * len(values)), **columns
    )


def decide(code: RemoteMap, *values: str, **columns: Any) -> Verdict:
    """The verdict of a vertex that calls the function with these messages."""
    verdict = verdict_on(rows(*values, **columns))
    run_columnar(Handler(code), verdict, 8_192, False)
    return verdict


def call(code: RemoteMap, *values: str) -> Failures:
    return code(select_columns(rows(*values)))[1]


def outputs(verdict: Verdict) -> list[tuple[str, bytes]]:
    found = verdict.outputs.batch(verdict.rows, "v", NOW).to_pylist()
    return [(row["id"], row["value"]) for row in found]


def passed_on(*values: str) -> list[tuple[str, bytes]]:
    return [(f"m{n}/v", value.upper().encode()) for n, value in enumerate(values) if value]


MODES = ["unary-map", "batch-map", "stream-map"]


# --- answers ------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", MODES)
def test_a_function_decides_the_outcome_of_each_message(made, mode):
    _, code = made(mode=mode)
    values = [
        "a",
        "drop",
        "none",
        "fail it is bad",
        "fail",
        "nack",
        "many x y",
        "metadata G K",
        "z",
    ]
    verdict = decide(code, *values, keys=[["k"]] * 9)
    assert verdict.outcomes == {
        1: EMPTY,
        2: EMPTY,
        5: DeadLetter("busy", error="redelivered 0 times, max_deliveries is 0"),
    }
    assert verdict.decisions.failed == {3: Failure("it is bad", 0), 4: Failure("failed", 0)}
    assert outputs(verdict) == [
        ("m0/v", b"A"),
        ("m6/v", b"x"),
        ("m6/v.1", b"y"),
        ("m7/v", b""),
        ("m8/v", b"Z"),
    ]
    assert [list(tags) for tags in verdict.outputs.tags] == [[], ["x"], ["y"], [], []]
    changed = verdict.outputs.batch(verdict.rows, "v", NOW).to_pylist()[3]
    assert (changed["keys"], changed["metadata"]) == (["new"], [("G", [("K", b"new")])])


@pytest.mark.parametrize("few", [True, False], ids=["few", "many"])
def test_a_function_receives_every_field_of_a_message(made, few):
    _, code = made()
    count = 1 if few else 50
    verdict = verdict_on(
        rows(
            *["tell"] * count,
            keys=[["k", "ü"]] * count,
            headers=[[("h", "1")]] * count,
            metadata=[[("g", [("a", b"b")])]] * count,
            deliveries=[3] * count,
        )
    )
    verdict.rows.watermark = datetime(2025, 1, 1, tzinfo=UTC)
    run_columnar(Handler(code), verdict, 8_192, False)
    for _, value in outputs(verdict):
        assert json.loads(value) == {
            "keys": ["k", "ü"],
            "headers": {"h": "1"},
            "event_time": NOW.isoformat().replace("+00:00", "Z"),
            "watermark": "2025-01-01T00:00:00Z",
            "metadata": {"g": {"a": "b"}},
            "deliveries": "3",
        }
    said = verdict.outputs.batch(verdict.rows, "v", NOW).to_pylist()[0]
    assert (said["keys"], said["metadata"]) == ([], [])  # as in Numaflow: it set none
    assert said["headers"] == [("h", "1")]


def test_outputs_are_in_the_order_of_the_inputs_whichever_arrives_first(made):
    _, code = made()
    values = ["late", "late", "b", "late", "c"] * 20
    assert outputs(decide(code, *values)) == passed_on(*values)


def test_at_most_as_many_messages_are_in_flight_as_the_vertex_allows(made):
    function, code = made(Gathering, size=4)
    values = [f"a{n}" for n in range(40)]
    assert outputs(decide(code, *values)) == [(f"m{n}/v", b"A%d" % n) for n in range(40)]
    assert function.most == 4


def test_a_batch_map_gets_batches_of_the_size_of_the_vertex(made):
    function, code = made(mode="batch-map", size=4)
    values = [f"a{n}" for n in range(10)]
    assert outputs(decide(code, *values)) == passed_on(*values)
    assert function.batches == [4, 4, 2]


def test_a_batch_map_may_end_its_stream_with_each_batch(made):
    function, code = made(mode="batch-map", size=4)
    function.ends_with_each_batch = True
    values = [f"a{n}" for n in range(10)]
    assert outputs(decide(code, *values)) == passed_on(*values)
    assert function.batches == [4, 4, 2]


def test_a_stream_map_may_answer_in_order_without_ids(made):
    function, code = made(mode="stream-map")
    function.leaves_out_ids = True
    verdict = decide(code, "a", "many x y", "none", "b")
    assert outputs(verdict) == [("m0/v", b"A"), ("m1/v", b"x"), ("m1/v.1", b"y"), ("m3/v", b"B")]
    assert verdict.outcomes == {2: EMPTY}


@pytest.mark.parametrize("mode", MODES)
def test_each_copy_of_a_message_in_one_call_is_answered(made, mode):
    _, code = made(mode=mode)
    assert outputs(decide(code, "a", "b", "a", ids=["i", "j", "i"])) == [
        ("i/v", b"A"),
        ("j/v", b"B"),
        ("i/v", b"A"),
    ]


def test_a_transformer_sets_event_times_and_those_of_nacked_messages_count(made):
    _, code = made(OddTransformer)
    verdict = decide(code, "a", "time 1000000000", "nack 900000000", "time -60", "tell")
    found = verdict.outputs.batch(verdict.rows, "v", NOW).to_pylist()
    assert [row["event_time"] for row in found] == [
        NOW,
        datetime(2001, 9, 9, 1, 46, 40, tzinfo=UTC),
        datetime(1969, 12, 31, 23, 59, tzinfo=UTC),
        NOW,
    ]
    assert json.loads(found[3]["value"])["watermark"] == "1969-12-31T23:59:59.999Z"
    assert verdict.outcomes == {2: Redeliver(0, None, 0)}
    assert verdict.decisions.event_times == [datetime(1998, 7, 9, 16, tzinfo=UTC)]
    assert min(verdict.gather_event_times()) == datetime(1969, 12, 31, 23, 59, tzinfo=UTC)


# --- breaks -------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", MODES)
def test_only_the_message_on_which_a_function_fails_is_penalised(made, mode):
    function, code = made(mode=mode)
    values = [f"a{n}" for n in range(20)] + ["raise"] + [f"b{n}" for n in range(20)]
    verdict = decide(code, *values)
    assert verdict.outcomes == {20: Redeliver(1_000, "boom", 1)}
    assert outputs(verdict) == passed_on(*["" if v == "raise" else v for v in values])
    assert function.seen["raise"] == 2
    assert max(function.seen.values()) == 2
    assert outputs(decide(code, "more")) == [("m0/v", b"MORE")]


def test_outputs_that_a_stream_map_sent_before_it_failed_are_discarded(made):
    _, code = made(mode="stream-map")
    verdict = decide(code, "a", "half", "b")
    assert verdict.outcomes == {1: Redeliver(1_000, "boom", 1)}
    assert outputs(verdict) == passed_on("a", "", "b")


def test_a_function_that_ends_its_stream_without_an_error_is_broken(made):
    _, code = made()
    verdict = decide(code, "a", "close", "b")
    said = "StreamBroken: the function ended the stream before it had answered"
    assert verdict.outcomes == {1: Redeliver(1_000, said, 1)}
    assert outputs(verdict) == passed_on("a", "", "b")


def test_a_system_that_user_code_reports_as_unavailable_penalises_no_message(made):
    function, code = made()
    verdict = decide(code, "a", "away", "b")
    assert verdict.outcomes == {1: Retry(POSTPONED, "Unavailable: boom", 0, 0)}
    assert outputs(verdict) == passed_on("a", "", "b")
    assert function.seen["away"] == 2


def test_the_remaining_messages_are_not_tried_while_a_system_is_unavailable(made):
    function, code = made()
    handler = Handler(code)
    verdict = verdict_on(rows("a", *[f"away{n}" for n in range(20)]))
    run_columnar(handler, verdict, 8_192, False)
    assert {type(outcome) for outcome in verdict.outcomes.values()} == {Retry}
    assert verdict.outcomes.keys() == set(range(1, 21))
    assert sum(count == 2 for count in function.seen.values()) <= 3
    assert outputs(verdict) == [("m0/v", b"A")]


def test_a_function_that_fails_on_every_message_is_soon_left_alone(made):
    function, code = made()
    failures = call(code, *[f"raise{n}" for n in range(40)])
    assert [type(error) for error in failures.values()] == [StreamBroken] * 10 + [type(None)] * 30
    assert function.seen.total() <= 11 + 40


def test_a_message_that_is_never_answered_times_out_and_the_others_are_forwarded(made, monkeypatch):
    monkeypatch.setattr(RUNNING, "limit", 0.3)
    function, code = made()
    verdict = decide(code, "a", "silent", "b")
    assert verdict.outcomes.keys() == {1}
    assert verdict.outcomes[1].reason.startswith("CallTimeout: the call did not return within")
    assert outputs(verdict) == passed_on("a", "", "b")
    assert function.seen == {"a": 1, "silent": 2, "b": 1}


def test_a_function_that_becomes_unreachable_is_an_outage(made, monkeypatch):
    function, code = made()
    monkeypatch.setattr(code._session.process, "_limit", 0.5)
    verdict = decide(code, "a", "stop", "b")
    assert outputs(verdict) == passed_on("a", "", "")
    assert {type(outcome) for outcome in verdict.outcomes.values()} == {Retry}
    assert verdict.outcomes.keys() == {1, 2}
    function.start()
    code.open()
    assert outputs(decide(code, "c")) == [("m0/v", b"C")]


def test_a_function_that_ended_between_calls_is_reopened_and_penalises_no_message(
    made, monkeypatch
):
    function, code = made()
    assert call(code, "a") == {}
    function.stop()
    function.start()
    monkeypatch.setattr(
        function_session, "_ask_one_by_one", lambda *_: pytest.fail("one message at a time")
    )
    assert call(code, *["b"] * 100) == {}
    assert function.seen["b"] == 100


def test_a_missing_function_cannot_be_opened(tmp_path):
    code = RemoteMap(FunctionPlan("udf", folder=str(tmp_path)))
    code._session.process._limit = 0.1
    with pytest.raises(Unavailable):
        code.open()


# --- violations ---------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["unary-map", "batch-map"])
@pytest.mark.parametrize(
    ("verb", "what"),
    [
        ("unknown", "answered the unknown id 'nobody'"),
        ("twice", "answered the id 'm1' more than once"),
    ],
)
def test_an_answer_that_belongs_to_no_request_is_named_in_the_error(made, mode, verb, what):
    _, code = made(mode=mode)
    failures = call(code, "a", verb, "b")
    assert {type(error) for error in failures.values()} == {ContractViolation}
    assert {error.what for error in failures.values()} == {what}
    assert 1 in failures
    assert call(code, "c", "d") == {}


def test_a_batch_with_fewer_answers_than_requests_fails_the_unanswered_messages(made):
    _, code = made(mode="batch-map")
    failures = call(code, "a", "silent", "b")
    assert failures.keys() == {1}
    assert failures[1].what == "did not answer all requests of a batch"
    assert failures[1].ids == ("m1",)


# --- a process ----------------------------------------------------------------------------------


FUNCTION = """
import os
from pynumaflow.mapper import Mapper, MapServer, Message, Messages

def handle(keys, datum):
    if datum.value == b"exit":
        os._exit(3)
    return Messages(Message(datum.value.upper(), keys=keys))

MapServer(handle).start()
"""


@pytest.mark.slow
def test_a_message_that_ends_the_process_of_a_function_is_found_and_fails_alone(tmp_path):
    script = tmp_path / "function.py"
    script.write_text(FUNCTION)
    plan = FunctionPlan("udf", image="odd", command=(sys.executable, str(script)))
    handler = Handler(partial(RemoteMap, plan, vertex="v"))
    try:
        verdict = verdict_on(rows(*["a"] * 30, "exit", *["b"] * 30))
        run_columnar(handler, verdict, 8_192, False)
        assert verdict.outcomes.keys() == {30}
        assert "it ended with code 3" in verdict.outcomes[30].reason
        assert len(outputs(verdict)) == 60
    finally:
        handler.close()
