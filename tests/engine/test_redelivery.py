import pytest
from hypothesis import given
from hypothesis import strategies as st

from ebbflow.domain.durations import Backoff
from ebbflow.domain.errors import MessageTooLarge, StreamBroken
from ebbflow.domain.message import Nack, NackOptions
from ebbflow.domain.outcome import DeadLetter, Outcome, Redeliver
from ebbflow.engine.redelivery import (
    MAX_ERROR,
    MAX_TRACEBACK,
    decide_error,
    decide_nack,
    due_time,
)
from tests.engine.sample_rows import some, verdict_on

POLICY = Backoff("1s", steps=3, factor=2.0, cap="60s")


def until_dead(decide, limit: int = 50) -> tuple[list[Redeliver], Outcome]:
    """Deliver a message again and again: its redeliveries, and how it ended."""
    redeliveries: list[Redeliver] = []
    failures = 0
    while len(redeliveries) < limit:
        outcome = decide(len(redeliveries) + 1, failures)
        if not isinstance(outcome, Redeliver):
            break
        redeliveries.append(outcome)
        failures = outcome.failures
    return redeliveries, outcome


@pytest.mark.guarantee("max-deliveries-is-exact")
@given(st.integers(0, 40))
def test_max_deliveries_n_means_exactly_n_redeliveries_and_then_a_dead_letter(n):
    options = NackOptions(max_deliveries=n, reason="not yet")
    redeliveries, end = until_dead(
        lambda deliveries, failures: decide_nack(options, deliveries, failures)
    )
    assert len(redeliveries) == n
    times = "once" if n == 1 else f"{n} times"
    assert end == DeadLetter("not yet", error=f"redelivered {times}, max_deliveries is {n}")


def outcome_of(error: BaseException, deliveries: int, failures: int) -> Outcome:
    """The outcome of an input for which user code raised this error."""
    verdict = verdict_on(some("a", deliveries=deliveries, failures=failures))
    verdict.record_error(0, error)
    return verdict.outcomes[0]


@given(st.integers(0, 40))
def test_a_raised_nack_is_counted_like_a_returned_one(n):
    error = Nack(max_deliveries=n, delay="5ms")
    redeliveries, end = until_dead(lambda d, f: outcome_of(error, d, f))
    assert len(redeliveries) == n
    assert isinstance(end, DeadLetter)
    assert all(r == Redeliver(5, None, failures=0) for r in redeliveries)


def test_a_nack_without_max_deliveries_is_redelivered_forever():
    redeliveries, end = until_dead(lambda d, f: decide_nack(None, d, f), limit=1_000)
    assert len(redeliveries) == 1_000
    assert end == Redeliver(0, None, 0)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (None, Redeliver(0, None, 2)),
        (NackOptions(), Redeliver(0, None, 2)),
        (NackOptions(delay=0), Redeliver(0, None, 2)),
        (NackOptions(delay="5s", reason="busy"), Redeliver(5_000, "busy", 2)),
    ],
)
def test_a_nack_keeps_delay_and_reason_and_does_not_count_as_a_failure(options, expected):
    assert decide_nack(options, deliveries=7, failures=2) == expected


def test_a_dead_letter_of_a_nack_without_a_reason_has_the_reason_nacked():
    assert decide_nack(NackOptions(max_deliveries=0), 1, 0).reason == "nacked"


@pytest.mark.guarantee("failures-stay-with-their-message")
def test_exceptions_back_off_and_stop_after_the_steps_of_the_policy():
    redeliveries, end = until_dead(lambda d, f: decide_error(ValueError("no"), f, POLICY))
    assert [r.delay for r in redeliveries] == [1_000, 2_000, 4_000]
    assert [r.failures for r in redeliveries] == [1, 2, 3]
    assert {r.reason for r in redeliveries} == {"ValueError: no"}
    assert (end.reason, end.error) == ("ValueError", "ValueError: no")
    assert "ValueError: no" in end.traceback


def test_nacks_in_between_do_not_use_up_the_retries_of_exceptions():
    def decide(deliveries: int, failures: int) -> Outcome:
        error = Nack() if deliveries % 2 else ValueError()
        return outcome_of(error, deliveries, failures)

    redeliveries, _ = until_dead(decide)
    assert [r.failures for r in redeliveries] == [0, 1, 1, 2, 2, 3, 3]


def test_the_first_exception_makes_a_dead_letter_if_the_policy_has_no_steps():
    assert isinstance(decide_error(ValueError(), 0, Backoff("1ms", 0)), DeadLetter)


def test_a_message_that_is_too_large_is_dead_lettered_without_a_retry():
    end = decide_error(MessageTooLarge(9, 5), 0, POLICY)
    assert isinstance(end, DeadLetter)
    assert end.reason == "message too large"


def test_long_and_unencodable_texts_are_reduced_to_what_a_header_can_hold():
    end = decide_error(ValueError("x" * 10**6 + "\ud800\nnext"), 9, POLICY)
    assert len(end.error) == MAX_ERROR
    assert len(end.traceback) == MAX_TRACEBACK
    assert end.error.endswith("…")
    assert end.traceback.startswith("…")
    (end.error + end.traceback).encode()
    long = NackOptions(reason="r" * 10**6)
    assert len(decide_nack(long, 1, 0).reason) == MAX_ERROR


def test_an_error_is_written_on_one_line():
    assert decide_error(ValueError("a\n  b\tc"), 0, POLICY).reason == "ValueError: a b c"


class Unspeakable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("not even this")


def test_an_error_whose_text_cannot_be_made_affects_only_its_message():
    assert (
        decide_error(Unspeakable(), 0, POLICY).reason == "Unspeakable: (its text cannot be shown)"
    )
    assert "Unspeakable" in decide_error(Unspeakable(), 9, POLICY).traceback


def test_the_dead_letter_of_a_function_in_its_own_process_has_the_functions_stack():
    broken = StreamBroken("INTERNAL: boom", 13, "goroutine 7 [running]:" + "x" * 50_000)
    letter = decide_error(broken, 9, POLICY)
    assert (letter.reason, letter.error) == ("StreamBroken", "StreamBroken: INTERNAL: boom")
    assert letter.traceback.endswith("xxx")
    assert len(letter.traceback) == MAX_TRACEBACK
    assert decide_error(StreamBroken("it is gone"), 9, POLICY).traceback is None


@pytest.mark.guarantee("redeliveries-are-never-early")
@given(st.integers(0, 2**42), st.integers(0, 2**40))
def test_a_redelivery_is_never_due_early_and_is_late_by_less_than_its_grid(now, delay):
    grid = 10 if delay < 1_000 else 100 if delay < 60_000 else 1_000
    late = due_time(now, delay) - (now + delay)
    assert 0 <= late < (grid if delay else 1)


@given(st.integers(0, 2**42), st.integers(1, 2**40), st.integers(0, 9))
def test_rows_nacked_together_are_due_within_a_second_of_each_other(now, delay, later):
    dues = {due_time(now + later, delay), due_time(now, delay)}
    assert max(dues) - min(dues) <= 1_000


def test_a_failure_has_one_of_a_few_kinds_whatever_its_reason():
    nacked = decide_nack(NackOptions(max_deliveries=0, reason="customer zz is not known"), 1, 0)
    raised = decide_error(KeyError("zz"), 5, Backoff("1ms", steps=5))
    assert (nacked.kind, raised.kind) == ("nack", "KeyError")
