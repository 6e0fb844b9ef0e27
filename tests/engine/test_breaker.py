"""A flood of dead letters stops the vertex instead of draining everything into them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ebbflow import NackOptions
from ebbflow.domain.outcome import DeadLetter, Redeliver, Retry
from ebbflow.engine.outage import Breaker, BreakerLimit
from tests.engine.sample_rows import decide, some, verdict_on

LETTER = DeadLetter("ValueError", error="ValueError: no number")


def chunk(kinds: str):
    """A verdict with a dead letter for each x, a redelivery for each r, and done for each dot."""
    verdict = verdict_on(some(*(f"m{number}" for number in range(len(kinds)))))
    ends = {"x": LETTER, "r": Redeliver(0, None, 1)}
    return decide(verdict, {i: ends[kind] for i, kind in enumerate(kinds) if kind in ends})


def letters(verdict) -> int:
    return sum(isinstance(outcome, DeadLetter) for outcome in verdict.outcomes.values())


def test_dead_letters_within_the_allowed_share_do_not_trip_the_breaker():
    breaker = Breaker(BreakerLimit(share=0.5, window=10))
    for _ in range(50):
        breaker.check(verdict := chunk("x.x."))
        assert letters(verdict) == 2
    assert breaker.tripped is None


def test_more_dead_letters_than_the_share_trip_the_breaker_and_the_rest_is_kept():
    breaker = Breaker(BreakerLimit(share=0.5, window=10))
    breaker.check(verdict := chunk("..xxxxxxxx"))
    assert letters(verdict) == 5
    assert verdict.outcomes[9] == Retry(500, "ValueError: no number", 0, 0)
    assert breaker.tripped == (
        "5 of the last 10 messages became dead letters, "
        "the last one because of: ValueError: no number"
    )
    breaker.check(verdict := chunk("x"))
    assert letters(verdict) == 0, "until it is resumed"
    breaker.reset()
    breaker.check(verdict := chunk("xx"))
    assert (letters(verdict), breaker.tripped) == (2, None)


def test_redelivered_messages_do_not_dilute_the_share():
    breaker = Breaker(BreakerLimit(share=0.5, window=10))
    for _ in range(5):
        breaker.check(chunk("rrrrrrrrrx"))
    assert breaker.tripped is None
    breaker.check(chunk("rrrrrrrrrx"))
    assert breaker.tripped is not None


def nacked(number: int, deliveries: int, end=None):
    """A verdict on messages that are nacked on that delivery, or end."""
    rows = some(*(f"m{one}" for one in range(number)), deliveries=deliveries)
    outcome = end or Redeliver(0, "later", 0, NackOptions())
    return decide(verdict_on(rows), dict.fromkeys(range(number), outcome))


def test_nacked_messages_count_as_answered_so_a_few_dead_letters_do_not_trip_it():
    breaker = Breaker(BreakerLimit(share=0.5, window=10))
    for _ in range(20):
        breaker.check(nacked(9, deliveries=1))
        breaker.check(chunk("x"))
    assert breaker.tripped is None


def test_a_message_that_is_nacked_again_and_again_counts_once():
    breaker = Breaker(BreakerLimit(share=0.5, window=10))
    for delivery in range(1, 4):
        breaker.check(nacked(10, delivery))
    breaker.check(verdict := nacked(10, deliveries=4, end=LETTER))
    assert letters(verdict) == 5
    assert breaker.tripped is not None


def test_a_share_of_one_switches_the_breaker_off():
    breaker = Breaker(BreakerLimit(share=1.0, window=10))
    breaker.check(verdict := chunk("x" * 100))
    assert (letters(verdict), breaker.tripped) == (100, None)


@pytest.mark.guarantee("outages-blame-no-message")
@given(st.lists(st.text(alphabet="x.r", max_size=30), max_size=20), st.integers(1, 20))
def test_the_last_messages_never_contain_more_dead_letters_than_allowed(chunks, window):
    limit = BreakerLimit(share=0.3, window=window)
    breaker = Breaker(limit)
    ended = []
    for kinds in chunks:
        breaker.check(verdict := chunk(kinds))
        outcomes = [verdict.outcomes.get(index) for index in range(len(kinds))]
        here = [o for o in outcomes if not isinstance(o, Redeliver | Retry)]
        ended += [isinstance(outcome, DeadLetter) for outcome in here]
        if breaker.tripped:
            break
    for end in range(len(ended)):
        assert sum(ended[max(0, end + 1 - window) : end + 1]) <= max(limit.letters, 0)
