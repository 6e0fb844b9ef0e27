"""The end of a task: an epoch that is over, a stop, and full buffers."""

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ebbflow.domain.errors import Fenced
from ebbflow.engine.outage import BreakerLimit
from ebbflow.engine.position import Mark
from tests.runtime.crash_model import DECISIONS, Chances, Rules, UserCode
from tests.runtime.crash_run import ModelTask, inlet_of, run_to_the_end
from tests.runtime.memory_server import Server
from tests.thorough import examples

tasks = st.lists(
    st.builds(
        Chances,
        random=st.randoms(use_true_random=False),
        crash_after=st.none() | st.integers(0, 25),
        stop_after=st.none() | st.integers(0, 15),
    ),
    max_size=5,
)
inlets = st.lists(st.integers(1, 4), min_size=1, max_size=4)
scripts = st.lists(st.sampled_from(DECISIONS), max_size=20)

AT_THE_INTENT = 1
"""Steps before a stop when the first chunk has begun: a claim, and its intent."""


def stopped_task(server: Server, kind: type[ModelTask] = ModelTask) -> ModelTask:
    return kind(server, UserCode(()), Rules(), Chances(Random(1), stop_after=AT_THE_INTENT))


@settings(max_examples=examples(80))
@given(inlets, scripts, tasks, st.sampled_from([0, 3_000, 30_000]))
def test_no_message_is_lost_whenever_a_task_stops_crashes_or_finds_no_room(
    sizes, script, given_tasks, full_for
):
    server = Server(inlet_of(*sizes))
    server.full_until = server.now + full_for
    assert run_to_the_end(server, UserCode(script), given_tasks) == set()
    counts = server.position.counts
    assert counts.read == counts.ended == sum(sizes) + counts.redelivered


def test_a_stop_settles_and_records_what_is_in_flight():
    server = Server(inlet_of(4))
    report = stopped_task(server).run()
    assert report.ended == "stop"
    assert not server.position.replays
    assert server.position.counts.read == report.rows == len(server.outputs) > 0


def test_a_stopping_task_waits_a_moment_for_room():
    server = Server(inlet_of(4))
    server.full_until = server.now + 4_000
    report = stopped_task(server).run()
    assert (report.ended, server.position.replays) == ("stop", False)
    assert len(server.outputs) == report.rows


def test_a_stop_abandons_a_chunk_that_finds_no_room_and_the_next_task_replays_it():
    server = Server(inlet_of(4))
    began = server.now
    server.full_until = began + 60_000
    report = stopped_task(server).run()
    assert 5_000 < server.now - began < 6_000
    assert (report.ended, server.outputs) == ("stop", [])
    assert server.position.replays
    assert server.position.done.inlet == Mark()
    assert run_to_the_end(server, UserCode(())) == set()
    assert sorted(server.outputs) == ["m0/v", "m1/v", "m2/v", "m3/v"]


def test_a_task_that_is_not_stopped_waits_for_room_however_long_it_takes():
    server = Server(inlet_of(4))
    server.full_until = server.now + 600_000
    ModelTask(server, UserCode(()), Rules(), Chances(Random(1))).run()
    assert len(server.outputs) == 4


class ShortTask(ModelTask):
    """Its epoch is over at once."""

    seconds = 0.0


def test_the_shortest_epoch_has_a_chunk_if_there_are_rows_to_take():
    server = Server(inlet_of(4, 4))
    report = ShortTask(server, UserCode(()), Rules(), Chances(Random(1))).run()
    assert (report.ended, report.chunks) == ("epoch", 1)
    assert server.position.counts.read == report.rows


def test_an_epoch_without_rows_to_take_is_over_after_a_second():
    server = Server([])
    began = server.now
    task = ShortTask(server, UserCode(()), Rules(), Chances(Random(1)))
    task.more_comes = lambda: True
    assert task.run().ended == "epoch"
    assert 1_000 <= server.now - began < 2_000


def test_an_epoch_that_other_tasks_wait_for_can_be_shortened():
    server = Server([])
    began = server.now
    task = ModelTask(server, UserCode(()), Rules(), Chances(Random(1)))
    task.more_comes = lambda: True
    task.epoch.shorten(3.0)
    assert task.run().ended == "epoch"
    assert 3_000 <= server.now - began < 4_000


def test_a_task_that_was_replaced_stops_without_settling():
    server = Server(inlet_of(3))
    old = ModelTask(server, UserCode(()), Rules(), Chances(Random(1)))
    ModelTask(server, UserCode(()), Rules(), Chances(Random(1)))
    with pytest.raises(Fenced):
        old.run()
    assert server.outputs == []
    assert server.position.done.inlet == Mark()


class BreakingTask(ModelTask):
    """It is halted when half of the last four became dead letters, and resumed later."""

    breaker = BreakerLimit(0.5, 4)
    letters_when_halted: tuple[int, ...] = ()

    def idle(self) -> None:
        super().idle()
        if self.server.position.halted:
            self.letters_when_halted += (len(self.server.letters),)
            if len(self.letters_when_halted) == 3:
                self.control.resume()


def test_a_halted_vertex_takes_no_rows_until_it_is_resumed():
    server = Server(inlet_of(*[1] * 12))
    task = BreakingTask(server, UserCode(["dead"] * 4), Rules(), Chances(Random(1)))
    task.run()
    assert set(task.letters_when_halted) == {2}
    assert server.ended() == {f"m{n}" for n in range(12)}
    assert server.position.halted is None
