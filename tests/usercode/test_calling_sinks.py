"""The sink contract: N messages in, N responses out, each id once, in any order."""

import asyncio
import random
import sys
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ebbflow import Datum, Message, Nack, NackOptions, Response
from ebbflow.domain.durations import Backoff
from ebbflow.domain.message import Status
from ebbflow.domain.outcome import DeadLetter, Redeliver
from ebbflow.engine.verdict import Verdict
from ebbflow.usercode.calling import Handler, call_ranges, call_sink, call_with_retries
from tests.engine.sample_rows import POLICY, some, verdict_on


def sink_verdict(
    target, *ids: str, size: int = 100, policy: Backoff = POLICY, **columns
) -> Verdict:
    """The verdict of a sink on rows with these ids."""
    verdict = verdict_on(some(*ids or ("a", "b", "c"), **columns), policy)
    handler = Handler(target)
    call = partial(call_sink, handler, batch_size=size)
    call_with_retries(verdict, call, strategy=None, pause=never, what="sink")
    handler.close()
    return verdict


def never(_seconds: float) -> None:
    raise AssertionError("without a retry strategy nothing is waited for")


def all_ok(data: list[Datum]) -> list[Response]:
    return [Response.ok(datum.id) for datum in data]


def shuffled(data: list[Datum]) -> list[Response]:
    return random.Random(5).sample(all_ok(data), len(data))


def generated(data: list[Datum]):
    yield from all_ok(data)


async def async_ok(data: list[Datum]) -> list[Response]:
    await asyncio.sleep(0)
    return all_ok(data)


async def async_generated(data: list[Datum]):
    for response in all_ok(data):
        yield response


class SinkClass:
    def __call__(self, data: list[Datum]) -> list[Response]:
        return all_ok(data)


def returns(data: list[Datum]) -> None:
    assert data


async def returns_later(data: list[Datum]) -> None:
    await asyncio.sleep(0)


class Returns:
    def __call__(self, data: list[Datum]) -> "None":
        assert data


@pytest.mark.parametrize(
    "target",
    [returns, returns_later, Returns, Returns(), partial(returns), Returns().__call__],
    ids=["function", "async", "class", "instance", "partial", "method"],
)
def test_a_sink_annotated_none_has_written_every_message_when_it_returns(target):
    assert sink_verdict(target, *"abc").outcomes == {}


def test_a_sink_that_forgets_to_return_loses_nothing():
    def forgets(data):
        all_ok(data)

    def forgets_a_list(data) -> list[Response]:
        all_ok(data)

    for target in (forgets, forgets_a_list, lambda data: None):
        outcomes = sink_verdict(target, *"abc").outcomes
        assert len(outcomes) == 3
        assert all("annotated -> None" in outcome.reason for outcome in outcomes.values())


def test_an_exception_of_a_sink_annotated_none_fails_its_messages():
    def raises_something(data: list[Datum]) -> None:
        raise ValueError("no")

    outcomes = sink_verdict(raises_something, *"abc").outcomes
    assert [outcome.reason for outcome in outcomes.values()] == ["ValueError: no"] * 3


@pytest.mark.parametrize(
    "target",
    [
        all_ok,
        shuffled,
        generated,
        async_ok,
        async_generated,
        SinkClass,
        lambda data: async_ok(data),
        lambda data: tuple(all_ok(data)),
    ],
    ids=[
        "list",
        "any order",
        "generator",
        "async",
        "async generator",
        "class",
        "awaitable",
        "tuple",
    ],
)
def test_messages_answered_with_ok_are_done(target):
    assert sink_verdict(target, *"abcdefg", size=3).outcomes == {}


def test_every_message_keeps_its_own_answer():
    def target(data: list[Datum]) -> list[Response]:
        return [
            Response.failure("b", "no such account"),
            Response.nack("c", NackOptions(delay="5s", reason="busy")),
            Response.nack("d"),
            Response.nack("e", NackOptions(max_deliveries=0, reason="given up")),
            Response.ok("a"),
        ]

    assert sink_verdict(target, *"abcde").outcomes == {
        1: DeadLetter("sink failure", error="no such account"),
        2: Redeliver(5_000, "busy", 0),
        3: Redeliver(0, None, 0),
        4: DeadLetter("given up", error="redelivered 0 times, max_deliveries is 0"),
    }


FIX = (
    "Return exactly one Response for each message of the batch, with its id; "
    "make it with the class methods of Response."
)


@pytest.mark.guarantee("sink-contract")
@pytest.mark.parametrize(
    ("answers", "failed", "error"),
    [
        ("ab", "c", "answered 2 responses to 3 messages: no response for 1 (ids: c)"),
        ("", "abc", "answered 0 responses to 3 messages: no response for 3 (ids: a, b, c)"),
        ("abbc", "b", "answered 4 responses to 3 messages: several responses for 1 (ids: b)"),
        (
            "abx",
            "c",
            "answered 3 responses to 3 messages: no response for 1; "
            "responses for unknown ids for 1 (ids: c, x)",
        ),
    ],
)
def test_messages_without_exactly_one_response_fail_and_the_others_keep_theirs(
    answers, failed, error
):
    verdict = sink_verdict(lambda data: [Response.ok(i) for i in answers])
    expected = Redeliver(1_000, f"ContractViolation: v: {error}. {FIX}", 1)
    assert verdict.outcomes == {"abc".index(i): expected for i in failed}


def test_an_extra_response_for_an_unknown_id_fails_no_message():
    assert sink_verdict(lambda data: [*all_ok(data), Response.ok("x")]).outcomes == {}


@pytest.mark.parametrize(
    ("wrong", "what"),
    [
        (None, "NoneType where a Response belongs"),
        ("ok", "str where a Response belongs"),
        (Response.ok(5), "a Response whose id is int"),
        (Response("c", "ok"), "a Response whose status is str"),
        (
            Response("c", Status.NACK, nack_options={"delay": 5}),
            "a Response whose nack_options is dict",
        ),
        (Response("c", Status.FAILURE, error=5), "a Response whose error is int"),
    ],
    ids=repr,
)
def test_an_invalid_response_answers_no_message(wrong, what):
    verdict = sink_verdict(lambda data: [Response.ok("a"), Response.ok("b"), wrong])
    text = f"answered 3 responses to 3 messages: no response for 1; 1 x {what} (ids: c). {FIX}"
    assert verdict.outcomes == {2: Redeliver(1_000, f"ContractViolation: v: {text}", 1)}


@pytest.mark.parametrize("answers", [None, 5, "ok", b"ok", Response.ok("a")], ids=repr)
def test_a_result_that_is_not_a_list_of_responses_fails_the_batch(answers):
    verdict = sink_verdict(lambda data: answers)
    error = (
        f"ContractViolation: v: returned {type(answers).__name__} where a list of responses "
        "belongs. Return one Response for each message: [Response.ok(d.id) for d in data]. A sink "
        "that has written everything when it returns may be annotated -> None instead."
    )
    assert verdict.outcomes == {index: Redeliver(1_000, error, 1) for index in range(3)}


@pytest.mark.parametrize(
    ("response", "needed", "field"),
    [
        (Response.fallback("a"), "fallback sink", "sink.fallback"),
        (Response.serve("a", b""), "serving store", "spec.servingStore"),
        (Response.on_success("a", Message(b"")), "on-success sink", "sink.onSuccess"),
    ],
    ids=["FALLBACK", "SERVE", "ON_SUCCESS"],
)
def test_an_answer_without_the_configuration_it_needs_is_a_contract_violation(
    response, needed, field
):
    verdict = sink_verdict(lambda data: [response, Response.ok("b"), Response.ok("c")])
    error = (
        f"ContractViolation: v: answered {response.status.name}, but there is no {needed} for it "
        f"(ids: a). Configure {field}, or answer with Response.ok, .failure or .nack."
    )
    assert verdict.outcomes == {0: Redeliver(1_000, error, 1)}


@pytest.mark.guarantee("sink-contract")
def test_a_message_that_is_in_the_batch_twice_needs_two_responses():
    """Copies come from replays that decided differently; they are not the fault of the sink."""
    assert sink_verdict(all_ok, "a", "b", "a").outcomes == {}
    once = sink_verdict(lambda data: [Response.ok(i) for i in {d.id for d in data}], "a", "b", "a")
    assert once.outcomes.keys() == {0, 2}
    assert "too few responses for 1 (ids: a)" in once.outcomes[0].reason


def test_contract_violations_become_dead_letters_once_the_policy_is_used_up():
    verdict = sink_verdict(lambda data: [], "a", failures=POLICY.steps)
    assert verdict.outcomes[0].reason == "ContractViolation"


def raises(error: BaseException):
    def target(data: list[Datum]) -> list[Response]:
        if any(datum.id == "bad" for datum in data):
            raise error
        return all_ok(data)

    return target


def raises_late(data: list[Datum]):
    yield Response.ok(data[0].id)
    raise ValueError("late")


async def exits(data: list[Datum]) -> list[Response]:
    if any(datum.id == "bad" for datum in data):
        sys.exit("out")
    return all_ok(data)


@pytest.mark.parametrize(
    ("target", "reason", "failures"),
    [
        (raises(ValueError("no")), "ValueError: no", 1),
        (raises(SystemExit(3)), "SystemExit: 3", 1),
        (raises(Nack(delay="1s", reason="busy")), "busy", 0),
        (exits, "SystemExit: out", 1),
    ],
    ids=["exception", "exit", "nack", "async exit"],
)
def test_an_exception_fails_the_rows_of_its_batch_and_no_others(target, reason, failures):
    verdict = sink_verdict(target, "a", "b", "c", "bad", "d", "e", size=2)
    assert verdict.outcomes == {
        2: Redeliver(1_000, reason, failures),
        3: Redeliver(1_000, reason, failures),
    }


def test_an_exception_after_some_responses_fails_the_whole_batch():
    assert sink_verdict(raises_late).outcomes.keys() == {0, 1, 2}


def test_a_bad_message_fails_its_neighbours_only_once():
    calls: list[list[str]] = []

    def target(data: list[Datum]) -> list[Response]:
        calls.append([datum.id for datum in data])
        return raises(ValueError("no"))(data)

    verdict = sink_verdict(target, "a", "bad", "b", failures=1)
    assert calls == [["a"], ["bad"], ["b"]]
    assert verdict.outcomes.keys() == {1}


@pytest.mark.guarantee("sink-contract")
@given(st.lists(st.integers(0, 2), max_size=30), st.integers(1, 6))
def test_batches_cover_every_row_once_and_failed_rows_are_called_alone(failures, size):
    cuts = list(call_ranges(failures, size))
    assert [i for start, end in cuts for i in range(start, end)] == list(range(len(failures)))
    for start, end in cuts:
        assert 1 <= end - start <= size
        assert end - start == 1 or not any(failures[start:end])


@pytest.mark.parametrize(
    ("failures", "expected"),
    [
        ([], []),
        ([0] * 5, [(0, 3), (3, 5)]),
        ([0, 1, 0, 0], [(0, 1), (1, 2), (2, 4)]),
        ([2, 2], [(0, 1), (1, 2)]),
    ],
)
def test_batches_are_as_large_as_allowed(failures, expected):
    assert list(call_ranges(failures, 3)) == expected


@pytest.mark.parametrize("error", ["", "  ", None, 5], ids=repr)
def test_a_failure_needs_an_error_message(error):
    with pytest.raises(ValueError, match="needs an error message"):
        Response.failure("a", error)


ids_given = st.lists(st.sampled_from("abcd"), min_size=1, max_size=5)
answers_given = st.lists(
    st.builds(
        Response, st.sampled_from("abcde"), st.sampled_from([Status.OK, Status.OK, Status.NACK])
    ),
    max_size=6,
)


@given(ids_given, answers_given, st.booleans())
def test_a_list_of_responses_is_judged_like_the_same_responses_one_by_one(ids, answers, in_order):
    given_answers = [Response.ok(i) for i in ids] if in_order else answers
    at_once = sink_verdict(lambda data: given_answers, *ids)
    one_by_one = sink_verdict(lambda data: iter(given_answers), *ids)
    assert at_once.outcomes.keys() == one_by_one.outcomes.keys()
    assert [type(o) for o in at_once.outcomes.values()] == [
        type(o) for o in one_by_one.outcomes.values()
    ]
    assert not (in_order and at_once.outcomes)
