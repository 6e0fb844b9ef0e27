"""Retrying what user code reports as failed: how often, after which wait, and what follows."""

from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ebbflow import Datum, Message, Nack, NackOptions, Response
from ebbflow.domain.durations import Backoff
from ebbflow.domain.outcome import DeadLetter, Redeliver, Retry
from ebbflow.engine.publications import redelivered_rows
from ebbflow.engine.retry import ON_THE_SPOT, RetryStrategy
from ebbflow.engine.verdict import EMPTY, Verdict
from ebbflow.usercode.calling import Handler, call_map, call_sink, call_with_retries
from tests.engine.sample_rows import some, verdict_on

SHORT = Backoff("10ms", steps=3)


def retry_count(datum: Datum) -> int:
    return int(datum.system_metadata["sink"]["retry_count"])


class Sink:
    """Fails each id as often as configured, and records what it was called with."""

    def __init__(self, **failing: int) -> None:
        self._failing = failing
        self.calls: list[list[str]] = []
        self.counts: list[tuple[str, int]] = []

    def __call__(self, data: list[Datum]) -> list[Response]:
        self.calls.append([d.id for d in data])
        self.counts += [(d.id, retry_count(d)) for d in data]
        return [
            Response.failure(d.id, f"{d.id} is down")
            if retry_count(d) < self._failing.get(d.id, 0)
            else Response.ok(d.id)
            for d in data
        ]


class Pauses(list[float]):
    """Records the waits instead of waiting."""

    def __call__(self, seconds: float) -> None:
        self.append(seconds)


def tried(
    target, strategy: RetryStrategy | None, *ids: str, fallback: bool = False, **columns
) -> tuple[Verdict, Pauses]:
    """The verdict of a sink with this strategy, and the waits it took."""
    verdict = verdict_on(some(*ids or ("a", "b", "c"), **columns), has_fallback=fallback)
    pauses = Pauses()
    call = partial(call_sink, Handler(target), batch_size=100)
    call_with_retries(verdict, call, strategy, pauses, "sink")
    assert verdict.decisions.failed == {}
    return verdict, pauses


def mapped(target, strategy: RetryStrategy | None, *ids: str) -> Verdict:
    verdict = verdict_on(some(*ids or ("a", "b", "c")))
    call = partial(call_map, Handler(target), concurrency=1)
    call_with_retries(verdict, call, strategy, Pauses(), "map")
    return verdict


@pytest.mark.guarantee("outcomes-hold")
def test_only_the_failed_rows_are_called_again_and_in_their_order():
    sink = Sink(b=2, d=1, a=1)
    verdict, pauses = tried(sink, RetryStrategy(SHORT), *"abcd")
    assert sink.calls == [["a", "b", "c", "d"], ["a", "b", "d"], ["b"]]
    assert verdict.outcomes == {}
    assert pauses == [0.01, 0.01]


def test_a_message_that_fails_twice_has_the_retry_counts_0_1_2():
    """Numaflow's A10."""
    sink = Sink(a=2)
    verdict, _ = tried(sink, RetryStrategy(SHORT), "a")
    assert sink.counts == [("a", 0), ("a", 1), ("a", 2)]
    assert verdict.outcomes == {}


@pytest.mark.guarantee("outcomes-hold")
@pytest.mark.parametrize("steps", [1, 2, 5])
def test_steps_count_the_retries_after_the_first_call(steps):
    """Numaflow's A11: with 2 steps there are the retries 1 and 2, never a third."""
    sink = Sink(a=99)
    verdict, _ = tried(sink, RetryStrategy(Backoff("1ms", steps), "drop"), "a")
    assert [count for _, count in sink.counts] == list(range(steps + 1))
    error = f"a is down (after {steps} retries)"
    assert verdict.outcomes == {0: DeadLetter("retries exhausted", error=error)}


def test_waits_grow_by_the_factor_up_to_the_cap():
    backoff = Backoff("10ms", steps=5, factor=3.0, cap="100ms")
    _, pauses = tried(Sink(a=99), RetryStrategy(backoff, "drop"), "a")
    assert pauses == [0.01, 0.03, 0.09, 0.1, 0.1]


def test_a_wait_that_is_too_long_becomes_a_redelivered_retry():
    """A11 as Numaflow runs it: interval 1 s, factor 2, cap 3 s; a second is still waited here."""
    backoff = Backoff("1s", steps=3, factor=2.0, cap="3s")
    sink = Sink(a=99)
    verdict, pauses = tried(sink, RetryStrategy(backoff, "drop"), "a")
    assert pauses == [1.0]
    assert sink.counts == [("a", 0), ("a", 1)]
    assert verdict.outcomes == {0: Retry(2_000, "a is down", retries=2, failures=0)}


@pytest.mark.guarantee("outcomes-hold")
def test_a_redelivered_retry_continues_to_count_where_it_was():
    backoff = Backoff("5s", steps=2)
    sink = Sink(a=99)
    rows, deliveries = some("a", failures=1, deliveries=4), []
    for _ in range(3):
        verdict = verdict_on(rows)
        call = partial(call_sink, Handler(sink), batch_size=9)
        call_with_retries(verdict, call, RetryStrategy(backoff, "drop"), Pauses(), "sink")
        outcome = verdict.outcomes[0]
        if isinstance(outcome, Retry):
            rows = type(rows)(redelivered_rows(rows.batch, [0], [outcome]))
            deliveries.append(rows.column("deliveries")[0])
            assert rows.column("failures") == [1]
            assert rows.column("nack_reason") == ["a is down"]
    assert [count for _, count in sink.counts] == [0, 1, 2]
    assert deliveries == [4, 4], "a retry is not a delivery"
    assert outcome == DeadLetter("retries exhausted", error="a is down (after 2 retries)")


def test_a_redelivery_counts_as_a_delivery_and_resets_the_retries():
    rows = some("a", "b", deliveries=[3, 3], retries=[2, 2], failures=[1, 1])
    outcomes = [Redeliver(5, "busy", 7), Retry(5, "down", 3, 1)]
    back = redelivered_rows(rows.batch, [0, 1], outcomes).to_pylist()
    kept = ("id", "deliveries", "failures", "retries", "nack_reason")
    assert [tuple(row[name] for name in kept) for row in back] == [
        ("a", 4, 7, 0, "busy"),
        ("b", 3, 1, 3, "down"),
    ]


backoffs = st.builds(
    Backoff,
    interval=st.integers(0, 1_500).map(lambda ms: f"{ms}ms"),
    steps=st.integers(1, 12),
    factor=st.sampled_from([1.0, 1.5, 2.0]),
    cap=st.integers(0, 4_000).map(lambda ms: f"{ms}ms"),
    jitter=st.sampled_from([0.0, 0.5]),
)
strategies = st.builds(RetryStrategy, backoffs, st.sampled_from(["retry", "fallback", "drop"]))


@pytest.mark.guarantee("redeliveries-are-never-early")
@given(strategies, st.lists(st.integers(0, 30), min_size=1, max_size=5), st.integers(0, 10**6))
def test_a_chunk_waits_about_a_second_at_most_and_every_row_has_one_outcome(
    strategy, failing, first: int
):
    ids = [f"m{first + n:07}" for n in range(len(failing))]
    sink = Sink(**dict(zip(ids, failing, strict=True)))
    verdict = verdict_on(some(*ids), has_fallback=True)
    pauses = Pauses()
    call = partial(call_sink, Handler(sink), batch_size=3)
    call_with_retries(verdict, call, strategy, pauses, "sink")
    assert sum(pauses) <= ON_THE_SPOT / 1000 + 1e-9
    assert all(one == sorted(one) for one in sink.calls), "in their order"
    for index, often in enumerate(failing):
        counts = [count for i, count in sink.counts if i == ids[index]]
        assert counts == list(range(len(counts))), "one after the other, none left out"
        last = counts[-1]
        if last == often:
            assert index not in verdict.outcomes
            assert index not in verdict.decisions.fallback
            continue
        if strategy.on_failure == "retry" or last < strategy.backoff.steps:
            outcome = verdict.outcomes[index]
            assert isinstance(outcome, Retry)
            assert outcome.retries == last + 1
            assert outcome.delay <= strategy.backoff.cap
        else:
            assert last == strategy.backoff.steps
            assert (index in verdict.decisions.fallback) == (strategy.on_failure == "fallback")
            assert (index in verdict.outcomes) == (strategy.on_failure == "drop")


EXHAUSTED = DeadLetter("retries exhausted", error="a is down (after 3 retries)")
FAILED = DeadLetter("sink failure", error="a is down")


@pytest.mark.parametrize(
    ("on_failure", "has_fallback", "outcomes", "fallback"),
    [
        ("drop", False, {0: EXHAUSTED}, {}),
        ("drop", True, {0: EXHAUSTED}, {}),
        ("fallback", True, {}, {0: FAILED}),
        ("fallback", False, {0: EXHAUSTED}, {}),
    ],
)
def test_the_strategy_decides_what_happens_after_the_last_retry(
    on_failure, has_fallback, outcomes, fallback
):
    strategy = RetryStrategy(SHORT, on_failure)
    verdict, _ = tried(Sink(a=99), strategy, "a", fallback=has_fallback)
    assert (verdict.outcomes, verdict.decisions.fallback) == (outcomes, fallback)


def test_on_failure_retry_never_ends_and_does_not_block_the_task():
    sink = Sink(a=10**6)
    verdict, pauses = tried(sink, RetryStrategy(Backoff("100ms", steps=2), "retry"), "a")
    assert pauses == [0.1] * 10
    assert verdict.outcomes == {0: Retry(100, "a is down", retries=11, failures=0)}


def test_retries_with_waits_of_zero_do_not_block_the_task_either():
    sink = Sink(a=10**6)
    verdict, _ = tried(sink, RetryStrategy(Backoff("0s", steps=1), "retry"), "a")
    assert isinstance(verdict.outcomes[0], Retry)
    assert len(sink.calls) <= ON_THE_SPOT + 2


def test_without_a_strategy_a_failure_is_permanent():
    sink = Sink(b=1)
    verdict, pauses = tried(sink, None)
    assert (sink.calls, pauses) == ([["a", "b", "c"]], [])
    assert verdict.outcomes == {1: DeadLetter("sink failure", error="b is down")}


@pytest.mark.parametrize(
    ("second", "expected"),
    [
        (Nack(delay="5ms", reason="busy"), Redeliver(5, "busy", 0)),
        (ValueError("no"), Redeliver(1_000, "ValueError: no", 1)),
    ],
    ids=repr,
)
def test_the_outcome_of_the_second_call_counts_whatever_it_is(second, expected):
    def target(data: list[Datum]) -> list[Response]:
        if retry_count(data[0]):
            raise second
        return [Response.failure(d.id, "down") for d in data]

    verdict, _ = tried(target, RetryStrategy(SHORT), "a", "b")
    assert verdict.outcomes == {0: expected, 1: expected}


def test_an_exhausted_nack_in_a_retry_goes_to_the_fallback():
    def target(data: list[Datum]) -> list[Response]:
        last = NackOptions(max_deliveries=0, reason="given up")
        return [
            Response.nack(d.id, last) if retry_count(d) else Response.failure(d.id, "down")
            for d in data
        ]

    verdict, _ = tried(target, RetryStrategy(SHORT), "a", "b", fallback=True)
    assert verdict.outcomes == {}
    assert [letter.reason for letter in verdict.decisions.fallback.values()] == ["given up"] * 2


def failing_map(often: int):
    def target(datum: Datum) -> list[Message]:
        if datum.id == "b" and retry_count(datum) < often:
            return [Message(b"never seen"), Message.to_fail("not yet")]
        return [Message(datum.value + b"%d" % retry_count(datum))]

    return target


def test_a_map_that_fails_and_then_succeeds_forwards_once():
    """Numaflow's C2."""
    verdict = mapped(failing_map(2), RetryStrategy(SHORT, "drop"))
    assert verdict.outcomes == {}
    outputs = verdict.outputs
    found = sorted(zip(outputs.parents, outputs.indexes, outputs.values, strict=True))
    assert found == [(0, 0, b"a0"), (1, 0, b"b2"), (2, 0, b"c0")]


@pytest.mark.parametrize(
    ("strategy", "expected"),
    [
        (None, DeadLetter("map failure", error="not yet")),
        (
            RetryStrategy(SHORT, "drop"),
            DeadLetter("retries exhausted", error="not yet (after 3 retries)"),
        ),
        (RetryStrategy(Backoff("5s", 1)), Retry(5_000, "not yet", 1, 0)),
    ],
    ids=["no strategy", "drop", "long wait"],
)
def test_a_map_that_keeps_failing_forwards_nothing_of_that_input(strategy, expected):
    verdict = mapped(failing_map(99), strategy)
    assert verdict.outcomes == {1: expected}
    assert verdict.outputs.parents == [0, 2]


def test_a_map_may_drop_in_a_retry():
    def target(datum: Datum) -> Message | None:
        return None if retry_count(datum) else Message.to_fail()

    assert mapped(target, RetryStrategy(SHORT), "a").outcomes == {0: EMPTY}


def test_a_nack_next_to_a_failure_redelivers_the_input():
    messages = [Message.to_fail("down"), Message.to_nack(NackOptions(delay=7))]
    assert mapped(lambda d: messages, None, "a").outcomes == {0: Redeliver(7, None, 0)}


def test_errors_of_any_length_and_characters_can_be_stored():
    def target(data: list[Datum]) -> list[Response]:
        return [Response.failure(d.id, "\ud800" + "x" * 10_000) for d in data]

    verdict, _ = tried(target, None, "a")
    assert len(verdict.outcomes[0].error) == 2_000
    verdict.outcomes[0].error.encode()
