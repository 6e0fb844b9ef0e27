"""Waiting for a system that is down."""

from ebbflow.domain.durations import Backoff
from ebbflow.engine.blame import SystemOutage
from ebbflow.engine.outage import Patience, Waiting


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_waits_grow_up_to_the_cap_and_start_again_after_a_success():
    clock = Clock()
    patience = Patience(Backoff("100ms", steps=9, factor=2.0, cap="300ms"), clock=clock)
    assert (patience.down, patience.ready_in(), patience.waiting) == (False, 0.0, None)
    waits = []
    for _ in range(4):
        patience.meet(SystemOutage("the database"))
        waits.append(round(patience.ready_in(), 3))
        clock.now += patience.ready_in()
    assert waits == [0.1, 0.2, 0.3, 0.3]
    patience.end()
    assert not patience.down
    patience.meet(SystemOutage("the database"))
    assert round(patience.ready_in(), 3) == 0.1


def test_the_wait_is_at_least_what_the_error_asks_for():
    patience = Patience(Backoff("100ms", steps=9), clock=Clock())
    patience.meet(SystemOutage("the database", retry_after=4_000))
    assert patience.ready_in() == 4.0


def test_the_shown_outage_has_its_start_and_the_time_until_the_next_attempt():
    clock = Clock()
    patience = Patience(Backoff("1s", steps=9), clock=clock)
    patience.meet(SystemOutage("KeyError: 'x'", certain=False))
    clock.now += 12
    patience.meet(SystemOutage("KeyError: 'x'", certain=False))
    assert patience.waiting == Waiting("KeyError: 'x'", 12.0, 1.0, certain=False, named=False)
