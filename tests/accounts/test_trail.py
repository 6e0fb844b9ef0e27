"""The trail of a chunk: it records the outcome of every row, and all its outputs."""

from collections import defaultdict
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ebbflow import Message
from ebbflow.accounts.trail import TrailObserver
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
from ebbflow.engine import frames
from ebbflow.engine.publications import Chunk, Place, Publication, Stage
from ebbflow.engine.routing import Edge
from ebbflow.engine.settlement import Settlement, settle
from ebbflow.engine.verdict import Verdict
from ebbflow.streams.trail_rows import SentTo, TrailRow, publish_trail, read_trail
from ebbflow.usercode.calling import Handler, call_map
from tests.engine.sample_rows import NOW, counts, decide, some, texts, times, verdict_on
from tests.thorough import examples

EDGES = [Edge("x", 2), Edge("y", values=frozenset("y")), Edge("z", 3, values=frozenset("z"))]
trail_rows = st.builds(
    TrailRow,
    request=texts,
    id=texts,
    at=times,
    deliveries=counts,
    outcome=st.sampled_from(["done", "dropped", "redelivered", "sent"]),
    reason=st.none() | texts,
    error=st.none() | texts,
    due=st.none() | times,
    answers=counts,
    sent=st.lists(st.builds(SentTo, texts, texts), max_size=3).map(tuple),
)


def trail_of(settlement: Settlement) -> list[TrailRow]:
    """All rows, in their order."""
    publications = [p for p in settlement.publications if p.stage is Stage.TRAIL]
    return [row for publication in publications for row in read_trail(publication.payload)]


def settled(verdict: Verdict, edges: Any = EDGES, **options: Any) -> Settlement:
    observers = [TrailObserver()] if options.pop("trail", True) else []
    place, now = Place("v", 0, edges, 1_000_000, "answers"), options.pop("now", NOW)
    return settle(Chunk("k", verdict.rows), verdict, place, now, observers=observers, **options)


def mapped(decisions: list[Any]) -> Verdict:
    """The verdict of a map that returns or raises these, one after another."""
    verdict = verdict_on(some(*(f"m{n}" for n in range(len(decisions))), deliveries=2))
    left = list(decisions)

    def user_code(datum: object) -> Any:
        decision = left.pop(0)
        if isinstance(decision, Exception):
            raise decision
        return decision

    call_map(Handler(user_code), verdict, concurrency=1)
    return verdict


messages = st.builds(Message, st.just(b"1"), tags=st.lists(st.sampled_from("xyz"), max_size=2))
decided = st.lists(
    st.lists(messages, max_size=3) | st.just(ValueError("no")) | st.just(Message.to_nack()),
    max_size=8,
)


@given(st.lists(trail_rows, max_size=40))
def test_rows_are_read_back_as_they_were_written(rows):
    frames_of = list(publish_trail(rows, "k", "v"))
    assert [row for frame in frames_of for row in read_trail(frame.payload)] == rows


def test_no_frame_is_larger_than_a_message_may_be():
    rows = [TrailRow("r", f"{n}/" + "i" * 240, NOW, error="e" * 900) for n in range(2_000)]
    publications = list(publish_trail(rows, "k", "v"))
    assert [row for p in publications for row in read_trail(p.payload)] == rows
    assert len({p.msg_id for p in publications}) == len(publications) > 1
    assert max(len(p.payload) for p in publications) < 2 * frames.MAX_BYTES


def test_a_frame_that_is_not_a_trail_is_rejected():
    with pytest.raises(ValueError, match="not a frame of a trail of version 1: starts with"):
        read_trail(frames.encode(frames.empty()))


@settings(max_examples=examples(60))
@given(decided)
def test_every_row_is_recorded_once_with_exactly_its_published_outputs(decisions):
    settlement = settled(mapped(decisions))
    rows = trail_of(settlement)
    assert [row.id for row in rows] == [f"m{n}" for n in range(len(decisions))]
    assert {row.deliveries for row in rows} <= {2}
    published = defaultdict(set)
    for publication in settlement.publications:
        if publication.stage is Stage.OUTPUT:
            published[publication.target] |= set(ids_in(publication))
    recorded = defaultdict(set)
    for output in [output for row in rows for output in row.sent]:
        recorded[output.to].add(output.id)
    assert recorded == published
    assert all(o.id.partition("/")[0] == row.id for row in rows for o in row.sent)
    ends = [row.outcome for row in rows]
    count = settlement.counts
    assert ends.count("redelivered") == count.redelivered
    assert ends.count("dropped") == count.dropped
    assert ends.count("done") == count.done


def ids_in(publication: Publication) -> list[str]:
    return frames.decode(publication.payload).column("id").to_pylist()


@settings(max_examples=examples(30))
@given(decided)
def test_the_trail_is_published_last_and_changes_nothing_else(decisions):
    traced, silent = settled(mapped(decisions)), settled(mapped(decisions), trail=False)
    assert [p for p in traced.publications if p.stage is not Stage.TRAIL] == silent.publications
    assert not trail_of(silent)
    assert traced.counts == silent.counts
    assert [s[0].stage for s in traced.stages()][-1:] == ([Stage.TRAIL] if decisions else [])


@pytest.mark.parametrize(
    ("outcome", "expected"),
    [
        (DONE, {}),
        (Dropped("rule"), {"outcome": "dropped", "reason": "rule"}),
        (
            Redeliver(5_000, "busy", 0),
            {"outcome": "redelivered", "reason": "busy", "due": timedelta(seconds=5)},
        ),
        (Redeliver(0, None, 0), {"outcome": "redelivered", "due": timedelta()}),
        (
            Retry(9_000, "down", 1, 0),
            {"outcome": "redelivered", "error": "down", "due": timedelta(seconds=9)},
        ),
        (FellBack(), {"outcome": "fallback"}),
        (Succeeded(), {"outcome": "on_success"}),
        (Served(), {"outcome": "served", "answers": 1}),
        (
            DeadLetter("no", "why"),
            {"outcome": "dead_lettered", "reason": "no", "error": "why"},
        ),
    ],
    ids=lambda one: type(one).__name__,
)
def test_each_outcome_is_recorded_with_its_reason(outcome: Outcome, expected: dict[str, Any]):
    (row,) = trail_of(settled(decide(verdict_on(some("m")), {0: outcome}), []))
    due = expected.pop("due", None)
    late = row.due - NOW - due if row.due is not None and due is not None else timedelta()
    assert row == TrailRow("m", "m", NOW, **expected)._replace(due=row.due)
    assert (row.due is None) == (due is None)
    assert timedelta() <= late <= timedelta(seconds=1), "never early, and soon"
    assert row.is_final == (row.outcome != "redelivered")


def test_answers_are_counted():
    verdict = decide(verdict_on(some("a", "b")), {0: Served(), 1: FellBack()})
    verdict.decisions.answer(0, [b"1", b"2"])
    verdict.decisions.answer(1, [b"3"])
    settlement = settled(verdict, [])
    assert [row.answers for row in trail_of(settlement)] == [2, 1]
    assert sum(p.stage is Stage.ANSWER for p in settlement.publications) == 3


def test_the_request_is_that_of_the_header_even_if_user_code_changes_it():
    rows = some("a", "b/x", "c", headers=[[("X-Numaflow-Id", "r1")], None, None])
    rows.column("headers")[0].clear()
    assert [row.request for row in trail_of(settled(verdict_on(rows)))] == ["r1", "b", "c"]


@settings(max_examples=examples(40))
@given(decided, decided)
def test_message_ids_differ_exactly_when_the_trails_differ(first, second):
    def ids_and_facts(decisions: list[Any], later: int) -> tuple[set[str], list[tuple]]:
        settlement = settled(mapped(decisions), now=NOW + timedelta(seconds=later))
        facts = [(row.id, row.outcome, row.answers, row.sent) for row in trail_of(settlement)]
        return {p.msg_id for p in settlement.publications if p.stage is Stage.TRAIL}, facts

    one, other, again = ids_and_facts(first, 0), ids_and_facts(second, 7), ids_and_facts(first, 7)
    assert one == again
    assert (one[0] == other[0]) == (one[1] == other[1])


def test_an_early_part_records_the_outputs_of_rows_that_are_still_in_flight():
    verdict = verdict_on(some("a", "b", "c"))
    verdict.decisions.forward(2, 0, Message(b"1", tags=["y"]))
    rows = trail_of(settled(verdict, is_early=True))
    sent = (SentTo("x", "c/v"), SentTo("y", "c/v"))
    assert rows == [TrailRow("c", "c", NOW, outcome="sent", sent=sent)]
    assert not rows[0].is_final


def test_very_many_outputs_of_a_row_are_split_over_several_trail_rows():
    rows = trail_of(settled(mapped([[Message(b"")] * 2_500, [Message(b"")]]), [Edge("x")]))
    assert [(row.id, row.outcome, len(row.sent)) for row in rows] == [
        ("m0", "sent", 1_000),
        ("m0", "sent", 1_000),
        ("m0", "done", 500),
        ("m1", "done", 1),
    ]
    assert len({output for row in rows for output in row.sent}) == 2_501


def test_a_row_whose_outputs_no_edge_takes_is_dropped():
    (row,) = trail_of(settled(mapped([Message(b"")]), EDGES[1:]))
    assert row == TrailRow("m0", "m0", NOW, 2, "dropped", "no edge takes its tags")
