"""Chunks that publish nothing, such as those of a sink, share records, and nothing is lost."""

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ebbflow.accounts.trail import TrailObserver
from ebbflow.engine.position import ChunkCounts, Mark
from ebbflow.runtime.loop import AT_BUFFER
from ebbflow.runtime.settling import Settling
from tests.runtime.crash_model import AlwaysArrived, Chances, Rules, UserCode
from tests.runtime.crash_run import ModelTask, Trickle, inlet_of, run_to_the_end
from tests.runtime.memory_server import Server
from tests.thorough import examples

WITHIN = 10
"""Milliseconds after which a chunk is recorded."""

tasks = st.lists(
    st.builds(
        Chances,
        random=st.randoms(use_true_random=False),
        crash_after=st.none() | st.integers(0, 15),
        stop_after=st.none() | st.integers(0, 10),
    ),
    max_size=5,
)
scripts = st.lists(st.sampled_from(["drop", "drop", "serve", "forward", "nack", "dead"]))


class Watched(Server):
    """Records when positions are written."""

    def write(self, position, revision):
        self.__dict__.setdefault("written_at", []).append((self.now, position))
        return super().write(position, revision)


@pytest.mark.guarantee("nothing-is-lost")
@settings(max_examples=examples(150))
@given(st.lists(st.integers(1, 2), min_size=1, max_size=8), scripts, tasks)
def test_nothing_is_lost_or_miscounted_among_chunks_that_publish_nothing(
    sizes, script, given_tasks
):
    server = Server(inlet_of(*sizes))
    assert run_to_the_end(server, UserCode(script), given_tasks) == set()
    position = server.position
    assert (position.replays, position.done.inlet) == (False, Mark(len(sizes)))
    counts = position.counts
    assert counts.read == counts.ended == sum(sizes) + counts.redelivered


def test_a_sink_writes_one_record_for_the_chunks_of_ten_milliseconds():
    server = Watched([])
    report = Trickle(server, UserCode(["drop"] * 100), Rules(), Chances(AlwaysArrived(1))).run()
    _claim, _first_chunk, *records = server.written_at
    assert len(records) <= Trickle.rows / WITHIN + 2 < report.chunks
    assert server.position.counts.dropped == Trickle.rows


def test_no_chunk_of_a_steady_flow_waits_longer_than_that_to_be_recorded():
    server = Watched([])
    Trickle(server, UserCode(["drop"] * 100), Rules(), Chances(AlwaysArrived(1))).run()
    (began, _), _, *records = server.written_at
    # A row arrives every millisecond: those that have been there for so long are done.
    late = [at - began - position.done.inlet.seq for at, position in records[:-1]]
    assert late
    assert max(late) <= WITHIN + AT_BUFFER.longest * 1000


@pytest.mark.parametrize(("every", "writes"), [(20, 1.2), (80, 1.2), (300, 2)])
def test_a_chunk_of_a_steady_trickle_is_recorded_with_the_next_one(every, writes):
    class Slow(Trickle):
        pass

    Slow.every = every
    server = Watched([])
    report = Slow(server, UserCode(["forward"] * 100), Rules(), Chances(AlwaysArrived(1))).run()
    assert report.chunks == Trickle.rows
    # More than a quarter of a second apart, each is recorded by itself: no next one is expected.
    assert len(server.written_at) == pytest.approx(writes * report.chunks, rel=0.2)


@pytest.mark.parametrize("trail", [False, True])
@pytest.mark.parametrize("kind", ["drop", "serve"])
def test_no_intent_is_written_for_a_chunk_that_publishes_nothing_but_answers(kind, trail):
    class Task(ModelTask):
        observers = (TrailObserver(),) if trail else ()

    server = Watched(inlet_of(*[1] * 5))
    Task(server, UserCode([kind] * 5), Rules(), Chances(AlwaysArrived(1))).run()
    assert not any(position.replays for _, position in server.written_at)
    assert len(server.written_at) < 5
    assert len(server.answers) == (5 if kind == "serve" else 0)
    assert len(server.trail) == (5 if trail else 0)


def test_joining_a_chunk_in_flight_would_lose_its_counts(monkeypatch):
    """So the chunk in flight is confirmed first."""

    def counts() -> int:
        server = Server(inlet_of(*[1] * 8))
        script = ["forward", "drop", "drop"] * 3
        ModelTask(server, UserCode(script), Rules(), Chances(Random(2))).run()
        return server.position.counts.ended

    def join(self, chunk) -> tuple[ChunkCounts, ChunkCounts]:
        before = self._unrecorded
        self._unrecorded = before.joined(chunk) if before else chunk
        return before.counts if before else ChunkCounts(), self._unrecorded.counts

    assert counts() == 8
    monkeypatch.setattr(Settling, "_join", join)
    assert counts() < 8
