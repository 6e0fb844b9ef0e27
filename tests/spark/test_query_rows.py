"""The rows that queries return for a batch: with and without an input, and in which order."""

from __future__ import annotations

import random
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ebbflow.domain.errors import ContractViolation, MessageTooLarge
from ebbflow.domain.outcome import Redeliver
from ebbflow.engine.publications import Chunk, Place
from ebbflow.engine.routing import Edge
from ebbflow.engine.settlement import settle
from ebbflow.engine.verdict import EMPTY, Verdict
from ebbflow.spark.batch.settling import HEADERS, record_query_rows
from tests.engine.sample_rows import NOW, some, verdict_on

WHEN = datetime(2026, 1, 1, tzinfo=UTC)


def returned(result: pa.Table | None, *ids: str, traced: bool = True, **columns: Any) -> Verdict:
    verdict = verdict_on(some(*ids or ("a", "b", "c"), **columns), largest=1_000)
    record_query_rows(verdict, result, "batch 1", traced)
    return verdict


def rows_of(verdict: Verdict) -> list[dict[str, Any]]:
    return verdict.outputs.batch(verdict.rows, "v", NOW).to_pylist()


def settled(verdict: Verdict, *edges: Edge):
    place = Place("v", 0, edges or (Edge("next"),), 1_000_000)
    return settle(Chunk("batch 1", verdict.rows), verdict, place, NOW)


def test_rows_are_matched_to_their_inputs_which_supply_missing_columns():
    result = pa.table({"id": ["b", "a"], "value": [b"2", b"1"], "keys": [None, ["mine"]]})
    verdict = returned(
        result, "a", "b", event_time=WHEN, headers=[[("h", "1")], None], keys=[["k"]] * 2
    )

    rows = rows_of(verdict)

    assert [(row["id"], row["value"], row["keys"]) for row in rows] == [
        ("a/v", b"1", ["mine"]),
        ("b/v", b"2", ["k"]),
    ]
    assert {row["event_time"] for row in rows} == {WHEN}
    assert rows[0]["headers"] == [("h", "1")]


def test_returned_headers_replace_those_of_the_input():
    headers = pa.array([[("new", "1")], None], HEADERS)
    result = pa.table({"id": ["a", "b"], "value": [b"1", b"2"], "headers": headers})
    rows = rows_of(returned(result, "a", "b", headers=[[("old", "1")]] * 2))
    assert [row["headers"] for row in rows] == [[("new", "1")], [("old", "1")]]


def test_inputs_without_a_row_are_dropped():
    assert returned(pa.table({"id": ["b"], "value": [b"2"]})).outcomes == {0: EMPTY, 2: EMPTY}
    assert returned(None).outcomes == {0: EMPTY, 1: EMPTY, 2: EMPTY}


@pytest.mark.guarantee("spark-vertices-lose-nothing")
@given(st.lists(st.tuples(st.sampled_from("abc"), st.binary(max_size=2)), min_size=1))
def test_the_order_of_the_rows_does_not_matter(rows):
    def table(ordered):
        return pa.table({"id": [i for i, _ in ordered], "value": pa.array([v for _, v in ordered])})

    shuffled = random.Random(1).sample(rows, len(rows))
    for traced in (True, False):
        one, other = returned(table(rows), traced=traced), returned(table(shuffled), traced=traced)
        first, second = settled(one), settled(other)
        assert [p.msg_id for p in first.publications] == [p.msg_id for p in second.publications]
        assert [p.payload for p in first.publications] == [p.payload for p in second.publications]
        ids = [row["id"] for row in rows_of(one)]
        assert len(set(ids)) == len(ids) == len(rows)


def test_a_row_without_a_value_fails_only_its_input():
    result = pa.table({"id": ["a", "b", "b"], "value": [b"1", b"2", None]})
    verdict = returned(result, "a", "b")
    assert [row["id"] for row in rows_of(verdict)] == ["a/v"]
    failed = verdict.outcomes[1]
    assert isinstance(failed, Redeliver)
    assert failed.reason == "ContractViolation: v: returned NULL as value. Return a text or binary."


def test_a_row_can_nack_its_input():
    result = pa.table({"id": ["a", "b"], "value": [b"1", None], "nack": [None, True]})
    verdict = returned(result.append_column("nack_delay", [[None, 500]]), "a", "b")
    assert verdict.outcomes[1].delay == 500
    assert [row["id"] for row in rows_of(verdict)] == ["a/v"]


@pytest.mark.parametrize(("returned_id", "shown_as"), [("x", "the unknown id 'x'"), (None, "NULL")])
def test_an_id_that_belongs_to_no_input_is_rejected(returned_id, shown_as):
    with pytest.raises(
        ContractViolation, match=f"v: returned {shown_as} as id. Return the id of an input"
    ):
        returned(pa.table({"id": ["a", returned_id], "value": [b"", b""]}))


def test_aggregates_have_their_own_ids_and_the_latest_event_time():
    result = pa.table({"value": [b"1", b"1", b"2"], "tags": [["t"], ["t"], None]})
    times = [datetime(2026, 1, day, tzinfo=UTC) for day in (1, 3, 2)]
    verdict = returned(result, traced=False, event_time=times)

    rows = rows_of(verdict)

    assert len({row["id"] for row in rows}) == 3
    assert all(row["id"].startswith("v-") for row in rows)
    assert {row["event_time"] for row in rows} == {times[1]}
    assert verdict.outcomes == {}


def test_ids_differ_between_batches_and_between_results():
    def ids(batch, value):
        verdict = verdict_on(some("a"))
        record_query_rows(verdict, pa.table({"value": [value]}), batch, False)
        return {row["id"] for row in rows_of(verdict)}

    assert ids("batch 1", b"1") == ids("batch 1", b"1")
    assert ids("batch 1", b"1").isdisjoint(ids("batch 2", b"1"))
    assert ids("batch 1", b"1").isdisjoint(ids("batch 1", b"2"))


def test_inputs_of_aggregates_are_done_wherever_the_aggregates_are_routed():
    result = pa.table({"value": [b"1", b"2"], "tags": [["big"], ["small"]]})
    only_big = Edge("big", values=frozenset({"big"}), discards=True)
    settlement = settled(returned(result, traced=False), only_big)

    assert (settlement.counts.done, settlement.counts.dropped) == (3, 0)
    assert settlement.counts.written == 1
    discarded = settlement.counts_without(settlement.publications)
    assert (discarded.done, discarded.dropped, discarded.written) == (3, 0, 0)


def test_an_aggregate_too_large_for_a_message_is_rejected():
    with pytest.raises(MessageTooLarge):
        returned(pa.table({"value": [b"x" * 1_001]}), traced=False)


def test_a_query_without_a_result_completes_the_batch():
    settlement = settled(returned(None, traced=False))
    assert settlement.publications == []
    assert settlement.counts.done == 3
