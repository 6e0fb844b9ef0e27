"""Finding the rows that make a batch fail: all of them, only them, and nothing done twice."""

from __future__ import annotations

from collections.abc import Collection

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ebbflow.engine.isolation import Isolated, Trouble, isolate

BAD = Trouble("BadRow", "no good")
DOWN = Trouble("Down", "no server is there")


class Table:
    """Accepts rows all at once or not at all, as a database does, and records those it accepted."""

    def __init__(self, bad: Collection[int], *, named: bool = False, of_data: bool = False) -> None:
        self.bad = bad
        self.named = named
        self.of_data = of_data
        self.rows: list[int] = []
        self.attempts: list[tuple[int, int]] = []
        self.down_from: int | None = None

    def write(self, low: int, high: int) -> Trouble | None:
        self.attempts.append((low, high))
        if self.down_from is not None and len(self.attempts) > self.down_from:
            return DOWN
        wrong = [row for row in range(low, high) if row in self.bad]
        if wrong:
            suspects = (wrong[0] - low,) if self.named else ()
            return Trouble("BadRow", f"row {wrong[0]}", self.of_data, suspects)
        self.rows += range(low, high)
        return None


def found(table: Table, count: int, enough=lambda: False) -> Isolated:
    return isolate(0, count, table.write, enough)


batches = st.integers(1, 80).flatmap(
    lambda count: st.tuples(st.just(count), st.sets(st.integers(0, count - 1)))
)


@pytest.mark.guarantee("spark-vertices-lose-nothing")
@given(batches, st.booleans(), st.booleans())
def test_the_bad_rows_are_found_and_the_others_are_done_once_and_in_order(batch, named, of_data):
    count, bad = batch
    table = Table(bad, named=named, of_data=of_data)

    result = found(table, count)

    assert (result.end, result.general) == (count, None)
    assert set(result.blamed) == bad
    assert table.rows == [row for row in range(count) if row not in bad]


@given(batches, st.lists(st.integers(-3, 90), max_size=4))
def test_the_bad_rows_are_found_whatever_rows_an_error_names(batch, suspects):
    count, bad = batch
    table = Table(bad)

    def write(low: int, high: int) -> Trouble | None:
        trouble = table.write(low, high)
        return trouble and Trouble(trouble.kind, trouble.text, False, tuple(suspects))

    result = isolate(0, count, write, lambda: False)

    assert set(result.blamed) == bad
    assert table.rows == [row for row in range(count) if row not in bad]


def test_a_batch_without_errors_takes_one_attempt():
    table = Table(())
    found(table, 50_000)
    assert table.attempts == [(0, 50_000)]


def test_a_penalised_row_gets_the_error_that_it_raised_alone():
    result = found(Table({3, 5}), 8)
    assert {row: why.text for row, why in result.blamed.items()} == {3: "row 3", 5: "row 5"}


def test_an_error_that_names_its_row_saves_attempts():
    halved, named = Table({613}, of_data=True), Table({613}, named=True, of_data=True)
    found(halved, 1_000)
    found(named, 1_000)
    assert len(named.attempts) == 4
    assert len(halved.attempts) > 15


def test_an_error_that_names_the_wrong_row_is_not_trusted_again():
    table = Table({99})
    result = isolate(
        0,
        100,
        lambda low, high: (table.write(low, high) and Trouble("BadRow", "", True, (0,))) or None,
        lambda: False,
    )
    assert set(result.blamed) == {99}
    assert len(table.attempts) < 20


def test_no_row_is_penalised_if_even_an_empty_batch_fails():
    table = Table(())
    table.down_from = 0
    result = found(table, 1_000)
    assert (result.end, result.blamed, result.general) == (0, {}, DOWN)
    assert table.attempts == [(0, 1_000), (0, 0)]


@pytest.mark.guarantee("spark-vertices-lose-nothing")
def test_an_outage_during_the_search_penalises_no_row_and_keeps_finished_ones():
    for attempts in range(1, 30):
        table = Table({5})
        table.down_from = attempts
        result = found(table, 16)
        assert set(result.blamed) <= {5}
        assert result.end == len(table.rows) + len(result.blamed)
        assert table.rows == [row for row in range(result.end) if row != 5]
        assert result.general == (None if result.end == 16 else DOWN)


def test_an_error_about_data_needs_no_proof_that_other_batches_work():
    table = Table({0}, of_data=True)
    found(table, 1)
    assert table.attempts == [(0, 1)]


def test_a_search_that_stops_early_has_decided_the_first_rows_without_gaps():
    table = Table({5, 12})
    result = found(table, 16, enough=lambda: len(table.attempts) > 8)
    assert 0 < result.end < 16
    assert table.rows == [row for row in range(result.end) if row != 5]


def test_a_search_that_stops_at_once_still_decides_at_least_one_row():
    assert found(Table(()), 16, enough=lambda: True).end == 16
    assert found(Table({0}), 16, enough=lambda: True).end == 1
    assert found(Table({9}), 16, enough=lambda: True).end == 8
