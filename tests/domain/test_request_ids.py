"""Ids of requests: valid UUIDs of version 7, in the order of their time, never the same twice."""

import time
from uuid import RFC_4122, UUID

from hypothesis import given
from hypothesis import strategies as st

from ebbflow.domain.message import format_request_id, make_request_id

MOMENTS = st.integers(0, 2**48 - 1)
RANDOM = st.binary(min_size=10, max_size=10)


@given(MOMENTS, RANDOM)
def test_an_id_is_a_uuid_of_version_7_that_starts_with_its_time(moment: int, random: bytes) -> None:
    made = UUID(format_request_id(moment, random))
    assert (made.version, made.variant, made.int >> 80) == (7, RFC_4122, moment)
    assert made.int & (2**62 - 1) == int.from_bytes(random, "big") & (2**62 - 1)


@given(MOMENTS, MOMENTS, RANDOM, RANDOM)
def test_ids_sort_by_their_time(first: int, second: int, one: bytes, other: bytes) -> None:
    if first < second:
        assert format_request_id(first, one) < format_request_id(second, other)


def test_a_new_id_has_the_current_time_and_is_unique() -> None:
    before = time.time_ns() // 1_000_000
    made = {make_request_id() for _ in range(1_000)}
    assert len(made) == 1_000
    assert all(before <= UUID(id).int >> 80 <= time.time_ns() // 1_000_000 for id in made)
