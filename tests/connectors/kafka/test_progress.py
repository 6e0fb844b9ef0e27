"""In a partition, everything before the first unsettled message may be committed."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ebbflow.connectors.kafka.source import Progress, read_offsets, write_offsets

numbers = st.lists(st.integers(0, 500), unique=True, max_size=60).map(sorted)


def fetch(progress, offsets, rng):
    """Fetch the offsets in several parts."""
    while offsets:
        count = rng.randint(1, len(offsets))
        progress.fetch(offsets[:count])
        offsets = offsets[count:]


@pytest.mark.guarantee("kafka-skips-no-record")
@given(numbers, st.randoms(use_true_random=False))
def test_a_commit_never_skips_a_message_whatever_the_order_of_settling(fetched, rng):
    progress = Progress()
    fetch(progress, fetched, rng)
    left, order = set(fetched), rng.sample(fetched, len(fetched))
    while order:
        count = rng.randint(1, len(order))
        settled, order = order[:count], order[count:]
        progress.settle(settled)
        left -= set(settled)
        committable = progress.committable
        assert committable is not None
        assert all(committable <= offset for offset in left)
        assert committable == (min(left) if left else fetched[-1] + 1)
    assert progress.unsettled == 0


@given(numbers, st.integers(501, 600), st.randoms(use_true_random=False))
def test_offsets_without_a_message_do_not_block_commits(fetched, end, rng):
    progress = Progress()
    fetch(progress, fetched, rng)
    progress.reach(end)
    assert progress.committable == (fetched[0] if fetched else end)
    progress.settle(fetched)
    assert progress.committable == end
    assert progress.ended


@given(numbers.filter(len), st.integers(0, 500), st.data())
def test_a_position_that_was_set_back_skips_nothing(fetched, back, data):
    progress = Progress()
    progress.fetch(fetched)
    progress.fetch([back])
    every = sorted({*fetched, back})
    settled = data.draw(st.lists(st.sampled_from(every), unique=True))
    progress.settle(settled)
    left = set(every) - set(settled)
    assert progress.committable == (min(left) if left else back + 1)


def test_nothing_is_committable_at_first_and_offsets_not_in_flight_are_ignored():
    progress = Progress()
    assert progress.committable is None
    progress.settle([7])
    assert progress.committable is None
    progress.fetch([3])
    progress.settle([7])
    assert progress.committable == 3
    assert not progress.ended


places = st.tuples(
    st.sampled_from(["orders", "orders.2", "o-r_d"]), st.integers(0, 12), st.integers(0, 2**63 - 1)
)


@given(st.lists(places, max_size=30))
def test_offsets_name_topic_partition_and_number(rows):
    offsets = write_offsets(*([row[field] for row in rows] for field in range(3)))
    texts = [f"{topic}:{partition}:{number}".encode() for topic, partition, number in rows]
    assert offsets.equals(pa.array(texts, pa.binary()))

    partitions = {}
    for topic, partition, number in rows:
        partitions.setdefault((topic, partition), []).append(number)
    assert dict(read_offsets(offsets)) == partitions
