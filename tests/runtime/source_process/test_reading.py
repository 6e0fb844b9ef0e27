"""The messages in flight of a source's process, compared with a plain dictionary."""

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from ebbflow.runtime.source_process.reading import InFlightRows

offsets = st.lists(st.integers(0, 12).map(lambda n: b"%d" % n), max_size=6)
steps = st.lists(st.tuples(st.sampled_from(["read", "settle", "take"]), offsets), max_size=12)


def rows(some: list[bytes]) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.array(some, pa.binary())], names=["offset"])


def listed(batches: list[pa.RecordBatch]) -> list[bytes]:
    return [offset for batch in batches for offset in batch.column("offset").to_pylist()]


@given(steps)
def test_in_flight_rows_are_those_that_were_read_and_not_settled(taken_steps):
    in_flight, model = InFlightRows(), dict[bytes, None]()
    for step, some in taken_steps:
        if step == "read":
            fresh = in_flight.without_known(rows(some))
            assert listed([fresh]) == [o for o in dict.fromkeys(some) if o not in model]
            in_flight.add(fresh)
            model |= dict.fromkeys(some)
        elif step == "settle":
            in_flight.settle(pa.array(some, pa.binary()))
            for offset in some:
                model.pop(offset, None)
        else:
            assert listed(in_flight.take_all()) == list(model)
            model.clear()
        assert len(in_flight) == len(model)
        assert in_flight.offsets == set(model)
        assert bool(in_flight.nbytes) == bool(model)


def test_settled_rows_take_no_memory():
    in_flight = InFlightRows()
    in_flight.add(rows([b"1" * 100, b"2" * 100]))
    before = in_flight.nbytes
    in_flight.settle(pa.array([b"1" * 100]))
    assert in_flight.nbytes == before / 2
    in_flight.settle(pa.array([b"2" * 100]))
    assert in_flight.nbytes == 0
