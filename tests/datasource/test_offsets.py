"""Offsets, ranges and limits: pure arithmetic on sequence numbers."""

from __future__ import annotations

import asyncio
import json
from bisect import bisect_right
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ebbflow.datasource.planning import Facts, Offset, Range, find_start, search_end
from ebbflow.domain.errors import DataLoss, DataSourceError

NOW = Facts("ORDERS", "2026-01-01T00:00:00Z", first=11, last=100)
OFFSET = Offset("ORDERS", NOW.created, began=0, sequence=50)
WANTED = Range("ORDERS", NOW.created, None, after=50, until=60, fail_on_loss=True)


def test_an_offset_survives_a_checkpoint():
    assert Offset.from_checkpoint(json.loads(json.dumps(OFFSET.to_checkpoint()))) == OFFSET


def test_a_checkpoint_of_another_source_is_rejected():
    with pytest.raises(DataSourceError, match="The checkpoint is not one of a stream in JetStream"):
        Offset.from_checkpoint({"logOffset": 3})


@pytest.mark.parametrize(
    ("offset", "text"),
    [
        (
            replace(OFFSET, stream="BILLS"),
            "The checkpoint is about the stream BILLS, not ORDERS. ",
        ),
        (
            replace(OFFSET, created="2025-01-01T00:00:00Z"),
            "ORDERS was deleted and made again: the stream that was read is of "
            "2025-01-01T00:00:00Z, this one of 2026-01-01T00:00:00Z. ",
        ),
        (
            replace(OFFSET, sequence=101),
            "ORDERS ends at 100, and 101 was read before: the stream has lost its end. ",
        ),
    ],
)
def test_a_stream_other_than_the_checkpointed_one_is_rejected(offset, text):
    OFFSET.check(NOW)
    with pytest.raises(DataSourceError) as error:
        offset.check(NOW)
    assert str(error.value) == text + "Start the query with a new checkpointLocation."


def test_a_replayed_first_batch_begins_where_it_began_before():
    first_end = Offset("ORDERS", NOW.created, began=7, sequence=20)
    asked_again = Offset("ORDERS", NOW.created, began=90, sequence=90)
    assert find_start(asked_again, first_end) == 7
    assert find_start(first_end, first_end.at(30)) == 20


@settings(deadline=None, print_blob=True)
@given(st.integers(0, 10**12), st.integers(0, 10**6), st.integers(1, 300))
def test_the_parts_of_a_range_cover_it_and_have_about_the_same_length(after, length, parts):
    whole = replace(WANTED, after=after, until=after + length)
    found = whole.split(parts)
    assert len(found) == min(parts, length)
    assert [one.after for one in found] == [after, *(one.until for one in found[:-1])][: len(found)]
    assert not found or found[-1].until == whole.until
    lengths = {one.until - one.after for one in found}
    assert not lengths or max(lengths) - min(lengths) <= 1


def test_messages_removed_from_the_stream_unread_are_a_loss():
    assert WANTED.available(NOW) == WANTED
    with pytest.raises(DataLoss) as error:
        WANTED.available(replace(NOW, first=56))
    assert str(error.value) == (
        "ORDERS: messages from 51 to 55 are no longer in the stream and were not read: the limits "
        "of the stream removed them, or a user did. "
        "Set failOnDataLoss to false to continue with the messages that are left."
    )


@pytest.mark.parametrize(("first", "after"), [(51, 50), (52, 51), (60, 59), (61, 60), (90, 60)])
def test_the_remaining_messages_are_read_if_losses_are_tolerated(first, after):
    found = replace(WANTED, fail_on_loss=False).available(replace(NOW, first=first))
    assert (found.after, found.until) == (after, 60)


def test_an_empty_range_cannot_lose_anything():
    empty = replace(WANTED, until=50)
    assert empty.available(replace(NOW, first=80)) == empty
    assert empty.split(3) == []


@settings(deadline=None, print_blob=True)
@given(st.sets(st.integers(2, 5_000), max_size=300), st.integers(1, 400))
def test_a_limited_batch_is_never_too_large_and_never_empty(others, most):
    messages = sorted({1} | others)
    queried = []

    async def count(until: int) -> int:
        queried.append(until)
        return bisect_right(messages, until)

    end = asyncio.run(search_end(0, 5_000, most, count))
    assert 1 <= bisect_right(messages, end) <= most
    assert len(queried) <= 4
    if len(messages) <= most:
        assert end == 5_000


def test_evenly_spread_messages_fill_a_limited_batch():
    async def count(until: int) -> int:
        return until // 1_000

    end = asyncio.run(search_end(0, 50_000_000, 400, count))
    assert 320 <= end // 1_000 <= 400
