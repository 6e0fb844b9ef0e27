"""The size of chunks fits the cost of a call and the cost of a message."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ebbflow.domain.durations import DEFAULT_ON_ERROR
from ebbflow.engine.checks import Rules
from ebbflow.engine.frames import Rows, batch_of
from ebbflow.engine.verdict import Verdict
from ebbflow.runtime.chunk_size import LARGEST, PATIENCE, SHARE, TARGET, Cost, Pace
from ebbflow.runtime.worker import ResidentVertex

FULL = 500


def worked(pace, cost, chunks, full=FULL, noise=0.0, seed=0):
    """Rows and seconds of some full chunks of code with this cost."""
    chance = random.Random(seed)
    rows = seconds = 0.0
    for _ in range(chunks):
        taken = cost.of(-(-pace.limit // full), pace.limit) * chance.uniform(1 - noise, 1 + noise)
        rows, seconds = rows + pace.limit, seconds + taken
        pace.took(pace.limit, taken)
    return rows, seconds


def after(chunks, cost, full=FULL):
    """The chunk size after some full chunks of code with this cost."""
    pace = Pace(full)
    worked(pace, cost, chunks, full)
    return pace.limit


def best_rate(cost, full):
    """The most messages a second, if no call is longer than it may be."""
    longest = max(TARGET, min(SHARE * cost.call, PATIENCE + 2 * cost.call))
    fitting = [rows for rows in range(1, full + 1) if cost.of(1, rows) <= longest]
    return max(rows / cost.of(1, rows) for rows in fitting or [1])


@pytest.mark.parametrize(
    ("seconds_a_row", "limit"),
    [(10.0, 1), (0.25, 1), (0.1, 2), (0.05, 5), (0.01, 25), (0.002, 125), (1e-6, 8_000)],
)
def test_chunks_grow_to_what_the_code_processes_in_a_quarter_of_a_second(seconds_a_row, limit):
    assert after(10, Cost(0, seconds_a_row)) == pytest.approx(limit, abs=1)


@pytest.mark.parametrize(("seconds", "calls"), [(0.001, 16), (0.03, 8), (0.12, 2), (0.2, 1)])
def test_calls_that_cost_less_than_a_quarter_of_a_second_share_a_chunk(seconds, calls):
    assert after(10, Cost(seconds, 0)) == calls * FULL


@pytest.mark.parametrize("seconds", [0.3, 0.4, 1.0, 10.0])
@pytest.mark.parametrize("full", [50, 500, 2_000, 20_000])
def test_calls_with_a_fixed_cost_get_full_batches(seconds, full):
    assert after(15, Cost(seconds, 0), full) == full


def test_a_call_with_fixed_and_per_message_costs_stays_within_its_time_limit():
    rows = after(15, Cost(0.5, 0.05))

    assert rows < FULL
    assert Cost(0.5, 0.05).of(1, rows) <= PATIENCE + 2 * 0.5


def test_slow_code_gets_small_chunks_at_once():
    assert after(1, Cost(0, 1.0)) == 1


def test_fast_code_gets_larger_chunks_step_by_step():
    assert [after(chunks, Cost(0, 1e-6)) for chunks in range(6)] == [
        32,
        128,
        512,
        2_048,
        8_000,
        8_000,
    ]


def test_a_fast_chunk_that_was_far_from_full_does_not_change_the_limit():
    pace = Pace()
    pace.took(3, 1e-6)
    assert pace.limit == 32


def test_a_slow_chunk_makes_the_next_one_smaller_even_if_it_was_not_full():
    pace = Pace()
    pace.took(3, 1.0)
    assert pace.limit == 1


def test_single_messages_do_not_hide_the_fixed_cost_of_calls():
    pace = Pace(FULL)
    for _ in range(30):
        pace.took(1, 0.4)
    worked(pace, Cost(0.4, 0), 30)
    assert pace.limit == FULL


def test_rows_with_separate_calls_do_not_reduce_the_limit():
    pace = Pace(FULL)
    worked(pace, Cost(0.4, 0), 10)
    pace.took(100, 50 * 0.4 + 0.4, alone=50)
    assert pace.limit == FULL


costs = st.builds(Cost, st.floats(0, 2.0), st.floats(1e-7, 1.0))


@given(costs, st.sampled_from([1, 10, 100, 500, 2_000]), st.floats(0, 0.2), st.integers(0, 9))
def test_throughput_is_at_least_nine_tenths_of_the_best_from_the_first_chunk_on(
    cost, full, noise, seed
):
    rows, seconds = worked(Pace(full), cost, 200, full, noise, seed)

    assert rows / seconds >= 0.9 * best_rate(cost, full)


@given(costs, costs, st.floats(0, 0.2), st.integers(0, 9))
def test_the_limit_follows_a_change_of_cost(before, cost, noise, seed):
    pace = Pace(FULL)
    worked(pace, before, 50, noise=noise, seed=seed)
    worked(pace, cost, 30, noise=noise, seed=seed)
    rows, seconds = worked(pace, cost, 100, noise=noise, seed=seed + 1)

    assert rows / seconds >= 0.8 * best_rate(cost, FULL)


@given(
    st.lists(
        st.tuples(st.integers(0, 10_000), st.floats(0, 1e4), st.integers(0, 2**40)), max_size=30
    ),
    st.sampled_from([1, 7, 500, 20_000]),
)
def test_the_limit_stays_within_its_bounds(seen, full):
    pace = Pace(full)
    for rows, seconds, size in seen:
        pace.took(rows, seconds, size, min(rows, size % 7))
        assert 1 <= pace.limit <= max(LARGEST, full)
        assert isinstance(pace.limit, int)


def chunk_of(rows):
    batch = batch_of({"id": ["x"] * rows}, rows)
    return Verdict(Rows(batch), Rules("m", DEFAULT_ON_ERROR, 1_000))


def test_measuring_adapts_the_limit():
    pace = Pace()
    with pace.measured(chunk_of(32)):
        pass
    assert pace.limit > 32


def test_a_disregarded_chunk_is_not_measured():
    pace, verdict = Pace(), chunk_of(32)
    with pace.measured(verdict):
        verdict.disregard_time()
    assert pace.limit == 32


def test_the_next_task_of_a_partition_continues_at_its_pace():
    vertex = ResidentVertex()
    worked(vertex.pace(0, FULL), Cost(0.4, 0), 10)

    assert vertex.pace(0, FULL).limit == FULL
    assert vertex.pace(1, FULL).limit == 32


def test_large_messages_get_smaller_chunks_and_small_ones_get_larger_chunks_again():
    pace = Pace(FULL)
    for _ in range(5):
        pace.took(pace.limit, 1e-3, pace.limit * 10_000)
    assert pace.limit == 8 * 1024 * 1024 // 10_000
    for _ in range(5):
        pace.took(pace.limit, 1e-3, pace.limit * 100)
    assert pace.limit == 8_000


def test_a_message_larger_than_a_chunk_should_be_gets_its_own_chunk():
    pace = Pace()
    pace.took(pace.limit, 1e-3, pace.limit * 2**30)
    assert pace.limit == 1
