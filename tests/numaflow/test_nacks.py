"""Nacks that are held back: each is released once, when its delay is over, the earliest first."""

from hypothesis import given
from hypothesis import strategies as st

from ebbflow import NackOptions
from ebbflow.domain.user_source import NackOffset
from ebbflow.numaflow.nacks import HeldNacks


@given(st.lists(st.none() | st.integers(0, 5_000), max_size=20), st.floats(0, 6))
def test_a_nack_is_released_once_after_its_delay(delays, passed):
    held = HeldNacks()
    nacks = [NackOffset(b"%d" % n, NackOptions(delay)) for n, delay in enumerate(delays)]
    held.hold(nacks, 0.0)
    due = {b"%d" % n for n, delay in enumerate(delays) if (delay or 0) / 1000 <= passed}
    taken = held.take_due(passed)
    assert {nack.offset for nack in taken} == due
    assert held.take_due(passed) == []
    rest = [(delay or 0) / 1000 for delay in delays if (delay or 0) / 1000 > passed]
    assert held.due_in(0.0) == min(rest, default=float("inf"))
    assert len(held.take_due(9.0)) == len(rest)


def test_nacks_that_were_forgotten_are_not_released():
    held = HeldNacks()
    held.hold([NackOffset(b"a", NackOptions(delay=5))], 0.0)
    held.forget()
    assert held.take_due(9.0) == []
