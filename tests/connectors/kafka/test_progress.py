"""What may be committed of a partition: everything before the first message not settled."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ebbflow.connectors.kafka.progress import Progress

offsets = st.lists(st.integers(0, 500), unique=True, max_size=60).map(sorted)


@pytest.mark.guarantee("kafka-skips-no-record")
@given(offsets, st.randoms(use_true_random=False))
def test_what_is_committed_never_skips_a_message_whatever_the_order_of_settling(given_, chance):
    progress = Progress()
    for offset in given_:
        progress.fetched(offset)
    left, order = set(given_), chance.sample(given_, len(given_))
    for offset in order:
        progress.settled(offset)
        left.discard(offset)
        committable = progress.committable
        assert committable is not None
        assert all(committable <= one for one in left)
        assert committable == (min(left) if left else given_[-1] + 1)
    assert progress.unsettled == 0


@given(offsets, st.integers(501, 600))
def test_offsets_that_nothing_is_at_do_not_hold_it_up(given_, end):
    progress = Progress()
    for offset in given_:
        progress.fetched(offset)
    progress.reached(end)
    assert progress.committable == (given_[0] if given_ else end)
    for offset in given_:
        progress.settled(offset)
    assert progress.committable == end
    assert progress.ended


@given(offsets.filter(len), st.integers(0, 500), st.data())
def test_a_place_that_was_set_back_skips_nothing(given_, back, data):
    progress = Progress()
    for offset in given_:
        progress.fetched(offset)
    progress.fetched(back)
    every = sorted({*given_, back})
    settled = data.draw(st.lists(st.sampled_from(every), unique=True))
    for offset in settled:
        progress.settled(offset)
    left = set(every) - set(settled)
    assert progress.committable == (min(left) if left else back + 1)


def test_nothing_is_known_at_first_and_what_is_not_in_hand_is_not_minded():
    progress = Progress()
    assert progress.committable is None
    progress.settled(7)
    assert progress.committable is None
    progress.fetched(3)
    progress.settled(7)
    assert progress.committable == 3
    assert not progress.ended
