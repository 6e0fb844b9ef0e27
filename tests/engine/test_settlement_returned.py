"""Settling rows that came from a source which takes nacked messages back."""

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ebbflow import NackOptions
from ebbflow.domain.outcome import Redeliver, Retry
from ebbflow.engine.inlet import SourceAcks, asked_for, source_acks
from ebbflow.engine.publications import Chunk, Place, Stage
from ebbflow.engine.settlement import Settlement, settle
from ebbflow.engine.verdict import Verdict
from tests.engine.sample_rows import NOW, some
from tests.engine.test_settlement import decided, edges, expected_end, inputs, of, rows_of
from tests.thorough import examples

firsts = st.integers(0, 6)
"""How many rows of the chunk are redeliveries of Ebbflow's own; they come before the others."""


def settled(verdict: Verdict, given_edges: list, first: int) -> Settlement:
    place = Place("v", 2, given_edges, max_payload=1_000_000)
    returning = range(first, len(verdict.rows))
    return settle(Chunk("k", verdict.rows), verdict, place, NOW, returning=returning)


@settings(max_examples=examples(50))
@given(inputs, edges, firsts)
def test_a_row_goes_back_to_its_source_or_to_a_redelivery_and_never_to_both(
    given_inputs, given_edges, first
):
    settlement = settled(decided(given_inputs), given_edges, first)
    again = [
        index
        for index, (row, decision) in enumerate(given_inputs)
        if expected_end(row, decision, given_edges) == "again"
    ]
    ids = [row["id"] for row, _ in given_inputs]
    kept = [row["id"] for p in of(settlement, Stage.REDELIVER) for row in rows_of(p)]
    assert sorted(settlement.returned) == [index for index in again if index >= first]
    assert sorted(kept) == sorted(ids[index] for index in again if index < first)
    assert settlement.counts.redelivered == len(again)


@settings(max_examples=examples(50))
@given(inputs, edges, firsts)
def test_the_history_of_a_returned_row_is_what_a_redelivery_would_carry(
    given_inputs, given_edges, first
):
    verdict = decided(given_inputs)
    returned = settled(verdict, given_edges, first)
    kept = settled(verdict, given_edges, len(given_inputs))
    carried = {row["id"]: row for p in of(kept, Stage.REDELIVER) for row in rows_of(p)}
    remembered = [] if returned.histories is None else returned.histories.to_pylist()
    assert len(remembered) == len(returned.returned)
    for row in remembered:
        assert row == carried[row["id"]]


@settings(max_examples=examples(50))
@given(inputs, edges, firsts)
def test_everything_else_is_settled_as_if_no_row_was_returned(given_inputs, given_edges, first):
    verdict = decided(given_inputs)
    returned = settled(verdict, given_edges, first)
    kept = settled(verdict, given_edges, len(given_inputs))
    for stage in set(Stage) - {Stage.REDELIVER}:
        assert of(returned, stage) == of(kept, stage)
    assert (returned.counts, returned.reasons) == (kept.counts, kept.reasons)


def acked(given_inputs, given_edges, first) -> tuple[list[bytes], Settlement, SourceAcks]:
    verdict = decided(given_inputs)
    settlement = settled(verdict, given_edges, min(first, len(verdict.rows)))
    offsets = [b"%d" % index for index in range(min(first, len(verdict.rows)), len(verdict.rows))]
    back = source_acks(pa.array(offsets, pa.binary()), verdict.rows, settlement.returned)
    return offsets, settlement, back


def nacks_of(back: SourceAcks) -> list[tuple[bytes, NackOptions]]:
    """The offsets that are nacked, with the options that the source receives."""
    return [
        (offset, NackOptions(*asked)) for offset, *asked in map(dict.values, back.nacks.to_pylist())
    ]


@pytest.mark.guarantee("sources-are-acknowledged-last")
@settings(max_examples=examples(50))
@given(inputs, edges, firsts)
def test_a_source_receives_the_outcome_of_each_of_its_rows_exactly_once(
    given_inputs, given_edges, first
):
    offsets, settlement, back = acked(given_inputs, given_edges, first)
    acks, nacked = back.acks.to_pylist(), [offset for offset, _ in nacks_of(back)]
    assert sorted([*acks, *nacked]) == sorted(offsets)
    assert len(back) == len(offsets)
    assert sorted(nacked) == sorted(b"%d" % index for index in settlement.returned)
    ids = [row["id"] for row, _ in given_inputs]
    assert back.ids.to_pylist() == [ids[int(offset)] for offset in acks]


@settings(max_examples=examples(50))
@given(inputs, edges, firsts)
def test_a_source_is_nacked_with_exactly_the_options_that_user_code_set(
    given_inputs, given_edges, first
):
    _, settlement, back = acked(given_inputs, given_edges, first)
    for offset, options in nacks_of(back):
        how = settlement.returned[int(offset)]
        assert isinstance(how, Redeliver)
        assert options == (how.options or NackOptions(how.delay, reason=how.reason))


def test_rows_of_ebbflows_own_redeliveries_are_not_reported_to_the_source():
    rows = some("a", "b", "c")
    returned = {2: Redeliver(5, "later", 0, NackOptions(5, reason="later"))}
    back = source_acks(pa.array([b"2", b"3"], pa.binary()), rows, returned)
    assert (back.acks.to_pylist(), back.ids.to_pylist()) == ([b"2"], ["b"])
    assert nacks_of(back) == [(b"3", NackOptions(5, reason="later"))]


def test_a_chunk_without_nacks_is_acknowledged_without_a_copy():
    offsets = pa.array([b"2", b"3"], pa.binary())
    back = source_acks(offsets, some("a", "b", "c"), {})
    assert back.acks is offsets
    assert (back.nacks.num_rows, back.ids.to_pylist()) == (0, ["b", "c"])


def test_the_outcomes_of_several_chunks_are_reported_together():
    rows, nacked = some("a", "b"), {1: Redeliver(5, "later", 0, NackOptions(5, reason="later"))}
    first = source_acks(pa.array([b"1", b"2"], pa.binary()), rows, nacked)
    second = source_acks(pa.array([b"3", b"4"], pa.binary()), some("c", "d"), {})
    both = SourceAcks.join([first, second])
    assert both.acks.to_pylist() == [b"1", b"3", b"4"]
    assert nacks_of(both) == [(b"2", NackOptions(5, reason="later"))]
    assert (both.ids.to_pylist(), len(both)) == (["a", "c", "d"], 4)


def test_a_retry_is_nacked_with_its_wait_and_its_error():
    assert asked_for(Retry(700, "no room", 1, 0)) == NackOptions(700, reason="no room")
