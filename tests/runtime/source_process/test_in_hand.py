"""The messages that a source's process has given, against a plain dictionary."""

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from ebbflow.runtime.source_process.in_hand import InHand

offsets = st.lists(st.integers(0, 12).map(lambda n: b"%d" % n), max_size=6)
steps = st.lists(st.tuples(st.sampled_from(["read", "settle", "take"]), offsets), max_size=12)


def rows(some: list[bytes]) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.array(some, pa.binary())], names=["offset"])


def listed(batches: list[pa.RecordBatch]) -> list[bytes]:
    return [offset for batch in batches for offset in batch.column("offset").to_pylist()]


@given(steps)
def test_it_holds_what_is_given_and_not_settled(taken_steps):
    in_hand, model = InHand(), dict[bytes, None]()
    for step, some in taken_steps:
        if step == "read":
            fresh = in_hand.without_known(rows(some))
            assert listed([fresh]) == [o for o in dict.fromkeys(some) if o not in model]
            in_hand.add(fresh)
            model |= dict.fromkeys(some)
        elif step == "settle":
            in_hand.settle(pa.array(some, pa.binary()))
            for offset in some:
                model.pop(offset, None)
        else:
            assert listed(in_hand.take_all()) == list(model)
            model.clear()
        assert len(in_hand) == len(model)
        assert in_hand.offsets == set(model)
        assert bool(in_hand.nbytes) == bool(model)


def test_what_is_settled_takes_no_room():
    in_hand = InHand()
    in_hand.add(rows([b"1" * 100, b"2" * 100]))
    before = in_hand.nbytes
    in_hand.settle(pa.array([b"1" * 100]))
    assert in_hand.nbytes == before / 2
    in_hand.settle(pa.array([b"2" * 100]))
    assert in_hand.nbytes == 0
