"""What a tap of a vertex shows: which rows, and which of their fields."""

import json
from random import Random

import pytest

from ebbflow import Message, nack
from ebbflow.accounts.taps import OUTCOMES, PassingRows, TapFilter, TapRequest, write_value
from ebbflow.engine.publications import Place
from ebbflow.engine.routing import Edge
from ebbflow.usercode.calling import Handler, call_map
from tests.engine.sample_rows import NOW, account_of, some, verdict_on

EDGES = [Edge("even", values=frozenset({"even"})), Edge("all")]
PLACE = Place("v", 1, EDGES, 1_000_000)


def decide(datum):
    number = int(datum.id[1:])
    if number == 3:
        nack(delay="2s", reason="not yet")
    if number == 4:
        return None
    tags = ["even"] if number % 2 == 0 else []
    return [Message(f"out {number}".encode(), keys=[f"k{number}"], tags=tags)]


def tapped(request=None, most=100, edges=EDGES, decided=True, **filters):
    rows = some(
        *(f"m{n}" for n in range(6)),
        keys=[[f"a{n % 2}"] for n in range(6)],
        headers=[[("n", str(n))] if n < 4 else None for n in range(6)],
    )
    verdict = verdict_on(rows)
    call_map(Handler(decide), verdict, concurrency=1)
    place = Place("v", 1, edges, 1_000_000)
    part = account_of(verdict, place).parts[0] if decided else None
    passing = PassingRows(rows.batch, place, NOW, part)
    request = request or TapRequest("t", "v", filter=TapFilter(**filters))
    return passing.choose(request, most, Random(1))


def ids(**filters):
    return [row["id"] for row in tapped(**filters)[0]]


def test_a_row_shows_its_input_its_outcome_and_its_outputs():
    row = tapped()[0][2]
    assert row == {
        "at": NOW.isoformat(),
        "vertex": "v",
        "partition": 1,
        "id": "m2",
        "keys": ["a0"],
        "headers": {"n": "2"},
        "event_time": None,
        "deliveries": 1,
        "value": "m2",
        "outcome": "done",
        "outputs": [
            {
                "id": "m2/v",
                "keys": ["k2"],
                "tags": ["even"],
                "to": ["even", "all"],
                "value": "out 2",
            }
        ],
        "outputs_left_out": 0,
    }
    json.dumps(row)


def test_a_nacked_row_shows_why_and_when_it_is_redelivered():
    row = tapped()[0][3]
    assert (row["outcome"], row["reason"]) == ("redelivered", "not yet")
    assert row["due"] > row["at"]
    assert row["outputs"] == []


def test_each_filter_selects_the_matching_rows():
    assert ids() == [f"m{n}" for n in range(6)]
    assert ids(id="m2") == ["m2"]
    assert ids(key="a1") == ["m1", "m3", "m5"]
    assert ids(header="n") == ["m0", "m1", "m2", "m3"]
    assert ids(header="n=2") == ["m2"]
    assert ids(tag="even") == ["m0", "m2"]
    assert ids(text="m5") == ["m5"]
    assert ids(outcome="redelivered") == ["m3"]
    assert ids(outcome="dropped") == ["m4"]
    assert ids(key="a0", outcome="done") == ["m0", "m2"]


def test_a_message_is_found_by_the_id_of_its_origin():
    rows = some("in-1/a", "in-1", "in-10", "in-1/a/b")
    passing = PassingRows(rows.batch, PLACE, NOW)
    request = TapRequest("t", "v", filter=TapFilter(id="in-1"))
    shown, _ = passing.choose(request, 9, Random(1))
    assert [row["id"] for row in shown] == ["in-1/a", "in-1", "in-1/a/b"]
    assert {row["outcome"] for row in shown} == {"arrived"}


def test_rows_beyond_the_limit_are_counted_as_skipped():
    rows, skipped = tapped(most=2)
    assert ([row["id"] for row in rows], skipped) == (["m0", "m1"], 4)


def test_a_sample_shows_a_share_of_the_rows():
    half, skipped = tapped(TapRequest("t", "v", sample=0.5))
    assert 0 < len(half) < 6
    assert skipped == 0


def test_a_row_whose_outputs_no_edge_takes_is_shown_as_dropped():
    rows = tapped(edges=EDGES[:1])[0]
    assert [row["outcome"] for row in rows[:3]] == ["done", "dropped", "done"]
    assert rows[1]["outputs"][0]["to"] == []


def test_rows_that_are_forwarded_unchanged_show_where_they_go():
    rows = some("a", "b")
    verdict = verdict_on(rows)
    verdict.forward_inputs()
    part = account_of(verdict, PLACE).parts[0]
    shown, _ = PassingRows(rows.batch, PLACE, NOW, part).choose(TapRequest("t", "v"), 9, Random(1))
    assert [(row["id"], row["outputs"][0]["id"], row["outputs"][0]["to"]) for row in shown] == [
        ("a", "a", ["all"]),
        ("b", "b", ["all"]),
    ]


def test_a_tap_request_is_read_back_as_it_was_written():
    request = TapRequest("t", "v", 3.0, TapFilter(id="x", outcome=OUTCOMES[0]), 0.5, 7, 9)
    assert TapRequest.from_json(request.to_json()) == request


@pytest.mark.parametrize(
    ("value", "written"),
    [
        (b"text", {"value": "text"}),
        (b"\xff\x00", {"value": {"base64": "/wA="}}),
        (b"x" * 20, {"value": "x" * 10, "size": 20}),
        ("ääääää".encode()[:12], {"value": "äääää", "size": 12}),
    ],
    ids=["text", "bytes", "long", "character"],
)
def test_values_are_shown_as_text_if_possible_and_cut_if_long(value, written):
    assert write_value(value, 10) == written
