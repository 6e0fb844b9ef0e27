"""When a request is complete, over random graphs, with their trail rows in any order."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from itertools import count

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ebbflow.accounts.completion import MOST_STEPS, Completion, MessageAt
from ebbflow.streams.trail_rows import SentTo, TrailRow

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
VERTICES = ("in", "a", "b", "c")
ROOT = ("in", "r")
VertexRow = tuple[str, TrailRow]


def row(id: str = "r", outcome: str = "done", *sent: str, **facts) -> TrailRow:
    """A row of the trail; ``sent`` are pairs such as ``a:r/1``."""
    outputs = tuple(SentTo(*text.split(":")) for text in sent)
    return TrailRow("r", id, facts.pop("at", NOON), outcome=outcome, sent=outputs, **facts)


def completion_of(*rows: VertexRow) -> Completion:
    completion = Completion("in", "r")
    for vertex, one in rows:
        completion.add(vertex, one)
    return completion


def all_have_ended(rows: Sequence[VertexRow]) -> bool:
    """The rule in one line: the root, and all that was sent, have ended."""
    expected = {ROOT} | {(sent.to, sent.id) for _, one in rows for sent in one.sent}
    ended = {(vertex, one.id) for vertex, one in rows if one.is_final}
    return expected <= ended


def in_turn(order: Sequence[VertexRow]) -> list[VertexRow]:
    """The same order, but with the rows of each message in their own order, as in a trail."""
    own: dict[MessageAt, list[VertexRow]] = defaultdict(list)
    for one in sorted(order, key=lambda one: one[1].at):
        own[one[0], one[1].id].append(one)
    return [own[vertex, one.id].pop(0) for vertex, one in order]


# --- random requests ----------------------------------------------------------------------------

GRAPHS = st.fixed_dictionaries(
    # Every vertex may send to every other, also back: cycles end because messages do.
    {name: st.lists(st.sampled_from(VERTICES[1:]), max_size=3, unique=True) for name in VERTICES}
)


@st.composite
def requests(draw: st.DrawFn, replays: bool = True) -> list[VertexRow]:
    """All rows that the vertices of a graph report about one request, oldest first."""
    edges = draw(GRAPHS)
    clock = count()
    rows: list[VertexRow] = []
    seen: set[MessageAt] = set()
    todo = [ROOT]

    def report(vertex: str, id: str, outcome: str, deliveries: int, **facts) -> None:
        at = NOON + timedelta(milliseconds=next(clock))
        rows.append((vertex, TrailRow("r", id, at, deliveries, outcome, **facts)))

    while todo:
        vertex, id = todo.pop()
        if (vertex, id) in seen:
            continue
        seen.add((vertex, id))
        nacks = draw(st.integers(0, 2))
        for delivery in range(nacks):
            report(vertex, id, "redelivered", delivery + 1, reason="not yet")
        for _ in range(draw(st.integers(1, 2)) if replays else 1):
            outcome = draw(st.sampled_from(("done", "dropped", "served", "fallback")))
            outputs: list[SentTo] = []
            if outcome == "done" and id.count("/") < 3:
                for to in edges[vertex]:
                    number = draw(st.integers(0, 2))
                    outputs += [SentTo(to, f"{id}/{to}.{n}") for n in range(number)]
            early = draw(st.integers(0, len(outputs)))
            if early:
                report(vertex, id, "sent", nacks + 1, sent=tuple(outputs[:early]))
            answers = draw(st.integers(1, 3)) if outcome == "served" else 0
            report(vertex, id, outcome, nacks + 1, sent=tuple(outputs[early:]), answers=answers)
            todo += [(sent.to, sent.id) for sent in outputs]
    return rows


@pytest.mark.guarantee("a-request-is-complete-when-its-messages-have-ended")
@given(requests(), st.data())
def test_a_request_is_complete_when_all_its_messages_have_ended(rows, data):
    copies = data.draw(st.lists(st.sampled_from(rows), max_size=10))
    order = data.draw(st.permutations([*rows, *copies]))
    completion = Completion("in", "r")
    for number, (vertex, one) in enumerate(order, 1):
        assert not completion.is_complete or all_have_ended(order[: number - 1])
        completion.add(vertex, one)
        assert completion.is_complete == all_have_ended(order[:number])
    assert completion.is_complete
    assert completion.failure is None
    assert completion.has_root_row


@pytest.mark.guarantee("a-request-is-complete-when-its-messages-have-ended")
@given(requests(replays=False), st.data())
def test_a_request_is_never_complete_before_its_last_message_has_ended(rows, data):
    last = data.draw(st.sampled_from([one for one in rows if one[1].is_final]))
    order = in_turn(data.draw(st.permutations([one for one in rows if one is not last])))
    completion = Completion("in", "r")
    for one in order:
        completion.add(*one)
        assert not completion.is_complete
    completion.add(*last)
    assert completion.is_complete


@given(requests(), st.data())
def test_the_order_of_rows_does_not_matter(rows, data):
    one, other = completion_of(*rows), completion_of(*data.draw(st.permutations(rows)))
    most: dict[MessageAt, int] = {}
    for vertex, fact in rows:
        most[vertex, fact.id] = max(fact.answers, most.get((vertex, fact.id), 0))
    assert one.answers == other.answers == sum(most.values())
    if not one.steps_left_out:
        assert {(s.vertex, s.message, s.deliveries, s.outcome) for s in one.steps} == {
            (s.vertex, s.message, s.deliveries, s.outcome) for s in other.steps
        }


@pytest.mark.guarantee("a-request-is-complete-when-its-messages-have-ended")
@given(requests(), st.data())
def test_a_dead_letter_fails_the_request_at_once_and_the_rest_continues(rows, data):
    at = data.draw(st.sampled_from([n for n, one in enumerate(rows) if one[1].is_final]))
    vertex, ended = rows[at]
    rows[at] = (vertex, ended._replace(outcome="dead_lettered", reason="max", error="E: no"))
    completion = Completion("in", "r")
    for number, one in enumerate(rows):
        assert (completion.failure is None) == (number <= at)
        completion.add(*one)
    assert completion.failure is not None
    assert (completion.failure.vertex, completion.failure.reason) == (vertex, "max")
    assert completion.is_complete


# --- by hand ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rows", "is_complete"),
    [
        ([], False),
        ([("in", row())], True),
        ([("in", row(outcome="dropped"))], True),
        ([("in", row(outcome="redelivered"))], False),
        ([("in", row(outcome="redelivered")), ("in", row(deliveries=2))], True),
        ([("in", row("r", "done", "a:r/1"))], False),
        ([("in", row("r", "done", "a:r/1")), ("a", row("r/1", "served"))], True),
        ([("a", row("r/1", "served")), ("in", row("r", "done", "a:r/1"))], True),
        ([("in", row("r", "done", "a:r/1", "b:r/1")), ("a", row("r/1"))], False),
        ([("in", row("r", "sent", "a:r/1")), ("a", row("r/1"))], False),
        ([("a", row("r/1", "served"))], False),
        # A replay that decides differently: the outputs of the first attempt must end as well.
        ([("in", row("r", "done", "a:r/1")), ("in", row("r", "dropped"))], False),
        # A replay that nacks a row that was done before: it was answered in full once.
        ([("in", row()), ("in", row(outcome="redelivered"))], True),
    ],
)
def test_rows_written_by_hand_complete_a_request_as_expected(
    rows: list[VertexRow], is_complete: bool
):
    assert completion_of(*rows).is_complete == is_complete


def test_the_first_dead_letter_is_the_failure():
    completion = completion_of(
        ("in", row("r", "done", "a:r/1", "b:r/2")),
        ("b", row("r/2", "dead_lettered", reason="failures", error="ValueError: no")),
        ("a", row("r/1", "dead_lettered", reason="other")),
    )
    assert completion.failure is not None
    assert (completion.failure.vertex, completion.failure.error) == ("b", "ValueError: no")


def test_steps_are_sorted_by_time_and_copies_of_a_row_are_one_step():
    late = row("r/1", "served", at=NOON + timedelta(seconds=1))
    again = row(outcome="redelivered", reason="busy", due=NOON)
    completion = completion_of(
        ("a", late), ("in", again), ("in", again), ("in", row("r", "done", "a:r/1", deliveries=2))
    )
    assert [(step.vertex, step.outcome, step.deliveries) for step in completion.steps] == [
        ("in", "redelivered", 1),
        ("in", "done", 2),
        ("a", "served", 1),
    ]
    assert completion.steps[0].reason == "busy"
    assert completion.steps[0].due == NOON


def test_a_large_fan_out_keeps_a_bounded_number_of_steps():
    ids = [f"r/{n}" for n in range(MOST_STEPS + 50)]
    completion = completion_of(
        ("in", row("r", "done", *(f"a:{id}" for id in ids))), *(("a", row(id)) for id in ids)
    )
    assert completion.is_complete
    assert len(completion.steps) == MOST_STEPS
    assert completion.steps_left_out == 51
