"""The audit rows of a chunk: every delivery has one, with its outcome, and only once."""

from collections.abc import Sequence
from datetime import UTC, timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ebbflow import Message
from ebbflow.accounts.audit import AuditObserver
from ebbflow.domain.outcome import (
    DONE,
    DeadLetter,
    Dropped,
    FellBack,
    Outcome,
    Redeliver,
    Retry,
    Served,
    Succeeded,
)
from ebbflow.engine.account import OUTCOMES, HeldRow
from ebbflow.engine.publications import Chunk, ChunkNumber, Place, Publication, Stage
from ebbflow.engine.routing import Edge
from ebbflow.engine.settlement import Settlement, settle
from ebbflow.engine.verdict import Verdict
from ebbflow.streams.audit_rows import (
    CHUNK,
    AuditFrame,
    AuditStamp,
    PlacedRows,
    choose,
    read_audit,
    to_table,
)
from tests.engine.sample_rows import NOW, decide, some, verdict_on
from tests.thorough import examples

OBSERVERS = [AuditObserver()]
X, Y = Edge("x"), Edge("y", values=frozenset("y"))


def settled(verdict: Verdict, edges: Sequence[Edge] = (), **options: Any) -> Settlement:
    place = Place("v", 3, edges, 1_000_000, "answers")
    chunk = Chunk("k", verdict.rows, ChunkNumber(7, 2))
    return settle(chunk, verdict, place, NOW, observers=OBSERVERS, **options)


def frames_of(publications: Sequence[Publication]) -> list[Publication]:
    return [p for p in publications if p.stage is Stage.AUDIT]


def rows_of(settlement: Settlement) -> list[dict[str, Any]]:
    frames = [read_audit(p.payload) for p in frames_of(settlement.publications)]
    return to_table([PlacedRows("v", 3, rows) for rows in frames], "p", "batch-1").to_pylist()


def ids(count: int) -> list[str]:
    return [f"m{number}" for number in range(count)]


@pytest.mark.parametrize("count", [1, 40], ids=["few", "many"])
@pytest.mark.parametrize(
    ("outcome", "expected"),
    [
        (DONE, ("done", None, None)),
        (Dropped("a rule"), ("dropped", "a rule", None)),
        (Redeliver(5_000, "busy", 0), ("redelivered", "busy", None)),
        (Retry(9_000, "down", 1, 0), ("redelivered", None, "down")),
        (FellBack(), ("fallback", None, None)),
        (Succeeded(), ("on_success", None, None)),
        (Served(), ("served", None, None)),
        (DeadLetter("no", "why"), ("dead_lettered", "no", "why")),
    ],
    ids=lambda one: type(one).__name__ if not isinstance(one, tuple) else "",
)
def test_each_outcome_has_its_own_audit_row(outcome: Outcome, expected: tuple, count: int):
    verdict = verdict_on(some(*ids(count)))
    rows = rows_of(settled(verdict if outcome is DONE else decide(verdict, {0: outcome})))
    assert [row["id"] for row in rows] == ids(count)
    assert (rows[0]["outcome"], rows[0]["reason"], rows[0]["error"]) == expected
    assert {row["outcome"] for row in rows[1:]} <= {"done"}
    assert all(row["ended"] == NOW for row in rows)
    assert (rows[0]["due"] is not None) == (rows[0]["outcome"] == "redelivered")
    assert rows[0]["outcome"] in OUTCOMES


@pytest.mark.parametrize("count", [3, 60])
def test_rows_say_how_many_outputs_went_to_which_edges(count: int):
    verdict = verdict_on(some(*ids(count)))
    for index in range(count):
        outputs = [Message(b"1")] if index else [Message(b"1"), Message(b"2", tags=["y"])]
        for number, message in enumerate(outputs):
            verdict.decisions.forward(index, number, message)
    rows = rows_of(settled(verdict, [X, Y]))
    assert [(row["sent"], row["sent_to"]) for row in rows[:2]] == [(3, "x,y"), (1, "x")]
    alike = rows_of(settled(decide(verdict_on(some(*ids(count))), {}), [X]))
    assert {(row["sent"], row["sent_to"]) for row in alike} <= {(0, ""), (1, "x")}


def test_a_chunk_whose_rows_are_all_done_takes_a_few_bytes_a_row():
    settlement = settled(verdict_on(some(*(f"in-{n}/enrich" for n in range(2_000)))))
    (frame,) = frames_of(settlement.publications)
    assert len(frame.payload) < 12 * 2_000
    assert frame.headers == {CHUNK: "7.2.0.0"}


def test_many_rows_and_long_errors_are_split_into_parts():
    why = {index: DeadLetter("no", f"{index}" * 900) for index in range(1_500)}
    settlement = settled(decide(verdict_on(some(*ids(1_500))), why))
    stamps = [AuditStamp.read(p.headers[CHUNK]) for p in frames_of(settlement.publications)]
    assert [stamp.part for stamp in stamps] == list(range(len(stamps)))
    assert len(stamps) > 1
    assert [row["id"] for row in rows_of(settlement)] == ids(1_500)


def test_the_row_that_an_ordered_vertex_holds_is_reported_as_redelivered():
    held = HeldRow(some("m1", deliveries=[2]).batch, Redeliver(100, "wait", 0))
    rows = rows_of(settled(verdict_on(some("m0")), held=held))
    assert [(r["id"], r["outcome"], r["deliveries"], r["reason"]) for r in rows] == [
        ("m0", "done", 1, None),
        ("m1", "redelivered", 2, "wait"),
    ]


def test_a_row_that_a_full_buffer_discards_is_reported_again_as_dropped():
    verdict = verdict_on(some("a", "b"))
    for index in range(2):
        verdict.decisions.forward(index, 0, Message(b""))
    settlement = settled(verdict, [Edge("x", discards=True)])
    discarded = [p for p in settlement.publications if p.stage is Stage.OUTPUT]
    assert settlement.amended([], OBSERVERS) is None
    amended = settlement.amended(discarded, OBSERVERS)
    assert amended is not None
    assert [row["id"] for row in rows_of(amended)] == ["a", "b"]
    assert {row["outcome"] for row in rows_of(amended)} == {"dropped"}
    assert frames_of(amended.publications)[0].headers == {CHUNK: "7.2.1.0"}
    assert settlement.counts_without(discarded).dropped == 2


def test_the_table_says_where_rows_come_from_and_which_are_final():
    settlement = settled(decide(verdict_on(some("a", "b")), {1: Redeliver(0, None, 0)}))
    table = rows_of(settlement)
    assert [(row["id"], row["final"]) for row in table] == [("a", True), ("b", False)]
    assert {(r["pipeline"], r["vertex"], r["partition"], r["batch"]) for r in table} == {
        ("p", "v", 3, "batch-1")
    }


def test_bytes_that_are_not_an_audit_frame_are_rejected():
    with pytest.raises(ValueError, match="not a frame of audit rows"):
        read_audit(b"EBBF\x01 something")


def test_a_time_stays_the_same_in_another_time_zone():
    verdict = verdict_on(some("a"))
    place, chunk = Place("v", 0, (), 10**6), Chunk("k", verdict.rows)
    later = (NOW + timedelta(hours=1)).astimezone(UTC)
    (row,) = rows_of(settle(chunk, verdict, place, later, observers=OBSERVERS))
    assert row["ended"] == later


# --- which frames count -------------------------------------------------------------------------

V = ("v", 0)


def frame_of(seq: int, stamp: str) -> AuditFrame:
    return AuditFrame(seq, *V, AuditStamp.read(stamp))


def chosen(*stamps: str, after: int = 0, done: int = 99) -> list[int]:
    frames = [frame_of(seq, stamp) for seq, stamp in enumerate(stamps, 1)]
    return [frame.seq for frame in choose(frames, {V: after}, {V: done})]


def test_the_latest_claim_of_a_chunk_number_counts_whenever_it_arrives():
    assert chosen("1.5.0.0", "2.5.0.0", "1.6.0.0") == [2, 3]
    assert chosen("1.6.0.0", "1.5.0.0") == [1], "a lost task is late"
    assert chosen("1.5.0.0", "1.5.0.1", "1.6.0.0") == [3], "no part of the first attempt counts"


def test_the_last_edition_of_a_claim_counts_and_a_copy_counts_once():
    assert chosen("1.5.0.0", "1.5.0.1", "1.5.1.0", "1.5.1.1") == [3, 4]
    assert chosen("1.5.0.0", "1.5.0.0") == [1]


def test_only_done_chunks_that_are_not_written_yet_count():
    assert chosen("1.5.0.0", "2.5.0.0", "3.5.0.0", after=1, done=2) == [2]
    assert chosen("1.5.0.0", done=0) == []


@settings(max_examples=examples(100))
@given(
    st.lists(st.tuples(st.integers(1, 6), st.integers(1, 3), st.integers(0, 2)), max_size=30),
    st.lists(st.integers(0, 6), max_size=4),
)
def test_the_same_frames_count_however_they_are_cut_into_batches(stamps, cuts):
    frames = [frame_of(seq, f"{n}.{c}.0.{p}") for seq, (n, c, p) in enumerate(stamps, 1)]
    whole = choose(frames, {}, {V: 6})
    cut, after = list[AuditFrame](), 0
    for end in [*sorted(cuts), 6]:
        cut += choose(frames, {V: after}, {V: end})
        after = end
    assert sorted(cut) == sorted(whole)
