"""The record of what users have paused."""

import json
from datetime import UTC, datetime, timedelta

from hypothesis import given
from hypothesis import strategies as st

from ebbflow.streams.positions import Pauses

NOON = datetime(2026, 1, 2, 12, tzinfo=UTC)
VERTICES = ("a", "b", "c")
changes = st.lists(
    st.tuples(st.sampled_from(["pause", "resume"]), st.none() | st.sampled_from(VERTICES)),
    max_size=12,
)


def after(steps, pauses=None):
    pauses = pauses or Pauses()
    for number, (request, vertex) in enumerate(steps):
        at = NOON + timedelta(minutes=number)
        pauses = pauses.pausing(vertex, at) if request == "pause" else pauses.resuming(vertex)
    return pauses


@given(changes)
def test_the_last_request_for_a_vertex_counts(steps):
    pauses = after(steps)
    for name in VERTICES:
        last = next(
            (request for request, vertex in reversed(steps) if vertex in (None, name)), "resume"
        )
        assert (pauses.since(name) is not None) == (last == "pause")


@given(changes, st.sampled_from(VERTICES))
def test_a_vertex_that_is_paused_again_keeps_its_first_pause_time(steps, vertex):
    pauses = after([*steps, ("pause", vertex)])
    later = NOON + timedelta(days=1)
    assert pauses.pausing(vertex, later).since(vertex) == pauses.since(vertex)


@given(changes)
def test_the_record_is_read_back_as_it_was_written(steps):
    pauses = after(steps)
    read = Pauses.from_json(json.dumps(pauses.to_json()), 7)
    assert (read, read.revision) == (pauses, 7)


def test_a_vertex_resumed_by_name_continues_alone():
    pauses = after([("pause", None), ("resume", "b")])
    assert [pauses.since(name) is not None for name in VERTICES] == [True, False, True]
    assert pauses.pausing(None, NOON).since("b") is not None
