"""Small chunks: slowly arriving rows are taken together, and nothing else has to wait."""

from random import Random

import pytest

from ebbflow import Datum
from ebbflow.engine.inlet import Intake
from ebbflow.engine.position import Mark
from ebbflow.runtime.loop import SMALL, Gathering, GatheringPace
from tests.runtime.crash_model import AlwaysArrived, Chances, ModelClock, Reader, Rules, UserCode
from tests.runtime.crash_run import OrderedTask, Trickle, inlet_of
from tests.runtime.memory_server import Server

PACE = GatheringPace(longest=0.040, times=3)


@pytest.mark.parametrize(
    ("rows", "leaves_rows", "waited"),
    [(1, False, 15), (SMALL - 1, False, 15), (SMALL, False, 0), (1, True, 0)],
    ids=["one row", "few rows", "many rows", "a full chunk"],
)
def test_rows_gather_after_a_small_chunk_according_to_its_duration(rows, leaves_rows, waited):
    assert wait_after(rows, leaves_rows, took=5) == waited


def test_rows_gather_for_no_longer_than_the_longest_wait_however_long_a_chunk_took():
    assert wait_after(1, leaves_rows=False, took=30) == 10
    assert wait_after(1, leaves_rows=False, took=100) == 0


def wait_after(rows: int, leaves_rows: bool, took: int) -> int:
    """The milliseconds that rows gather after a chunk that took so many."""
    server = Server([])
    gathering = Gathering(ModelClock(server), PACE)
    gathering.begin_chunk(rows, leaves_rows)
    server.pass_time(took)
    gathering.end_chunk()
    return max(0, round(1000 * gathering.until) - server.now)


class Busy(UserCode):
    """Takes a millisecond for each call."""

    def __init__(self, server: Server) -> None:
        super().__init__(())
        self._server = server

    def __call__(self, datum: Datum) -> object:
        self._server.pass_time(1)
        return super().__call__(datum)


def test_one_message_per_millisecond_makes_a_chunk_every_few_milliseconds():
    server = Server([])
    report = Trickle(server, Busy(server), Rules(), Chances(Random(1))).run()
    assert len(server.outputs) == report.rows == Trickle.rows
    assert report.chunks <= Trickle.rows / 2 + 2


def test_waiting_frames_of_an_ordered_vertex_are_taken_without_gathering():
    server = Server(inlet_of(*[1] * 20))
    began = server.now
    report = OrderedTask(server, UserCode(()), Rules(), Chances(Random(1))).run()
    assert report.chunks == 20
    assert server.now - began < 20


@pytest.mark.parametrize(
    ("new", "redelivered", "leaves_rows"),
    [(3, 0, False), (3, 3, False), (8, 0, True), (0, 4, True), (4, 4, True)],
)
def test_a_chunk_leaves_rows_when_it_has_no_room_for_more_of_either_stream(
    new, redelivered, leaves_rows
):
    streams = (
        Reader(inlet_of(size) if size else [], Mark(), AlwaysArrived(1))
        for size in (new, redelivered)
    )
    taken = Intake(*streams).take(limit=8, held=False)
    assert taken.leaves_rows is leaves_rows
