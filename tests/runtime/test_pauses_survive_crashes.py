"""A vertex that users pause and resume at any step, with crashes in between.

It loses nothing and counts exactly; while its record says that it is paused, user code is not
called, whichever task has taken the partition over.
"""

from random import Random

import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st

from ebbflow.engine.verdict import Verdict
from tests.runtime.crash_model import DECISIONS, Chances, Rules, UserCode
from tests.runtime.crash_run import ModelTask, OrderedTask, StreamTask, inlet_of, run_to_the_end
from tests.runtime.memory_server import Server
from tests.thorough import examples

crashes = st.lists(
    st.builds(
        Chances,
        random=st.randoms(use_true_random=False),
        crash_after=st.integers(0, 25),
        zombie=st.sampled_from([0, 0, 1, 99]),
    ),
    max_size=5,
)
inlets = st.lists(st.integers(1, 4), min_size=1, max_size=5)
scripts = st.lists(st.sampled_from(DECISIONS), max_size=40)


class Users:
    """They pause and resume; their requests survive every task."""

    def __init__(self, random: Random) -> None:
        self.random = random
        self.want_pause = random.random() < 0.5
        self.changes = 0

    def happen(self, chance: float) -> None:
        if self.random.random() < chance:
            self.want_pause = not self.want_pause
            self.changes += 1


def pausable(kind: type[ModelTask], users: Users) -> type[ModelTask]:
    """A kind of task that receives the users' requests, at its start and at every step."""

    class Pausable(kind):  # type: ignore[misc, valid-type]
        def __init__(self, *args: object) -> None:
            super().__init__(*args)
            self.control.pause(users.want_pause)
            self.journal.other_threads = self._act

        def _act(self) -> None:
            users.happen(0.1)
            self.control.pause(users.want_pause)

        def idle(self) -> None:
            super().idle()
            if users.want_pause:
                users.happen(0.3)
                self.control.pause(users.want_pause)

        def __call__(self, verdict: Verdict) -> None:
            assert not self.server.position.paused, "called while the record says paused"
            super().__call__(verdict)

    return Pausable


@pytest.mark.guarantee("nothing-is-lost")
@pytest.mark.guarantee("pauses-hold")
@pytest.mark.parametrize("kind", [ModelTask, OrderedTask, StreamTask], ids=lambda k: k.__name__)
@settings(max_examples=examples(40))
@given(inlets, scripts, crashes, st.randoms(use_true_random=False))
def test_pauses_lose_nothing_and_count_exactly(kind, sizes, script, given_crashes, random):
    server, users = Server(inlet_of(*sizes)), Users(random)
    lost = run_to_the_end(server, UserCode(script), given_crashes, kind=pausable(kind, users))
    event(f"{min(users.changes, 5)} changes")
    assert lost == set()
    if kind is ModelTask:
        counts = server.position.counts
        assert counts.read == counts.ended == sum(sizes) + counts.redelivered


class PausedFor(ModelTask):
    """It is paused when its second chunk is begun, and resumed after twenty waits."""

    waits_paused = 0
    done_when_paused: tuple[int, ...] = ()

    def __call__(self, verdict: Verdict) -> None:
        super().__call__(verdict)
        if self.waits_paused == 0 and len(self.server.outputs) > 0:
            self.control.pause(True)

    def idle(self) -> None:
        super().idle()
        if self.server.position.paused:
            self.waits_paused += 1
            self.done_when_paused += (len(self.server.outputs),)
            if self.waits_paused == 20:
                self.control.pause(False)


def test_a_pause_settles_the_rows_in_flight_and_then_no_rows_are_taken():
    server = Server(inlet_of(*[1] * 12))
    task = PausedFor(server, UserCode(()), Rules(), Chances(Random(1)))
    task.largest = 1
    task.run()
    assert len(set(task.done_when_paused)) == 1
    assert 0 < task.done_when_paused[0] < 12
    assert len(server.outputs) == 12
    assert not server.position.paused


def test_the_next_task_starts_paused_without_opening_user_code():
    server = Server(inlet_of(3))
    first = ModelTask(server, UserCode(()), Rules(), Chances(Random(1)))
    first.control.pause(True)
    first.seconds = 0.0
    waits = []

    def stop_soon() -> None:
        waits.append(server.position.paused)
        if len(waits) == 3:
            first.epoch.stop()

    first.idle = first.clock._idle = stop_soon  # type: ignore[method-assign]
    opened = []
    first.open = lambda: opened.append(True)  # type: ignore[method-assign]
    first.run()
    assert waits == [True] * 3
    assert opened == []
    assert (server.position.paused, server.outputs) == (True, [])
    assert run_to_the_end(server, UserCode(())) == set()
    assert not server.position.paused
