import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ebbflow.domain.outcome import COUNTERS, Counts
from ebbflow.engine.position import Held, Mark, Position, Span, chunk_key
from tests.engine.sample_rows import times

numbers = st.integers(0, 2**53)
marks = st.builds(Mark, numbers, st.integers(0, 1_000))
spans = st.builds(Span, marks, marks)
counts = st.builds(Counts, **dict.fromkeys(COUNTERS, numbers))
helds = st.builds(
    Held,
    due=numbers,
    deliveries=numbers,
    failures=numbers,
    retries=numbers,
    reason=st.none() | st.text(),
)
positions = st.builds(
    Position,
    lineage=st.text(max_size=8),
    epoch=numbers,
    owner=st.text(max_size=8),
    done=spans,
    intent=spans,
    attempts=st.integers(0, 9),
    exhausted=st.booleans(),
    watermark=st.none() | times,
    held=st.none() | helds,
    counts=counts,
)


@given(positions)
def test_a_stored_position_is_read_back_unchanged(position):
    assert Position.from_json(position.to_json()) == position


def test_the_stored_record_has_the_documented_fields():
    record = json.loads(Position("x", done=Span(Mark(3, 1), Mark(2))).to_json())
    assert record["done"] == [3, 1]
    assert record["redelivery_done"] == [2, 0]
    assert {"intent", "redelivery_intent", "epoch", "lineage", "counts"} <= record.keys()


@given(positions, st.text(max_size=8))
def test_claiming_changes_only_the_fields_of_the_task(position, owner):
    claimed = position.claimed(owner)
    assert (claimed.owner, claimed.epoch) == (owner, position.epoch + 1)
    assert not claimed.exhausted, "that is for the new task to say"
    restored = replace(
        claimed,
        owner=position.owner,
        epoch=position.epoch,
        attempts=position.attempts,
        exhausted=position.exhausted,
    )
    assert restored == position


@given(positions, spans)
def test_an_intent_keeps_what_is_done_and_counted(position, end):
    intending = position.intending(end)
    assert (intending.done, intending.counts) == (position.done, position.counts)
    assert intending.intent == end
    assert intending.replays == (position.done != end)


@pytest.mark.guarantee("counts-are-exact")
@given(positions, spans, counts)
def test_settling_advances_done_and_counts_in_one_step(position, end, more):
    settled = position.settled(end, more)
    assert (settled.done, settled.intent, settled.attempts) == (end, end, 0)
    assert settled.counts == position.counts + more
    assert settled.counts - more == position.counts
    assert not settled.replays


@given(positions, spans, counts, st.none() | times, st.none() | helds)
def test_settling_keeps_the_last_watermark_and_only_the_currently_held_row(
    position, end, more, watermark, held
):
    settled = position.settled(end, more, watermark, held)
    assert settled.watermark == (watermark or position.watermark)
    assert settled.held == held
    assert position.settled(end, more).held is None, "the row that was held is finished"


@given(positions, spans, st.text(max_size=8))
def test_the_held_row_and_the_watermark_survive_restarts_and_intents(position, end, owner):
    later = position.claimed(owner).intending(end)
    assert (later.held, later.watermark) == (position.held, position.watermark)


@given(positions, spans, spans, counts)
def test_settling_one_chunk_and_intending_the_next_is_one_write(position, end, following, more):
    both = position.settled(end, more).intending(following)
    assert (both.done, both.intent) == (end, following)


def test_attempts_count_the_tasks_that_took_up_the_current_intent():
    end = Span(Mark(5))
    position = Position("x")
    for epoch in range(3):
        position = position.claimed(f"idle {epoch}")
    assert position.attempts == 0, "no chunk was begun"
    position = position.intending(end)
    assert position.attempts == 1
    position = position.claimed("second")
    assert position.attempts == 2
    assert position.intending(end).attempts == 2, "the replay declares the same intent again"
    position = position.settled(end, Counts()).intending(Span(Mark(7)))
    assert position.attempts == 1, "the next chunk is a new one"


@given(marks, marks)
def test_marks_are_ordered_by_frame_and_then_by_row(one, other):
    assert (one < other) == ((one.seq, one.row) < (other.seq, other.row))


small = st.builds(Mark, st.integers(0, 12), st.integers(0, 12))
small_spans = st.builds(Span, small, small)
keys = st.tuples(
    st.sampled_from(["l1", "l11"]),
    st.sampled_from(["v", "v-1", "v1"]),
    st.integers(0, 12),
    small_spans,
    small_spans,
)


@given(st.lists(keys, min_size=2, max_size=40, unique=True))
def test_different_chunks_never_have_the_same_key(given_keys):
    assert len({chunk_key(*key) for key in given_keys}) == len(given_keys)


@given(keys)
def test_the_same_chunk_always_has_the_same_key(key):
    assert chunk_key(*key) == chunk_key(*key)


@given(counts, counts)
def test_counts_add_and_subtract_by_counter(one, other):
    assert (one + other) - other == one
    assert (one + other).as_dict() == {
        name: one.as_dict()[name] + other.as_dict()[name] for name in COUNTERS
    }
    assert (one + other).ended == one.ended + other.ended
