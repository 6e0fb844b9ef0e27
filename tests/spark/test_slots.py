"""What is reported about slots as their number changes, and the resulting length of epochs."""

from __future__ import annotations

import socket
from unittest.mock import Mock

import pytest

from ebbflow.runtime.control import STOP, obey, shorter_epochs_command
from ebbflow.spark.slots import TURN, Slots, WarmUp, find_executors, is_this_machine


@pytest.fixture
def reported():
    return []


@pytest.fixture
def slots(reported):
    return Slots(lambda: 3, 30.0, reported.append, lambda: None)


def look(slots, *numbers):
    for number in numbers:
        slots.note(number)


def test_too_few_slots_are_reported_once_and_shorten_epochs(slots, reported):
    look(slots, 2, 2, 2, 2)
    assert len(reported) == 1
    assert reported[0].startswith("3 tasks have only 2 slots, so vertices take turns of 2 s;")
    assert slots.epoch_seconds == TURN
    assert slots.takes_turns()


@pytest.mark.guarantee("a-run-goes-on")
def test_enough_slots_again_are_reported_and_restore_long_epochs(slots, reported):
    look(slots, 2, 2, 3, 3, 3)
    assert reported[1:] == ["all 3 tasks have slots again"]
    assert slots.epoch_seconds == 30.0


def test_every_further_loss_of_slots_is_reported(slots, reported):
    look(slots, 2, 2, 1, 1)
    assert [text.split(",")[0] for text in reported] == [
        "3 tasks have only 2 slots",
        "3 tasks have only 1 slots",
    ]


def test_executors_that_start_one_by_one_are_not_reported(slots, reported):
    look(slots, 0, 0, 1, 2, 3, 3, 2, 3, 3)
    assert reported == []
    assert slots.epoch_seconds == 30.0


def test_a_cluster_without_workers_is_reported_after_a_while(slots, reported):
    look(slots, *[0] * 30)
    assert reported == ["Spark has no workers at the moment; tasks wait until there are some"]
    look(slots, 4, 4)
    assert reported[1:] == ["all 3 tasks have slots again"]


def test_a_cluster_that_loses_its_last_worker_is_reported_at_once(slots, reported):
    look(slots, 3, 3, 0, 0)
    assert reported == ["Spark has no workers at the moment; tasks wait until there are some"]
    assert slots.explain_silence() == "Spark has no workers at the moment"
    assert not slots.takes_turns()  # otherwise tasks that wait for a worker would seem healthy


def test_a_lost_executor_is_reported_and_explains_silence_for_a_while(reported):
    now = [100.0]
    slots = Slots(lambda: 3, 30.0, reported.append, lambda: None, clock=lambda: now[0])
    look(slots, 3)
    slots.note_executors({("driver", 1), ("a", 7), ("b", 7)})
    assert (reported, slots.explain_silence()) == ([], None)
    slots.note_executors({("driver", 1), ("b", 7)})
    now[0] += 12
    assert reported == ["Spark lost an executor on a; it restarts its tasks on others"]
    assert slots.explain_silence() == "Spark lost an executor on a 12 s ago"
    now[0] += 60
    assert slots.explain_silence() is None


@pytest.mark.parametrize("loopback", [True, False])
def test_workers_elsewhere_that_cannot_reach_nats_are_reported_once(reported, loopback):
    slots = Slots(lambda: 3, 30.0, reported.append, lambda: None, loopback)
    slots.note_executors({("127.0.0.1", 1)})
    assert reported == []
    slots.note_executors({("127.0.0.1", 1), ("192.0.2.1", 7)})
    slots.note_executors({("127.0.0.1", 1), ("192.0.2.1", 7), ("192.0.2.2", 7)})
    assert reported == loopback * [
        "workers on other machines cannot reach NATS at an address of this machine only; "
        "name one that they can reach with --nats"
    ]


def test_configured_short_epochs_stay_short(reported):
    slots = Slots(lambda: 3, 0.5, reported.append, lambda: None)
    look(slots, 2, 2)
    assert slots.epoch_seconds == 0.5


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", socket.gethostname()])
def test_names_and_addresses_of_this_machine_are_recognised(host):
    assert is_this_machine(host)


@pytest.mark.parametrize("host", ["192.0.2.1", "no-such-host.invalid"])
def test_other_machines_are_not_taken_for_this_one(host):
    assert not is_this_machine(host)


def test_a_turn_is_sent_to_tasks_as_its_own_command():
    received: list[tuple[float, str | None]] = []

    def receive(seconds: float, vertex: str | None) -> None:
        received.append((seconds, vertex))

    obey(shorter_epochs_command(2.0), {"shorten": receive})
    obey(STOP, {"shorten": receive})
    assert received == [(2.0, None)]


def test_an_executor_that_gets_its_port_later_is_not_reported_as_lost():
    """Spark knows an executor before it knows its block manager's port."""

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


def test_executors_that_start_one_by_one_are_warmed_up_together(warm_up, begun) -> None:
    for executors in ([ONE], [ONE, TWO], [ONE, TWO], [ONE, TWO], [ONE, TWO]):
        warm_up.look(executors, spare=3)
    assert begun == [2]


def test_an_executor_that_is_added_later_is_warmed_up(warm_up, begun) -> None:
    for executors in ([ONE, TWO], [ONE, TWO], [ONE], [ONE], [ONE, THREE], [ONE, THREE]):
        warm_up.look(executors, spare=3)
    assert begun == [2, 2], "a lost one needs nothing"


@pytest.mark.parametrize("spare", [0, -2])
def test_there_is_no_warm_up_without_spare_slots(warm_up, begun, spare) -> None:
    for _ in range(3):
        warm_up.look([ONE, TWO], spare)
    assert begun == []


def test_a_warm_up_has_no_more_tasks_than_spare_slots(warm_up, begun) -> None:
    for _ in range(3):
        warm_up.look([ONE, TWO, THREE], spare=1)
    assert begun == [1]
