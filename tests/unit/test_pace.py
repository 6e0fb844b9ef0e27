import pytest
from hypothesis import given
from hypothesis import strategies as st

from ebbflow.spark.pace import Pace

LARGEST = 8_192


def after(chunks: int, seconds_per_row: float) -> int:
    """The chunk size after some full chunks of code with this speed."""
    pace = Pace()
    for _ in range(chunks):
        pace.took(pace.limit, pace.limit * seconds_per_row)
    return pace.limit


@pytest.mark.parametrize(
    ("seconds_per_row", "limit"),
    [
        (10.0, 1),
        (0.25, 1),
        (0.1, 2),
        (0.01, 25),
        (0.001, 250),
        (1e-6, LARGEST),
        (0.0, LARGEST),
    ],
)
def test_chunks_become_what_the_code_does_in_a_quarter_of_a_second(seconds_per_row, limit):
    assert after(10, seconds_per_row) == pytest.approx(limit, abs=1)


def test_slow_code_gets_small_chunks_at_once():
    assert after(1, 1.0) == 1


def test_fast_code_gets_larger_chunks_step_by_step():
    sizes = [after(chunks, 1e-6) for chunks in range(5)]
    assert sizes == [256, 1_024, 4_096, LARGEST, LARGEST]


def test_code_that_becomes_fast_is_given_more_again():
    pace = Pace()
    pace.took(256, 1_000.0)
    assert pace.limit == 1
    for _ in range(8):
        pace.took(pace.limit, pace.limit * 1e-6)
    assert pace.limit == LARGEST


def test_a_chunk_that_was_far_from_full_says_nothing_about_larger_ones():
    pace = Pace()
    pace.took(3, 1e-6)
    assert pace.limit == 256


def test_a_chunk_that_was_slow_though_not_full_makes_the_next_smaller():
    pace = Pace()
    pace.took(3, 1.0)
    assert pace.limit == 1


@given(st.lists(st.tuples(st.integers(0, 10_000), st.floats(0, 1e4)), max_size=30))
def test_the_limit_stays_within_its_bounds(seen):
    pace = Pace()
    for rows, seconds in seen:
        pace.took(rows, seconds)
        assert 1 <= pace.limit <= LARGEST
        assert isinstance(pace.limit, int)


def test_measuring_adapts_the_limit():
    pace = Pace()
    with pace.measured(pace.limit, 100):
        pass
    assert pace.limit > 256


def test_large_messages_get_smaller_chunks_and_small_ones_larger_ones_again():
    pace = Pace()
    for size in (10_000, 10_000, 10_000):
        pace.took(pace.limit, 1e-3, pace.limit * size)
    assert pace.limit == 8 * 1024 * 1024 // 10_000
    for size in (100, 100, 100):
        pace.took(pace.limit, 1e-3, pace.limit * size)
    assert pace.limit == LARGEST


def test_a_message_that_is_larger_than_a_chunk_should_be_goes_alone():
    pace = Pace()
    pace.took(pace.limit, 1e-3, pace.limit * 2**30)
    assert pace.limit == 1
