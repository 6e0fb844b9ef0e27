"""When executors are warmed up, and with how many tasks."""

from __future__ import annotations

import pytest

from ebbflow.spark.warming import WarmUp

ONE, TWO, THREE = ("a", 1), ("b", 1), ("c", 1)


@pytest.fixture
def begun() -> list[int]:
    return []


@pytest.fixture
def warm_up(begun: list[int]) -> WarmUp:
    return WarmUp(begun.append)


def test_executors_that_come_one_by_one_are_warmed_up_together(warm_up, begun) -> None:
    for executors in ([ONE], [ONE, TWO], [ONE, TWO], [ONE, TWO], [ONE, TWO]):
        warm_up.look(executors, spare=3)
    assert begun == [2]


def test_an_executor_that_comes_later_is_warmed_up(warm_up, begun) -> None:
    for executors in ([ONE, TWO], [ONE, TWO], [ONE], [ONE], [ONE, THREE], [ONE, THREE]):
        warm_up.look(executors, spare=3)
    assert begun == [2, 2], "for one that is lost there is nothing to do"


@pytest.mark.parametrize("spare", [0, -2])
def test_without_spare_slots_there_is_no_warm_up(warm_up, begun, spare) -> None:
    for _ in range(3):
        warm_up.look([ONE, TWO], spare)
    assert begun == []


def test_no_task_of_a_warm_up_waits_for_a_slot(warm_up, begun) -> None:
    for _ in range(3):
        warm_up.look([ONE, TWO, THREE], spare=1)
    assert begun == [1]
