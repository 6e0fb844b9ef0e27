"""Small chunks: the rows of a trickle are taken together, and nothing else has to wait."""

from random import Random

import pytest

from ebbflow.engine.inlet import Intake
from ebbflow.engine.position import Mark
from ebbflow.runtime.loop import AT_BUFFER, SMALL, Gathering
from tests.runtime.crash_model import AtHand, Chances, ModelClock, Reader, Rules, UserCode
from tests.runtime.crash_run import OrderedTask, Trickle, inlet_of
from tests.runtime.memory_server import Server

A_MOMENT = int(AT_BUFFER * 1000)


@pytest.mark.parametrize(
    ("rows", "leaves_rows", "waited"),
    [(1, False, A_MOMENT), (SMALL - 1, False, A_MOMENT), (SMALL, False, 0), (1, True, 0)],
    ids=["one row", "few rows", "many rows", "a full chunk"],
)
def test_after_a_small_chunk_that_leaves_nothing_a_moment_passes(rows, leaves_rows, waited):
    server = Server([])
    gathering, began = Gathering(ModelClock(server), AT_BUFFER), server.now
    gathering.begin_chunk(rows, leaves_rows)
    assert round(1000 * gathering.until) - began == waited


def test_time_that_the_chunk_itself_took_is_not_waited_for_again():
    server = Server([])
    gathering = Gathering(ModelClock(server), AT_BUFFER)
    gathering.begin_chunk(1, leaves_rows=False)
    server.pass_time(A_MOMENT + 1)
    assert 1000 * gathering.until < server.now


def test_a_message_a_millisecond_makes_a_chunk_every_few_milliseconds():
    server = Server([])
    report = Trickle(server, UserCode(()), Rules(), Chances(Random(1))).run()
    assert len(server.outputs) == report.rows == Trickle.rows
    assert report.chunks <= Trickle.rows / A_MOMENT + 2


def test_frames_of_an_ordered_vertex_that_wait_are_taken_one_after_another_at_once():
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
        Reader(inlet_of(size) if size else [], Mark(), AtHand(1)) for size in (new, redelivered)
    )
    taken = Intake(*streams).take(limit=8, held=False)
    assert taken.leaves_rows is leaves_rows
