"""The id of a frame that a query's task stores: the same for the same rows, and for no others."""

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from ebbflow.connectors.spark.source import _content
from ebbflow.engine import frames
from tests.engine.sample_rows import texts, times

values = st.binary(max_size=4)
rows = st.lists(
    st.fixed_dictionaries(
        {
            "id": texts,
            "value": values,
            "keys": st.none() | st.lists(texts, max_size=2),
            "event_time": st.none() | times,
            "nack_reason": st.none() | texts,
        }
    ),
    max_size=4,
)
NAMES = ("id", "value", "keys", "event_time", "nack_reason")


def batch(given_rows) -> pa.RecordBatch:
    columns = {name: [row[name] for row in given_rows] for name in NAMES}
    return frames.batch_of(columns, len(given_rows))


@given(rows, rows)
def test_different_rows_have_different_hashes(one, other):
    same = batch(one) == batch(other)
    assert (_content(batch(one), NAMES) == _content(batch(other), NAMES)) is same


@given(rows, rows, rows)
def test_rows_outside_the_slice_do_not_change_the_hash(before, some, behind):
    whole = batch([*before, *some, *behind])
    assert _content(whole.slice(len(before), len(some)), NAMES) == _content(batch(some), NAMES)


def test_columns_outside_the_query_do_not_change_the_hash():
    row = {"id": "a", "value": b"v", "keys": None, "event_time": None, "nack_reason": "x"}
    one, other = batch([row]), batch([row | {"nack_reason": "y"}])
    assert _content(one, ["id", "value"]) == _content(other, ["id", "value"])
