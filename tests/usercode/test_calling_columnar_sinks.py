"""The contract of a columnar sink: a record batch in, and out what is not simply written."""

import asyncio
from functools import partial

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ebbflow import Message, Nack, NackOptions, Response, Unavailable
from ebbflow.domain.durations import Backoff
from ebbflow.domain.message import Status
from ebbflow.domain.outcome import DeadLetter, Redeliver, Retry
from ebbflow.engine.retry import RetryStrategy
from ebbflow.engine.verdict import Verdict
from ebbflow.usercode.calling import Handler, call_sink, call_with_retries, run_columnar_sink
from ebbflow.usercode.columns import COLUMNS
from ebbflow.usercode.contract import UNTRIED
from tests.engine.sample_rows import POLICY, some, verdict_on

FIX = (
    "Return None when all rows are written, or {row: response} for the others, counting rows from "
    "0. Make responses with the class methods of Response, without an id and the rest by name."
)
EVERY = frozenset(Status)


def sink_verdict(
    target,
    *ids: str,
    size: int = 100,
    pandas: bool = False,
    strategy: RetryStrategy | None = None,
    allowed: frozenset[Status] = frozenset(),
    **columns,
) -> Verdict:
    """The verdict of a columnar sink on rows with these ids."""
    verdict = verdict_on(some(*ids or ("a", "b", "c"), **columns), allowed=allowed)
    handler = Handler(target)
    call = partial(run_columnar_sink, handler, batch_size=size, pandas=pandas)
    call_with_retries(verdict, call, strategy, lambda _: None, "sink")
    handler.close()
    return verdict


async def async_nothing(batch: pa.RecordBatch) -> None:
    await asyncio.sleep(0)


class SinkClass:
    def __call__(self, batch: pa.RecordBatch) -> dict[int, Response]:
        return {}


@pytest.mark.parametrize(
    "target",
    [
        lambda batch: None,
        lambda batch: {},
        lambda batch: {0: Response.ok()},
        async_nothing,
        SinkClass,
    ],
    ids=["None", "empty", "ok", "async", "class"],
)
def test_rows_that_the_result_does_not_name_are_done(target):
    assert sink_verdict(target, *"abcdefg", size=3).outcomes == {}


def test_a_call_gets_the_columns_of_its_rows():
    calls: list[pa.RecordBatch] = []
    sink_verdict(calls.append, *"abcde", size=2, retries=[0, 1, 2, 3, 4])
    assert [batch.schema.names for batch in calls] == [[*COLUMNS, "watermark"]] * 3
    assert [batch.column("id").to_pylist() for batch in calls] == [["a", "b"], ["c", "d"], ["e"]]
    assert [batch.column("retries").to_pylist() for batch in calls] == [[0, 1], [2, 3], [4]]


def test_a_pandas_sink_gets_data_frames():
    frames = []
    sink_verdict(frames.append, *"ab", pandas=True)
    assert [type(frame).__name__ for frame in frames] == ["DataFrame"]
    assert list(frames[0]["value"]) == [b"a", b"b"]


def test_every_row_keeps_its_own_answer():
    def target(batch: pa.RecordBatch) -> dict[int, Response]:
        return {
            1: Response.failure(error="no such account"),
            2: Response.nack(reason="busy", delay="5s"),
            3: Response.nack(),
            4: Response.nack(reason="given up", max_deliveries=0),
        }

    assert sink_verdict(target, *"abcde").outcomes == {
        1: DeadLetter("sink failure", error="no such account"),
        2: Redeliver(5_000, "busy", 0, NackOptions(5_000, reason="busy")),
        3: Redeliver(0, None, 0),
        4: DeadLetter("given up", error="redelivered 0 times, max_deliveries is 0"),
    }


def test_an_exception_in_place_of_an_answer_becomes_the_failure_of_its_row():
    verdict = sink_verdict(lambda batch: {1: ValueError("bad data"), 2: Response.nack()}, *"abc")
    assert verdict.outcomes == {
        1: Redeliver(1_000, "ValueError: bad data", 1),
        2: verdict.outcomes[2],
    }


def test_a_system_that_is_unavailable_for_one_row_penalises_no_row():
    verdict = sink_verdict(lambda batch: {1: Unavailable("the function")}, *"abc")
    assert verdict.outcomes == {1: Retry(500, "Unavailable: the function", 0, 0)}


def test_a_row_that_was_not_tried_is_redelivered_without_a_penalty():
    verdict = sink_verdict(lambda batch: {1: ValueError("bad"), 2: UNTRIED}, *"abc")
    assert verdict.outcomes == {
        1: Redeliver(1_000, "ValueError: bad", 1),
        2: Retry(500, "not tried: others failed before it", 0, 0),
    }


def test_rows_are_numbered_from_the_start_of_their_call():
    verdict = sink_verdict(lambda batch: {1: Response.nack()}, *"abcdef", size=2)
    assert verdict.outcomes.keys() == {1, 3, 5}


def test_a_columnar_sink_can_answer_fallback_serve_and_on_success():
    message = Message(b"stored")

    def target(batch: pa.RecordBatch) -> dict[int, Response]:
        return {
            0: Response.fallback(),
            1: Response.serve(payload=b"answer"),
            2: Response.on_success(message=message),
            3: Response.on_success(),
        }

    verdict = sink_verdict(target, *"abcde", allowed=EVERY)
    assert verdict.outcomes == {}
    assert verdict.decisions.fallback.keys() == {0}
    assert verdict.decisions.served == {1: b"answer"}
    assert verdict.decisions.on_success == {2: message, 3: None}


@pytest.mark.guarantee("sink-contract")
@pytest.mark.parametrize(
    ("answers", "failed", "error"),
    [
        (
            {1: "ok"},
            {1},
            "returned responses for 1 of 3 rows: 1 x str where a Response belongs (ids: b)",
        ),
        (
            {0: Response.nack("busy"), 2: Response.ok()},
            {0},
            "returned responses for 2 of 3 rows: 1 x a Response with an id, or with another "
            "argument passed as the id (ids: a)",
        ),
        (
            {2: Response("", Status.FAILURE, error=5)},
            {2},
            "returned responses for 1 of 3 rows: 1 x a Response whose error is int (ids: c)",
        ),
        (
            {3: Response.ok()},
            {0, 1, 2},
            "returned responses for 1 of 3 rows: 1 x a response for row 3 of 3",
        ),
        (
            {-1: Response.ok(), 1: Response.ok()},
            {0, 2},
            "returned responses for 2 of 3 rows: 1 x a response for row -1 of 3",
        ),
        (
            {"b": Response.ok()},
            {0, 1, 2},
            "returned responses for 1 of 3 rows: 1 x a response for row 'b' of 3",
        ),
        (
            {True: Response.ok()},
            {0, 1, 2},
            "returned responses for 1 of 3 rows: 1 x a response for row True of 3",
        ),
    ],
    ids=[
        "no answer",
        "an id",
        "wrong fact",
        "after the last",
        "before",
        "an id for a row",
        "bool",
    ],
)
def test_rows_without_a_valid_answer_fail_and_the_others_keep_theirs(answers, failed, error):
    verdict = sink_verdict(lambda batch: answers)
    expected = Redeliver(1_000, f"ContractViolation: v: {error}. {FIX}", 1)
    assert verdict.outcomes == dict.fromkeys(failed, expected)


@pytest.mark.parametrize("answers", [[], True, b"ok", [Response.ok()]], ids=repr)
def test_a_result_that_is_not_a_mapping_fails_the_call(answers):
    verdict = sink_verdict(lambda batch: answers)
    error = (
        f"ContractViolation: v: returned {type(answers).__name__} where None or a mapping "
        f"from rows to responses belongs. {FIX}"
    )
    assert verdict.outcomes == dict.fromkeys(range(3), Redeliver(1_000, error, 1))


@pytest.mark.parametrize(
    ("answer", "needed", "field"),
    [
        (Response.fallback(), "fallback sink", "sink.fallback"),
        (Response.serve(payload=b""), "serving store", "spec.servingStore"),
        (Response.on_success(), "on-success sink", "sink.onSuccess"),
    ],
    ids=["FALLBACK", "SERVE", "ON_SUCCESS"],
)
def test_an_answer_without_the_configuration_it_needs_is_a_contract_violation(
    answer, needed, field
):
    verdict = sink_verdict(lambda batch: {0: answer})
    error = (
        f"ContractViolation: v: answered {answer.status.name}, but there is no {needed} for it "
        f"(ids: a). Configure {field}, or answer with Response.ok, .failure or .nack."
    )
    assert verdict.outcomes == {0: Redeliver(1_000, error, 1)}


@pytest.mark.parametrize("error", ["", "  ", None, 5], ids=repr)
def test_a_failure_needs_an_error_message(error):
    with pytest.raises(ValueError, match="needs an error message"):
        Response.failure(error=error)


def test_only_failed_rows_are_retried_and_their_retries_are_counted():
    calls: list[list[tuple[str, int]]] = []

    def target(batch: pa.RecordBatch) -> dict[int, Response]:
        ids, retries = (batch.column(name).to_pylist() for name in ("id", "retries"))
        calls.append(list(zip(ids, retries, strict=True)))
        return {ids.index("b"): Response.failure(error="not yet")} if len(calls) < 3 else {}

    verdict = sink_verdict(target, strategy=RetryStrategy(Backoff("1ms", steps=5)))
    assert calls == [[("a", 0), ("b", 0), ("c", 0)], [("b", 1)], [("b", 2)]]
    assert verdict.outcomes == {}


def test_a_bad_row_fails_its_neighbours_only_once():
    calls: list[list[str]] = []

    def target(batch: pa.RecordBatch) -> None:
        calls.append(batch.column("id").to_pylist())
        if "bad" in calls[-1]:
            raise ValueError("no")

    first = sink_verdict(target, "a", "bad", "b")
    assert first.outcomes.keys() == {0, 1, 2}
    calls.clear()
    second = sink_verdict(target, "a", "bad", "b", failures=1)
    assert calls == [["a"], ["bad"], ["b"]]
    assert second.outcomes.keys() == {1}


def test_after_a_large_call_fails_its_rows_are_tried_alone_or_redelivered():
    def target(batch: pa.RecordBatch) -> None:
        if "7" in batch.column("id").to_pylist():
            raise ValueError("no")

    verdict = sink_verdict(target, *map(str, range(20)))
    assert 0 not in verdict.outcomes  # it was tried alone, and passed
    assert {type(outcome) for outcome in verdict.outcomes.values()} == {Redeliver}


def test_a_nack_raised_by_a_call_nacks_all_its_rows():
    def target(batch: pa.RecordBatch) -> None:
        raise Nack(delay="5ms", reason="busy")

    options = NackOptions(5, reason="busy")
    assert sink_verdict(target).outcomes == dict.fromkeys(
        range(3), Redeliver(5, "busy", 0, options)
    )


@pytest.mark.parametrize(
    "target",
    [
        lambda batch: dict.fromkeys(range(3), Response.unavailable(what="the database")),
        lambda batch: (_ for _ in ()).throw(Unavailable("the database")),
        lambda batch: (_ for _ in ()).throw(ConnectionError("no route")),
    ],
    ids=["answers", "Unavailable", "ConnectionError"],
)
def test_a_system_that_is_unavailable_for_all_rows_is_an_outage_and_penalises_none(target):
    verdict = verdict_on(some("a", "b", "c"))
    handler = Handler(target)
    run_columnar_sink(handler, verdict, batch_size=100, pandas=False)
    assert {type(outcome) for outcome in verdict.outcomes.values()} == {Retry}
    assert {outcome.failures for outcome in verdict.outcomes.values()} == {0}
    assert handler.blame.outage is not None


def test_one_unavailable_row_next_to_others_that_pass_is_not_an_outage():
    verdict = verdict_on(some("a", "b", "c"))
    handler = Handler(
        lambda batch: {1: Response.unavailable(what="the database", retry_after="2s")}
    )
    run_columnar_sink(handler, verdict, batch_size=100, pandas=False)
    assert verdict.outcomes.keys() == {1}
    assert handler.blame.outage is None


def test_an_ordered_vertex_stops_at_a_redelivered_row():
    calls: list[list[str]] = []

    def target(batch: pa.RecordBatch) -> dict[int, Response]:
        calls.append(batch.column("id").to_pylist())
        return {1: Response.nack()} if "b" in calls[-1] else {}

    rows = some(*"abcd", keys=[["k"], ["l"], ["k"], ["l"]])
    verdict = verdict_on(rows, POLICY, ordered=True)
    run_columnar_sink(Handler(target), verdict, batch_size=100, pandas=False)
    assert calls == [["a", "b"]]
    assert verdict.first_held() == 1


statuses = st.sampled_from(["ok", "failure", "nack", "fallback", "serve", "unavailable"])


@given(st.lists(statuses, min_size=1, max_size=8), st.integers(1, 8))
def test_a_columnar_sink_decides_like_a_sink_that_returns_the_same_answers_in_a_list(kinds, size):
    made = {
        "ok": Response.ok,
        "failure": partial(Response.failure, error="no"),
        "nack": partial(Response.nack, reason=NackOptions(7, reason="later")),
        "fallback": Response.fallback,
        "serve": partial(Response.serve, payload=b"yes"),
        "unavailable": partial(Response.unavailable, what="it"),
    }
    ids = [str(number) for number in range(len(kinds))]

    def listed(data):
        return [made[kinds[int(datum.id)]](datum.id) for datum in data]

    def in_rows(batch):
        rows = enumerate(batch.column("id").to_pylist())
        return {row: made[kinds[int(i)]]() for row, i in rows if kinds[int(i)] != "ok"}

    one, other = (verdict_on(some(*ids), allowed=EVERY, has_fallback=True) for _ in range(2))
    call_sink(Handler(listed), one, size)
    run_columnar_sink(Handler(in_rows), other, size, pandas=False)
    assert one.outcomes == other.outcomes
    for name in ("failed", "fallback", "served", "unreached"):
        assert getattr(one.decisions, name) == getattr(other.decisions, name)


@given(
    st.lists(st.sampled_from(["ok", "error", "away", "untried", "nack"]), min_size=1, max_size=12),
    st.integers(1, 12),
)
def test_a_row_without_an_answer_is_redelivered_and_only_its_own_error_is_counted(kinds, size):
    answers = {
        "error": ValueError("bad"),
        "away": Unavailable("it"),
        "untried": UNTRIED,
        "nack": Response.nack(),
    }

    def target(batch: pa.RecordBatch) -> dict[int, object]:
        rows = enumerate(batch.column("id").to_pylist())
        return {row: answers[kinds[int(i)]] for row, i in rows if kinds[int(i)] != "ok"}

    verdict = verdict_on(some(*(str(number) for number in range(len(kinds)))))
    run_columnar_sink(Handler(target), verdict, size, pandas=False)
    for row, kind in enumerate(kinds):
        outcome = verdict.outcomes.get(row)
        left = isinstance(outcome, Retry) and outcome.failures == 0
        expected = {
            "ok": outcome is None,
            "error": isinstance(outcome, Redeliver) and outcome.failures == 1,
            "nack": outcome == Redeliver(0, None, 0),
        }
        # After calls that met an outage the rest stays untouched, whatever it would have answered.
        assert left or expected.get(kind, False), (row, kind, outcome)
        assert left or kind not in ("away", "untried")
    if not {"away", "error", "untried"} & set(kinds):
        assert not any(isinstance(outcome, Retry) for outcome in verdict.outcomes.values())
