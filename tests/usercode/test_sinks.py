"""A sink with the sinks next to it: every answer, configured or not."""

import sys
from functools import partial
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ebbflow import Datum, Message, Nack, NackOptions, Response
from ebbflow.domain.durations import Backoff
from ebbflow.domain.message import Status
from ebbflow.domain.outcome import DeadLetter, FellBack, Redeliver, Retry, Served, Succeeded
from ebbflow.engine.blame import Blame
from ebbflow.engine.retry import RetryStrategy
from ebbflow.engine.verdict import Verdict
from ebbflow.usercode import sinks as sinking
from ebbflow.usercode.calling import Handler, call_sink
from ebbflow.usercode.sinks import Sinks, request_id, run_sinks
from tests.engine.sample_rows import some, verdict_on

ANSWERS: dict[str, Any] = {
    "ok": Response.ok,
    "failure": lambda i: Response.failure(i, "no such account"),
    "fallback": Response.fallback,
    "serve": lambda i: Response.serve(i, b"answer"),
    "on_success": Response.on_success,
    "nack": lambda i: Response.nack(i, NackOptions(delay="5s", reason="busy")),
    "used up": lambda i: Response.nack(i, NackOptions(max_deliveries=0, reason="given up")),
}
PLAIN = ("ok", "failure", "nack", "used up")


class Sink:
    """Gives each id its named answer, or all of them the same; keeps what it received."""

    def __init__(self, answer: str | dict[str, str] = "ok") -> None:
        self._answer = answer
        self.received: list[tuple[str, bytes, list[str]]] = []

    def __call__(self, data: list[Datum]) -> list[Response]:
        self.received += [(d.id, d.value, d.keys) for d in data]
        return [ANSWERS[self.answer_for(d)](d.id) for d in data]

    def answer_for(self, datum: Datum) -> str:
        return self._answer if isinstance(self._answer, str) else self._answer[datum.id]

    @property
    def ids(self) -> list[str]:
        return [i for i, _, _ in self.received]


def call_of(target: Any, size: int = 100) -> Any:
    return partial(call_sink, Handler(target), batch_size=size)


def no_pause(_seconds: float) -> None:
    pass


def sink_verdict(
    primary: Any,
    *ids: str,
    fallback: Any = None,
    on_success: Any = None,
    strategy: RetryStrategy | None = None,
    ordered: bool = False,
    largest: int = 1_000,
    columns: dict[str, Any] | None = None,
    **more: Any,
) -> Verdict:
    """The verdict of these sinks on rows with these ids."""
    rows = some(*ids or ("a",), **columns or {})
    verdict = verdict_on(rows, largest=largest, ordered=ordered)
    sinks = Sinks(
        call_of(primary),
        call_of(fallback) if fallback else None,
        call_of(on_success) if on_success else None,
        strategy,
        **more,
    )
    run_sinks(verdict, sinks, no_pause)
    left = verdict.decisions
    assert (left.failed, left.fallback, left.on_success, left.served) == ({}, {}, {}, {})
    return verdict


NO_ACCOUNT = "no such account"
GIVEN_UP = DeadLetter("given up", error="redelivered 0 times, max_deliveries is 0")


@pytest.mark.guarantee("outcomes-hold")
@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        ("ok", {}),
        ("failure", {0: DeadLetter("sink failure", error=NO_ACCOUNT)}),
        ("fallback", {0: FellBack()}),
        ("serve", {0: Served()}),
        ("on_success", {0: Succeeded()}),
        ("nack", {0: Redeliver(5_000, "busy", 0)}),
        ("used up", {0: FellBack()}),
    ],
)
def test_every_answer_has_its_outcome_when_everything_is_configured(answer, expected):
    verdict = sink_verdict(Sink(answer), fallback=Sink(), on_success=Sink(), serves=True)
    assert verdict.outcomes == expected
    assert verdict.answers == ({0: [b"answer"]} if answer == "serve" else {})


@pytest.mark.parametrize("answer", PLAIN)
def test_the_plain_answers_need_no_configuration(answer):
    assert (
        sink_verdict(Sink(answer)).outcomes
        == {
            "ok": {},
            "failure": {0: DeadLetter("sink failure", error=NO_ACCOUNT)},
            "nack": {0: Redeliver(5_000, "busy", 0)},
            "used up": {0: GIVEN_UP},
        }[answer]
    )


def violation(status: str, needed: str, field: str) -> str:
    return (
        f"ContractViolation: v: answered {status}, but there is no {needed} for it (ids: a). "
        f"Configure {field}, or answer with Response.ok, .failure or .nack."
    )


VIOLATIONS = {
    "fallback": violation("FALLBACK", "fallback sink", "sink.fallback"),
    "serve": violation("SERVE", "serving store", "spec.servingStore"),
    "on_success": violation("ON_SUCCESS", "on-success sink", "sink.onSuccess"),
}


@pytest.mark.guarantee("sink-contract")
@pytest.mark.parametrize("answer", VIOLATIONS)
def test_an_answer_that_is_not_configured_is_a_violation_even_if_all_others_are(answer):
    everything = {"fallback": Sink(), "on_success": Sink(), "serves": True}
    left_out = everything | {{"serve": "serves"}.get(answer, answer): None}
    verdict = sink_verdict(Sink({"a": answer, "b": "ok"}), "a", "b", **left_out)
    assert verdict.outcomes == {0: Redeliver(1_000, VIOLATIONS[answer], 1)}


@pytest.mark.parametrize(
    ("place", "name"), [("fallback", "fallback sink"), ("on_success", "on-success sink")]
)
@pytest.mark.parametrize("answer", VIOLATIONS)
def test_fallback_and_on_success_sinks_may_not_pass_messages_on_and_are_named(place, name, answer):
    """Though the vertex has everything that the answer would need."""
    secondary = {"fallback": Sink(), "on_success": Sink(), "serves": True} | {place: Sink(answer)}
    verdict = sink_verdict(Sink(place), **secondary)
    expected = (
        f"ContractViolation: v: its {name} answered {answer.upper()}, which only the primary sink "
        "can (ids: a). There, answer with Response.ok, .failure or .nack."
    )
    assert verdict.outcomes == {0: Redeliver(1_000, expected, 1)}


@pytest.mark.guarantee("outcomes-hold")
@pytest.mark.parametrize(
    ("place", "fine", "name"),
    [("fallback", FellBack(), "fallback sink"), ("on_success", Succeeded(), "on-success sink")],
)
@pytest.mark.parametrize("answer", PLAIN)
def test_the_last_sink_that_a_message_reached_decides_its_outcome(place, fine, name, answer):
    secondary = Sink(answer)
    verdict = sink_verdict(Sink(place), **{place: secondary})
    assert secondary.ids == ["a"]
    assert verdict.outcomes == {
        0: {
            "ok": fine,
            "failure": DeadLetter(f"{name} failure", error=NO_ACCOUNT),
            "nack": Redeliver(5_000, "busy", 0),
            "used up": GIVEN_UP,
        }[answer]
    }


@pytest.mark.guarantee("outcomes-hold")
@pytest.mark.parametrize("place", ["fallback", "on_success"])
@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (ValueError("no"), Redeliver(1_000, "ValueError: no", 1)),
        (Nack(delay="7ms"), Redeliver(7, None, 0)),
        (SystemExit(3), Redeliver(1_000, "SystemExit: 3", 1)),
    ],
    ids=repr,
)
def test_an_exception_of_another_sink_redelivers_only_the_messages_it_received(
    place, error, expected
):
    def secondary(data: list[Datum]) -> list[Response]:
        raise error

    verdict = sink_verdict(Sink({"a": "ok", "b": place, "c": "nack"}), *"abc", **{place: secondary})
    assert verdict.outcomes == {1: expected, 2: Redeliver(5_000, "busy", 0)}


def test_a_nacked_message_at_its_max_deliveries_goes_to_the_fallback_sink():
    fallback = Sink()
    options = NackOptions(max_deliveries=2, reason="given up")

    def primary(data: list[Datum]) -> list[Response]:
        return [Response.nack(d.id, options) for d in data]

    columns = {"deliveries": [2, 3, 4]}
    verdict = sink_verdict(primary, *"abc", fallback=fallback, columns=columns)
    assert verdict.outcomes == {0: Redeliver(0, "given up", 0), 1: FellBack(), 2: FellBack()}
    assert fallback.ids == ["b", "c"]
    without = sink_verdict(primary, *"abc", columns=columns)
    assert [type(o) for o in without.outcomes.values()] == [Redeliver, DeadLetter, DeadLetter]


def test_messages_at_the_max_deliveries_of_a_raised_nack_go_to_the_fallback_sink():
    def primary(data: list[Datum]) -> list[Response]:
        raise Nack(max_deliveries=0)

    assert sink_verdict(primary, *"ab", fallback=Sink()).outcomes == {0: FellBack(), 1: FellBack()}


def test_the_on_success_sink_gets_the_message_of_the_response_or_the_original():
    on_success = Sink()

    def primary(data: list[Datum]) -> list[Response]:
        a, b, c, d = (datum.id for datum in data)
        return [
            Response.on_success(a, Message(b"receipt")),
            Response.on_success(b, Message(b"receipt", keys=["own"])),
            Response.on_success(c),
            Response.on_success(d, Message(b"receipt", keys={"own": 1}.keys())),
        ]

    verdict = sink_verdict(primary, *"abcd", on_success=on_success, columns={"keys": [["k"]] * 4})
    assert on_success.received == [
        ("a", b"receipt", ("k",)),
        ("b", b"receipt", ("own",)),
        ("c", b"c", ("k",)),
        ("d", b"receipt", ("own",)),
    ]
    assert set(verdict.outcomes.values()) == {Succeeded()}


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        (
            Message(5),
            "ContractViolation: v: returned a Message whose value is int, not bytes. "
            "Encode it first, for example with json.dumps(...).encode().",
        ),
        (
            Message(b"", keys="abc"),
            "ContractViolation: v: returned a Message whose keys are 'abc'. "
            "Give keys as a list of strings.",
        ),
        (
            Message.to_drop(),
            "ContractViolation: v: answered ON_SUCCESS with a message to drop. "
            "Give Message(value), or no message to pass on the original.",
        ),
        (
            Message.to_nack(),
            "ContractViolation: v: answered ON_SUCCESS with a message to nack. "
            "Give Message(value), or no message to pass on the original.",
        ),
    ],
    ids=["value", "keys", "drop", "nack"],
)
def test_an_invalid_message_for_the_on_success_sink_fails_only_its_input(message, expected):
    on_success = Sink()

    def primary(data: list[Datum]) -> list[Response]:
        return [Response.on_success("a", message), Response.on_success("b"), Response.ok("c")]

    verdict = sink_verdict(primary, *"abc", on_success=on_success)
    assert verdict.outcomes == {0: Redeliver(1_000, expected, 1), 1: Succeeded()}
    assert on_success.ids == ["b"]


def test_a_message_too_large_for_the_on_success_sink_is_a_dead_letter():
    def primary(data: list[Datum]) -> list[Response]:
        return [Response.on_success("a", Message(b"x" * 101))]

    outcome = sink_verdict(primary, on_success=Sink(), largest=100).outcomes[0]
    assert (type(outcome), outcome.reason) == (DeadLetter, "message too large")


SHORT = Backoff("1ms", steps=2)


def test_the_fallback_sink_decides_after_the_retries_of_the_primary():
    primary, fallback = Sink("failure"), Sink()
    strategy = RetryStrategy(SHORT, "fallback")
    verdict = sink_verdict(primary, fallback=fallback, strategy=strategy)
    assert (primary.ids, fallback.ids) == (["a"] * 3, ["a"])
    assert verdict.outcomes == {0: FellBack()}


def test_a_fallback_answer_is_not_retried():
    primary, fallback = Sink("fallback"), Sink()
    sink_verdict(primary, fallback=fallback, strategy=RetryStrategy(SHORT, "fallback"))
    assert (primary.ids, fallback.ids) == (["a"], ["a"])


@pytest.mark.parametrize(
    ("on_failure", "expected"),
    [
        ("drop", DeadLetter("retries exhausted", error="no such account (after 2 retries)")),
        ("fallback", DeadLetter("retries exhausted", error="no such account (after 2 retries)")),
    ],
)
@pytest.mark.parametrize("place", ["fallback", "on_success"])
def test_fallback_and_on_success_sinks_are_retried_and_have_no_fallback_of_their_own(
    place, on_failure, expected
):
    secondary = {"fallback": Sink()} | {place: Sink("failure")}
    verdict = sink_verdict(Sink(place), strategy=RetryStrategy(SHORT, on_failure), **secondary)
    assert secondary[place].ids == ["a"] * 3
    assert verdict.outcomes == {0: expected}


def test_a_long_retry_wait_of_the_fallback_sink_becomes_a_redelivery():
    strategy = RetryStrategy(Backoff("5s", 2), "fallback")
    verdict = sink_verdict(Sink("fallback"), fallback=Sink("failure"), strategy=strategy)
    assert verdict.outcomes == {0: Retry(5_000, NO_ACCOUNT, retries=1, failures=0)}


class Store:
    """A store of the user's that may fail."""

    def __init__(self, error: BaseException | None = None) -> None:
        self._error = error
        self.entries: list[tuple[str, list[bytes]]] = []

    def put(self, request: str, payloads: Any) -> None:
        if self._error:
            raise self._error
        self.entries.append((request, list(payloads)))


def opened(store: Any) -> sinking.Store:
    return sinking.Store(store.put, Blame())


def test_a_store_of_the_users_gets_each_answer_under_its_request():
    store = Store()
    columns = {"headers": [[("X-Numaflow-Id", "r1")], [("x-numaflow-id", "")], None]}
    ids = ("a/map", "b/map.1/cat", "c")
    verdict = sink_verdict(Sink("serve"), *ids, serves=True, store=opened(store), columns=columns)
    assert store.entries == [("r1", [b"answer"]), ("b", [b"answer"]), ("c", [b"answer"])]
    assert verdict.outcomes == dict.fromkeys(range(3), Served())
    assert verdict.answers == {}, "nothing is left for us to store"


@pytest.mark.parametrize(
    ("headers", "row_id", "expected"),
    [
        ([("x-numaflow-id", "r1")], "a", "r1"),
        ([("other", "r2"), ("X-NUMAFLOW-ID", "r1")], "a", "r1"),
        ([("x-numaflow-id", "")], "a/v", "a"),
        (None, "src-0-17/map.2/cat", "src-0-17"),
        ([], "", ""),
    ],
)
def test_the_request_id_comes_from_its_header_or_the_source_message(headers, row_id, expected):
    assert request_id(some(row_id, headers=[headers]), 0) == expected


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (OSError("store is down"), Redeliver(1_000, "OSError: store is down", 1)),
        (Nack(delay="5s", reason="busy"), Redeliver(5_000, "busy", 0)),
        (SystemExit(1), Redeliver(1_000, "SystemExit: 1", 1)),
    ],
    ids=repr,
)
def test_a_message_whose_answer_cannot_be_stored_is_redelivered(error, expected):
    store = Store(error)
    verdict = sink_verdict(Sink({"a": "serve", "b": "ok"}), *"ab", serves=True, store=opened(store))
    assert verdict.outcomes == {0: expected}


def test_an_answer_over_the_size_limit_is_a_dead_letter_except_in_a_store_of_the_users():
    def primary(data: list[Datum]) -> list[Response]:
        return [Response.serve("a", b"x" * 101), Response.serve("b", b"x" * 100)]

    built_in = sink_verdict(primary, "a", "b", serves=True, largest=100)
    assert (built_in.outcomes[0].reason, built_in.outcomes[1]) == ("message too large", Served())
    assert built_in.answers == {1: [b"x" * 100]}
    own = sink_verdict(primary, "a", "b", serves=True, store=opened(Store()), largest=100).outcomes
    assert own == {0: Served(), 1: Served()}


def test_user_code_that_changes_headers_does_not_redirect_its_answer():
    store = Store()

    def vandal(data: list[Datum]) -> list[Response]:
        for datum in data:
            datum.headers.clear()
            datum.headers[5] = object()
        return [Response.serve(d.id, b"answer") for d in data]

    columns = {"headers": [[("x-numaflow-id", "r1")]]}
    sink_verdict(vandal, serves=True, store=opened(store), columns=columns)
    assert store.entries == [("r1", [b"answer"])]


@pytest.mark.parametrize("change", [list.clear, list.reverse, list.pop], ids=lambda f: f.__name__)
def test_a_sink_may_modify_the_list_it_receives(change):
    """The rows are identified by their ids alone, whatever is left of the list."""

    def primary(data: list[Datum]) -> list[Response]:
        answers = [ANSWERS["nack" if d.id == "a" else "ok"](d.id) for d in data]
        change(data)
        return answers

    assert sink_verdict(primary, *"abc").outcomes == {0: Redeliver(5_000, "busy", 0)}


def test_an_ordered_vertex_does_not_count_as_done_what_its_fallback_sink_never_saw():
    """It stops at the row it had to try again; the row behind has the same keys and must wait."""
    received: list[tuple[str, bytes]] = []

    def fallback(data: list[Datum]) -> list[Response]:
        counts = [d.system_metadata["sink"]["retry_count"] for d in data]
        received.extend((d.id, count) for d, count in zip(data, counts, strict=True))
        return [
            ANSWERS["failure" if d.id == "a" and count == b"0" else "ok"](d.id)
            for d, count in zip(data, counts, strict=True)
        ]

    verdict = sink_verdict(
        Sink("fallback"),
        *"abc",
        fallback=fallback,
        strategy=RetryStrategy(SHORT, "drop"),
        ordered=True,
        columns={"keys": [["k"], ["k"], ["l"]]},
    )
    assert received == [("a", b"0"), ("a", b"1")]
    assert verdict.outcomes == {0: FellBack()}
    assert verdict.first_held() == 1, "b and c are redelivered"


answers = st.sampled_from([*ANSWERS, "raise", "silent", "twice", "exit"])


class Wild:
    """Answers, raises, leaves out and answers twice, as configured for each id."""

    def __init__(self, behaviour: dict[str, str]) -> None:
        self._behaviour = behaviour

    def __call__(self, data: list[Datum]) -> list[Response]:
        found = []
        for datum in data:
            match self._behaviour[datum.id]:
                case "raise":
                    raise ValueError("no")
                case "exit":
                    sys.exit(1)
                case "silent":
                    pass
                case "twice":
                    found += [Response.ok(datum.id)] * 2
                case answer:
                    found.append(ANSWERS[answer](datum.id))
        return found


@given(
    st.lists(st.tuples(answers, answers, answers, st.integers(0, 4)), min_size=1, max_size=6),
    st.booleans(),
    st.booleans(),
    st.booleans(),
    st.sampled_from([None, "retry", "fallback", "drop"]),
)
def test_whatever_the_sinks_do_every_input_has_one_outcome(
    rows, has_fallback, has_success, serves, on_failure
):
    ids = [f"m{n}" for n in range(len(rows))]
    primary, fallback, on_success = (
        Wild(dict(zip(ids, (row[place] for row in rows), strict=True))) for place in range(3)
    )
    verdict = sink_verdict(
        primary,
        *ids,
        fallback=fallback if has_fallback else None,
        on_success=on_success if has_success else None,
        serves=serves,
        strategy=None if on_failure is None else RetryStrategy(Backoff("900ms", 1), on_failure),
        columns={"failures": [row[3] for row in rows]},
    )
    assert set(verdict.outcomes) <= set(range(len(ids)))
    for index, (answer, *_) in enumerate(rows):
        outcome = verdict.outcomes.get(index)
        assert (outcome is None) <= (answer == "ok"), "done only if the primary said so"
        assert isinstance(outcome, Served) <= (answer == "serve" and serves)
        assert (index in verdict.answers) == isinstance(outcome, Served)
        assert isinstance(outcome, Succeeded) <= (answer == "on_success" and has_success)
        assert isinstance(outcome, FellBack) <= has_fallback


def test_the_primary_may_give_exactly_the_answers_that_are_configured():
    plain = {Status.OK, Status.FAILURE, Status.NACK}
    call = call_of(Sink())
    assert Sinks(call).allowed == plain
    assert Sinks(call, call, call, serves=True).allowed == set(Status) - {Status.UNAVAILABLE}
