"""The spread of durations: what is added is counted once, and quantiles lie in their buckets."""

import math
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ebbflow.accounts.numbers import BOUNDS, Histogram

SECONDS = st.floats(0, 1000, allow_nan=False)


def spread_of(*durations: float) -> Histogram:
    spread = Histogram()
    for duration in durations:
        spread.add(duration)
    return spread


def test_a_duration_on_a_bound_counts_in_the_bucket_that_ends_there() -> None:
    spread = spread_of(0.001, 0.0011, 301)

    assert spread.buckets[BOUNDS.index(0.001)] == 1
    assert spread.buckets[BOUNDS.index(0.0025)] == 1
    assert spread.buckets[-1] == 1
    assert (spread.count, spread.seconds) == (3, pytest.approx(301.0021))


def test_a_duration_can_be_added_several_times_at_once() -> None:
    spread = Histogram()

    spread.add(0.002, times=500)

    assert (spread.count, spread.seconds, spread.mean) == (500, 1.0, 0.002)


def test_the_mean_and_quantiles_of_an_empty_histogram_are_zero() -> None:
    assert (Histogram().mean, Histogram().quantile(0.99)) == (0.0, 0.0)


@given(st.lists(SECONDS, min_size=1), st.floats(0.01, 1))
def test_a_quantile_lies_in_the_bucket_of_the_duration_it_estimates(
    durations: list[float], share: float
) -> None:
    rank = max(0, math.ceil(share * len(durations)) - 1)
    exact = sorted(durations)[rank]

    estimate = spread_of(*durations).quantile(share)

    low, high = next(
        (low, high)
        for low, high in pairwise((0.0, *BOUNDS, float("inf")))
        if low < exact <= high or exact == low == 0
    )
    assert low <= estimate <= high


@given(st.lists(SECONDS), st.lists(SECONDS))
def test_spreads_of_tasks_can_be_added_and_subtracted(mine: list[float], its: list[float]) -> None:
    both = spread_of(*mine) + spread_of(*its)

    assert both.buckets == spread_of(*mine, *its).buckets
    assert (both - spread_of(*its)).buckets == spread_of(*mine).buckets
