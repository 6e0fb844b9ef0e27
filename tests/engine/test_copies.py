"""Stamps of frames: what they contain, and what is known after reading them."""

import json
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ebbflow.domain.durations import Backoff
from ebbflow.engine import frames
from ebbflow.engine.checks import Rules
from ebbflow.engine.frames import Rows
from ebbflow.engine.position import (
    AWAITED,
    MOST,
    MOST_AWAITED,
    NOTHING,
    LastChunk,
    Mark,
    Position,
    Span,
    Stamp,
    chunk_key,
    dump_known,
    is_copy,
    known_of_redeliveries,
    known_of_writers,
    load_known,
    with_awaited,
    with_frame,
)
from ebbflow.engine.publications import FROM, Chunk, Place
from ebbflow.engine.routing import Edge
from ebbflow.engine.settlement import settle
from ebbflow.engine.verdict import Verdict

marks = st.builds(Mark, st.integers(0, 10**12), st.integers(0, 5))
spans = st.builds(Span, marks, marks)
vertices = st.from_regex(r"[a-z]([-a-z0-9]{0,8}[a-z0-9])?", fullmatch=True)
stamps = st.builds(
    Stamp,
    st.sampled_from(["in.0", "in.1"]),
    st.sampled_from(["aa", "bb"]),
    st.tuples(*[st.integers(0, 2)] * 4),
    st.text("01", min_size=16, max_size=16),
)


@given(vertices, st.integers(0, 99), spans, spans, vertices)
def test_every_output_is_stamped_with_its_writer_and_the_start_of_its_chunk(
    vertex, partition, start, end, target
):
    rows = Rows(frames.batch_of({"id": ["m0", "m1"], "value": [b"", b""]}, 2))
    verdict = Verdict(rows, Rules(vertex, Backoff("1s", steps=2), 10**6))
    verdict.forward_inputs()
    place = Place(vertex, partition, [Edge(target, 3)], 10**6)
    chunk = Chunk(chunk_key("5f2c", vertex, partition, start, end), rows)
    (output,) = settle(chunk, verdict, place, datetime.now(UTC)).publications
    stamp = Stamp.of(output.headers[FROM], output.msg_id)
    assert stamp is not None
    assert (stamp.writer, stamp.lineage) == (f"{vertex}.{partition}", "5f2c")
    inlet, redelivery = start.inlet, start.redelivery
    assert stamp.begins == (inlet.seq, inlet.row, redelivery.seq, redelivery.row)
    assert output.msg_id.rpartition(":")[2].startswith(stamp.rows)


@pytest.mark.parametrize(
    ("writer", "msg_id"),
    [
        (None, "5f2c:in:0:1-2:0-0:v:abcd"),
        ("in.0", None),
        ("in.0", "5f2c:in:1:1-2:0-0:v:abcd"),
        ("in.0", "order 17"),
        ("in.0", "query:3:0:17:abcd"),
    ],
    ids=["no writer", "no id", "another", "a client's", "a query's"],
)
def test_a_message_that_no_task_has_written_has_no_stamp(writer, msg_id):
    assert Stamp.of(writer, msg_id) is None


@given(st.lists(stamps, max_size=30))
def test_a_frame_that_was_read_counts_as_a_copy_when_it_is_read_again(read):
    known = NOTHING
    for stamp in read:
        if not is_copy(known, stamp):
            known = with_frame(known, stamp)
        assert is_copy(known, stamp)


@given(st.lists(stamps, max_size=30), stamps)
def test_known_frames_are_stored_with_the_position(read, other):
    known = NOTHING
    for stamp in read:
        known = with_frame(known, stamp)
    assert load_known(json.loads(json.dumps(dump_known(known)))) == known
    stored = Position("x").settled(Span(Mark(9), known=known), Position("x").counts).to_json()
    assert Position.from_json(stored).done.known == known


def test_a_position_of_an_earlier_version_knows_no_frames():
    stored = json.loads(Position("x").to_json())
    del stored["known"]
    assert Position.from_json(json.dumps(stored).encode()).done.known == NOTHING


def test_the_last_frames_of_a_chunk_with_many_frames_are_known():
    known = NOTHING
    for number in range(MOST + 10):
        known = with_frame(known, Stamp("in.0", "aa", (1, 0, 0, 0), f"{number:016x}"))
    assert len(known["in.0"].rows) == MOST
    assert known["in.0"].rows[-1] == f"{MOST + 9:016x}"
    assert len(json.dumps(dump_known(known))) < 20 * MOST


def test_a_frame_of_an_earlier_chunk_is_a_late_copy():
    known = {"in.0": LastChunk("aa", (5, 0, 3, 0), ("0" * 16,))}
    late, same, next_one = ((5, 0, 2, 9), (5, 0, 3, 0), (5, 1, 3, 0))
    assert is_copy(known, Stamp("in.0", "aa", late, "1" * 16))
    assert not is_copy(known, Stamp("in.0", "aa", same, "1" * 16))
    assert not is_copy(known, Stamp("in.0", "aa", next_one, "0" * 16))
    assert not is_copy(known, Stamp("in.0", "bb", late, "0" * 16)), "it was started over"
    assert not is_copy(known, Stamp("in.1", "aa", late, "0" * 16)), "another writer"


def test_moved_redeliveries_are_known_for_a_while():
    known = NOTHING
    for second in range(0, 200, 10):
        known = with_frame(known, moved(second, second))
    assert is_copy(known, moved(190, 500)), "whenever it is read again"
    assert is_copy(known, moved(150, 200))
    assert not is_copy(known, moved(20, 200)), "long ago"
    assert load_known(dump_known(known)) == known
    assert known_of_redeliveries(known) == known
    other = with_frame(NOTHING, Stamp("v.0", "l", (1, 2), "a" * 16))
    assert known_of_redeliveries({**known, **other}) == known


def moved(number: int, at: float, sent_by: str | None = None) -> Stamp:
    stamp = Stamp.of_redelivery(f"later.{number:016d}", at, sent_by)
    assert stamp is not None
    return stamp


def tokens(*numbers: int) -> list[str]:
    return [f"{number:016d}" for number in numbers]


def test_a_redelivery_that_is_not_awaited_is_a_copy_however_late_it_arrives():
    known = with_awaited(NOTHING, "life", 7, tokens(1, 2))
    assert not is_copy(known, moved(1, 0, "life:7"))
    known = with_frame(known, moved(1, 0, "life:7"))
    assert is_copy(known, moved(1, 10**6, "life:7"))
    assert not is_copy(known, moved(2, 10**6, "life:7")), "it may be arbitrarily late, too"
    assert is_copy(known, moved(3, 0, "life:7")), "an attempt that was not repeated sent it"
    assert load_known(dump_known(known)) == known
    known = with_frame(known, moved(2, 10**6, "life:7"))
    assert known == {AWAITED: LastChunk("life", (6,))}
    assert is_copy(known, moved(2, 10**6, "life:7"))


def test_unknown_redeliveries_are_not_copies():
    known = with_awaited(NOTHING, "life", 7, tokens(1))
    assert not is_copy(NOTHING, moved(9, 0, "life:7"))
    assert not is_copy(known, moved(9, 0, "life:6")), "sent before they were listed"
    assert not is_copy(known, moved(9, 0, "other:8")), "in another life"
    assert not is_copy(known, moved(9, 0)), "by an earlier version, or a replay of dead letters"
    assert not is_copy(with_awaited(known, "other", 1, tokens(2)), moved(1, 0, "life:7"))


def test_an_awaited_frame_is_found_whatever_chunk_its_stamp_names():
    known = with_awaited(with_awaited(NOTHING, "life", 7, tokens(1)), "life", 8, tokens(2))
    assert not is_copy(known, moved(1, 0, "life:8"))
    known = with_frame(known, moved(1, 0, "life:8"))
    assert is_copy(known, moved(1, 0, "life:7"))


def test_only_the_newest_of_too_many_redeliveries_are_listed():
    known = with_awaited(NOTHING, "life", 1, tokens(1))
    known = with_awaited(known, "life", 2, tokens(2))
    known = with_awaited(known, "life", 3, tokens(*range(10, 10 + MOST_AWAITED - 1)))
    assert not is_copy(known, moved(1, 0, "life:1"))
    assert not is_copy(known, moved(5, 0, "life:1")), "nothing is known of that chunk any more"
    assert is_copy(with_frame(known, moved(1, 0, "life:1")), moved(1, 20, "life:1"))
    assert is_copy(known, moved(5, 0, "life:2"))
    assert not is_copy(known, moved(2, 0, "life:2"))


def test_every_known_frame_belongs_to_either_writers_or_redeliveries():
    known = with_frame(with_awaited(NOTHING, "life", 1, tokens(1)), moved(5, 5))
    known = with_frame(known, Stamp("v.0", "l", (1, 2), "a" * 16))
    assert known_of_writers(known).keys() == {"v.0"}
    assert {**known_of_writers(known), **known_of_redeliveries(known)} == known
