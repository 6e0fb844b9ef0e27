"""What is told of slots as their number changes, and how long epochs are then."""

from __future__ import annotations

import socket
from unittest.mock import Mock

import pytest

from ebbflow.runtime.control import STOP, obey, shorter_epochs_command
from ebbflow.spark.slots import TURN, Slots, WarmUp, find_executors, is_this_machine


@pytest.fixture
def told():
    return []


@pytest.fixture
def slots(told):
    return Slots(lambda: 3, 30.0, told.append, lambda: None)


def look(slots, *numbers):
    for number in numbers:
        slots.note(number)


def test_too_few_slots_are_told_once_and_make_epochs_short(slots, told):
    look(slots, 2, 2, 2, 2)
    assert len(told) == 1
    assert told[0].startswith("3 tasks have only 2 slots, so vertices take turns of 2 s;")
    assert slots.epoch_seconds == TURN
    assert slots.takes_turns()


@pytest.mark.guarantee("a-run-goes-on")
def test_when_there_are_enough_again_it_is_told_and_epochs_are_long(slots, told):
    look(slots, 2, 2, 3, 3, 3)
    assert told[1:] == ["all 3 tasks have slots again"]
    assert slots.epoch_seconds == 30.0


def test_every_number_that_is_too_small_is_told(slots, told):
    look(slots, 2, 2, 1, 1)
    assert [text.split(",")[0] for text in told] == [
        "3 tasks have only 2 slots",
        "3 tasks have only 1 slots",
    ]


def test_executors_that_come_one_by_one_are_not_told(slots, told):
    look(slots, 0, 0, 1, 2, 3, 3, 2, 3, 3)
    assert told == []
    assert slots.epoch_seconds == 30.0


def test_a_cluster_without_workers_is_told_after_a_while(slots, told):
    look(slots, *[0] * 30)
    assert told == ["Spark has no workers at the moment; tasks wait until there are some"]
    look(slots, 4, 4)
    assert told[1:] == ["all 3 tasks have slots again"]


def test_a_cluster_that_loses_its_last_worker_is_told_at_once(slots, told):
    look(slots, 3, 3, 0, 0)
    assert told == ["Spark has no workers at the moment; tasks wait until there are some"]
    assert slots.explain_silence() == "Spark has no workers at the moment"
    assert not slots.takes_turns()  # else tasks that wait for a worker would pass for well


def test_a_lost_executor_is_told_and_explains_silence_for_a_while(told):
    now = [100.0]
    slots = Slots(lambda: 3, 30.0, told.append, lambda: None, clock=lambda: now[0])
    look(slots, 3)
    slots.note_executors({("driver", 1), ("a", 7), ("b", 7)})
    assert (told, slots.explain_silence()) == ([], None)
    slots.note_executors({("driver", 1), ("b", 7)})
    now[0] += 12
    assert told == ["Spark lost an executor on a; it restarts its tasks on others"]
    assert slots.explain_silence() == "Spark lost an executor on a 12 s ago"
    now[0] += 60
    assert slots.explain_silence() is None


def test_short_epochs_that_were_asked_for_stay_short(told):
    slots = Slots(lambda: 3, 0.5, told.append, lambda: None)
    look(slots, 2, 2)
    assert slots.epoch_seconds == 0.5


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", socket.gethostname()])
def test_names_and_addresses_of_this_machine_are_here(host):
    assert is_this_machine(host)


@pytest.mark.parametrize("host", ["192.0.2.1", "no-such-host.invalid"])
def test_other_machines_are_not(host):
    assert not is_this_machine(host)


def test_a_turn_is_told_in_a_word_of_its_own():
    heard: list[tuple[float, str | None]] = []

    def hear(seconds: float, vertex: str | None) -> None:
        heard.append((seconds, vertex))

    obey(shorter_epochs_command(2.0), {"shorten": hear})
    obey(STOP, {"shorten": hear})
    assert heard == [(2.0, None)]


def test_an_executor_that_has_no_port_yet_does_not_seem_lost_when_it_has_one():
    """Spark knows of an executor before it knows where its blocks are."""

    def spark(*ports):
        infos = [Mock(host=lambda: "a", port=lambda port=port: port) for port in ports]
        session = Mock()
        tracker = session.sparkContext._jsc.sc.return_value.statusTracker.return_value
        tracker.getExecutorInfos.return_value = infos
        return session

    assert find_executors(spark(7, 0)) == {("a", 7)}
    assert find_executors(spark(7, 8)) == {("a", 7), ("a", 8)}


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
