"""The watermark never goes back, is never ahead of a feeder, and is not known too early."""

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ebbflow import Datum, Message
from ebbflow.engine.inlet import Feeder, Watermark
from ebbflow.usercode.calling import Handler, call_map
from tests.engine.sample_rows import some, verdict_on

START = datetime(2026, 1, 1, tzinfo=UTC)
T = [START + timedelta(seconds=n) for n in range(10)]

moments = st.integers(0, 50).map(lambda n: START + timedelta(seconds=n))
frames = st.lists(
    st.tuples(st.sampled_from(["a.0", "a.1", "b.0", "other", None]), st.none() | moments),
    max_size=5,
)
FEEDERS = ("a.0", "a.1", "b.0")
VERTICES = (Feeder(("a.0", "a.1")), Feeder(("b.0",)))


@pytest.mark.guarantee("the-watermark-only-rises")
@given(st.none() | moments, st.lists(frames, max_size=12))
def test_the_watermark_only_rises_and_is_never_ahead_of_what_any_feeder_reported(start, chunks):
    watermark = Watermark(VERTICES, start)
    reported: dict[str, datetime] = {}
    before = start
    for chunk in chunks:
        watermark.follow(chunk)
        first: dict[str, datetime] = {}
        for feeder, time in chunk:
            if feeder in FEEDERS and time is not None:
                first.setdefault(feeder, time)
        reported |= {f: max(time, reported.get(f, time)) for f, time in first.items()}
        now = watermark.current
        assert before is None or now >= before
        if now != before:
            assert reported.keys() == set(FEEDERS)
            assert now <= min(reported.values())
        before = now


def test_the_watermark_is_unknown_until_every_feeder_has_reported():
    watermark = Watermark(VERTICES, None)
    watermark.follow([("a.0", T[5]), ("a.1", T[3])])
    assert watermark.current is None
    watermark.follow([("b.0", None), ("other", T[1]), (None, T[1])])
    assert watermark.current is None
    watermark.follow([("b.0", T[7])])
    assert watermark.current == T[3], "the lowest"


def test_the_watermark_follows_the_slowest_feeder():
    watermark = Watermark((Feeder(("a", "b")),), None)
    for a, b, expected in [(1, 2, 1), (5, 3, 3), (6, 3, 3), (7, 9, 7)]:
        watermark.follow([("a", T[a]), ("b", T[b])])
        assert watermark.current == T[expected]


def test_only_the_first_of_several_frames_of_a_feeder_counts():
    watermark = Watermark((Feeder(("a",)),), None)
    watermark.follow([("a", T[2]), ("a", T[8])])
    assert watermark.current == T[2]
    watermark.follow([])
    assert watermark.current == T[2]


def test_a_late_frame_does_not_move_the_watermark_back():
    watermark = Watermark((Feeder(("a",)),), T[4])
    watermark.follow([("a", T[2])])
    assert watermark.current == T[4]


@pytest.mark.guarantee("the-watermark-only-rises")
def test_the_watermark_from_before_a_restart_is_known_at_once():
    assert Watermark(VERTICES, T[3]).current == T[3]


def test_frames_do_not_move_the_watermark_of_a_vertex_without_feeders():
    watermark = Watermark((), None)
    watermark.follow([("a", T[2])])
    assert watermark.current is None


@given(st.lists(st.lists(moments, max_size=4), max_size=8))
def test_the_watermark_of_a_source_is_the_highest_of_each_chunks_earliest_time(chunks):
    watermark = Watermark((), None)
    for times in chunks:
        watermark.follow_times(times)
    assert watermark.current == max((min(times) for times in chunks if times), default=None)


def test_event_times_without_a_zone_are_in_utc_even_those_of_dropped_messages():
    naive = [time.replace(tzinfo=None) for time in (T[3], T[1], T[2])]
    answers = {
        "a": Message(b"", event_time=naive[0]),
        "b": Message.to_drop(naive[1]),
        "c": Message.to_nack(event_time=naive[2]),
    }
    verdict = verdict_on(some(*answers))
    call_map(Handler(lambda datum: answers[datum.id]), verdict, 1)
    assert min(verdict.gather_event_times()) == T[1]


def test_event_times_of_nacked_dropped_and_forwarded_messages_count():
    results = {
        "a": Message(b"", event_time=T[5]),
        "b": Message.to_nack(None, T[1]),
        "c": [Message(b"", event_time=T[6]), Message.to_drop(T[2])],
        "d": Message.to_fail("no", T[3]),
    }

    def transformer(datum: Datum):
        return results[datum.id]

    verdict = verdict_on(some(*results))
    call_map(Handler(transformer), verdict, 1)
    assert verdict.decisions.event_times == [T[1], T[2], T[3]]
    assert verdict.outputs.event_times == [T[5], T[6]]
    watermark = Watermark((), None)
    watermark.follow_times([*verdict.decisions.event_times, *verdict.outputs.event_times])
    assert watermark.current == T[1]


def test_a_vertex_that_runs_inline_has_the_watermark_of_the_tasks_that_run_it():
    """Its own task receives nothing then, and would hold the watermark back forever."""
    watermark = Watermark((Feeder(("b.0",), (Feeder(("a.0", "a.1")),)),), None)
    watermark.follow([("a.0", T[3])])
    assert watermark.current is None, "the other task may be further back"
    watermark.follow([("a.1", T[2])])
    assert watermark.current == T[2]
    watermark.follow([("b.0", T[1])])
    assert watermark.current == T[2]
    watermark.follow([("b.0", T[5])])
    assert watermark.current == T[5], "the frames that a wrote to the buffer of b have been read"
