import pickle
import re
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ebbflow import Message, Nack, NackOptions, Response, nack


def exactly(text: str) -> str:
    return f"^{re.escape(text)}$"


def test_an_unset_option_differs_from_zero_and_from_empty_text():
    assert NackOptions() == NackOptions(None, None, None)
    assert NackOptions() != NackOptions(delay=0)
    assert NackOptions() != NackOptions(max_deliveries=0)
    assert NackOptions() != NackOptions(reason="")
    assert (NackOptions().delay, NackOptions().max_deliveries, NackOptions().reason) == (None,) * 3
    assert NackOptions(0, 0, "") == NackOptions(delay="0s", max_deliveries=0, reason="")


@pytest.mark.parametrize("number", [-1, 2**32, True, 1.0, "3"], ids=repr)
def test_max_deliveries_must_be_a_whole_number_from_zero(number):
    message = f"max_deliveries must be a whole number from 0, not {number!r}"
    with pytest.raises(ValueError, match=exactly(message)):
        NackOptions(max_deliveries=number)


@pytest.mark.parametrize("reason", [5, b"why", ["why"]], ids=repr)
def test_a_reason_must_be_text(reason):
    with pytest.raises(ValueError, match=exactly(f"reason must be text, not {reason!r}")):
        NackOptions(reason=reason)


def test_characters_of_a_reason_that_cannot_be_encoded_are_replaced():
    assert NackOptions(reason="bad \ud800 byte").reason == "bad ? byte"


def test_nack_options_are_immutable():
    with pytest.raises(AttributeError):
        NackOptions().delay = 5


@given(
    st.none() | st.integers(0, 2**53 - 1),
    st.none() | st.integers(0, 2**32 - 1),
    st.none() | st.text(),
)
def test_nack_pickles_with_its_options(delay, max_deliveries, reason):
    options = NackOptions(delay, max_deliveries, reason)
    answer = pickle.loads(pickle.dumps(Nack(options)))
    assert answer.options == options == pickle.loads(pickle.dumps(options))
    assert str(answer) == (options.reason or "nack")


def test_calling_nack_raises_nack_with_its_options():
    with pytest.raises(Nack) as answer:
        nack("not yet", delay="5s", max_deliveries=2)
    assert answer.value.options == NackOptions(5000, 2, "not yet")


WAYS = {
    "raise Nack": lambda **nack: Nack(**nack).options,
    "Message.to_nack": lambda **nack: Message.to_nack(**nack).nack_options,
    "Response.nack": lambda **nack: Response.nack("a", **nack).nack_options,
}


@pytest.mark.parametrize("ask", WAYS.values(), ids=WAYS)
def test_every_way_to_nack_takes_the_same_keywords(ask):
    options = NackOptions(5_000, 3, "not yet")
    assert ask(reason="not yet", delay="5s", max_deliveries=3) == options
    assert ask(reason="not yet", delay=timedelta(seconds=5), max_deliveries=3) == options
    assert ask(reason=options) == options
    with pytest.raises(ValueError, match="5 has no unit"):
        ask(delay=5)
    with pytest.raises(TypeError, match="set delay and max_deliveries in NackOptions"):
        ask(reason=options, delay="5s")


def test_a_nack_without_arguments_has_no_options():
    assert Message.to_nack().nack_options is None
    assert Response.nack("a").nack_options is None


def test_an_except_exception_clause_would_catch_nack():
    assert issubclass(Nack, Exception)
