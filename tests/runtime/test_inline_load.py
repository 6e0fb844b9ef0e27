"""When an edge is inline, and when it uses its buffer."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from ebbflow.runtime.inline_load import SLOW, InlineLoad, TaskLoad


@dataclass
class Machine:
    """A clock that is set forward, a task that is busy, and cores that are idle."""

    seconds: float = 100.0
    busy: float = 0.2
    idle: float = 1.5
    waiting: int | None = 0

    def __post_init__(self) -> None:
        self.cpu = self.idled = 0.0
        self.load = TaskLoad(self, lambda: self.cpu, lambda: self.idled)
        self.edge = InlineLoad(self, self.load, lambda: self.waiting)

    def monotonic(self) -> float:
        return self.seconds

    def chunks(self, seconds: float, rows: int = 10, row: float = 1e-6, is_open: bool = True):
        """Whether each of the chunks of some seconds, a hundred a second, is taken inline."""
        taken = []
        for _ in range(round(seconds * 100)):
            self.seconds += 0.01
            self.cpu += self.busy * 0.01
            self.idled += self.idle * 0.01
            taken.append(self.edge.takes(rows, is_open))
            if taken[-1]:
                self.edge.took(rows, rows * row)
        return taken


def test_an_edge_is_inline_from_the_first_chunk_if_nothing_waits():
    assert all(Machine().chunks(2.0))


@pytest.mark.parametrize("waiting", [None, 1_000])
def test_a_backlog_is_worked_off_before_the_edge_is_inline(waiting):
    machine = Machine(waiting=waiting)
    assert not any(machine.chunks(2.0))
    machine.waiting = 3
    assert all(machine.chunks(1.0))


def test_a_vertex_that_cannot_take_messages_gets_its_buffer_until_that_is_worked_off():
    machine = Machine()
    machine.chunks(1.0)
    assert not any(machine.chunks(1.0, is_open=False))
    machine.waiting = 500
    assert not any(machine.chunks(1.0)), "its own task has to show that it works again"
    machine.waiting = 0
    assert all(machine.chunks(1.0))


def test_calls_that_are_slow_do_not_hold_up_the_vertex_before():
    machine = Machine()
    slow = SLOW / 10 * 1.5
    assert machine.chunks(0.05, row=slow) == [True, False, False, False, False]
    assert machine.chunks(0.01, rows=1, row=slow) == [True], "few rows are soon done"


def test_a_vertex_whose_first_call_was_slow_is_tried_again():
    machine = Machine()
    machine.chunks(0.01, row=SLOW)
    assert not any(machine.chunks(1.0))
    assert any(machine.chunks(60.0))


def test_a_saturated_task_gives_work_to_idle_cores():
    machine = Machine(busy=1.0)
    assert machine.chunks(3.0, row=1e-3 / 10)[-1] is False
    assert not any(machine.chunks(5.0, row=1e-3 / 10))


def test_a_saturated_task_keeps_an_edge_that_costs_less_than_a_hop():
    assert all(Machine(busy=1.0).chunks(5.0, row=1e-6))


def test_a_saturated_task_keeps_its_edges_if_no_core_is_idle():
    assert all(Machine(busy=1.0, idle=0.05).chunks(5.0, row=1e-4))


def test_an_edge_comes_back_when_the_task_has_time_for_it():
    machine = Machine(busy=1.0)
    machine.chunks(3.0, row=1e-4)
    machine.busy = 0.3
    assert not any(machine.chunks(5.0, row=1e-4)), "not at once: it would go back and forth"
    assert machine.chunks(15.0, row=1e-4)[-1] is True
