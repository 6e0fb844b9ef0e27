"""A source's messages as columns: what may be returned, and the rows that result from it."""

import base64
import hashlib
import re
from datetime import UTC, datetime

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ebbflow import SourceMessage
from ebbflow.engine import frames
from ebbflow.engine.source_columns import (
    TYPES,
    check_columns,
    columns_of,
    frame_of,
    ids_of,
    rows_of,
)
from tests.engine.sample_rows import NOW, maps, texts, times

offsets = st.binary(min_size=1, max_size=120) | st.integers(0, 10**12).map(lambda n: b"%d" % n)
messages = st.builds(
    SourceMessage,
    value=st.binary(max_size=20),
    offset=offsets,
    event_time=st.none() | times,
    keys=st.lists(texts, max_size=3),
    headers=maps,
    partition=st.none() | st.integers(0, 2**31 - 1),
    deliveries=st.none() | st.integers(1, 2**31 - 1),
    metadata=st.none() | st.dictionaries(texts, st.dictionaries(texts, st.binary(max_size=5))),
)


def id_of(message: SourceMessage, vertex: str, partition: int) -> str:
    """The id of one message, as specified in the reference."""
    offset = message.offset
    where = partition if message.partition is None else message.partition
    if re.fullmatch(rb"[!-.0-~]{1,80}", offset) and not offset.startswith(b"="):
        text = offset.decode()
    else:
        text = "=" + base64.urlsafe_b64encode(offset).decode().rstrip("=")
        if len(text) > 90:
            text = "==" + hashlib.blake2b(offset, digest_size=32).hexdigest()
    return f"{vertex}-{where}-{text}"


@given(st.lists(messages, max_size=5))
def test_columns_have_the_same_fields_as_the_messages(some):
    batch = check_columns(columns_of(some))
    rows = frame_of(rows_of(batch, "in", 3, NOW)).to_pylist()
    assert [row["id"] for row in rows] == [id_of(message, "in", 3) for message in some]
    for row, message in zip(rows, some, strict=True):
        assert row["value"] == message.value
        assert (row["keys"] or []) == list(message.keys)
        assert dict(row["headers"] or ()) == message.headers
        groups = {name: dict(group) for name, group in row["metadata"] or ()}
        assert groups == message.metadata
        assert row["event_time"] == (message.event_time or NOW)
        assert row["deliveries"] == (message.deliveries or 1)
        assert (row["first_seen"], row["failures"], row["retries"]) == (NOW, 0, 0)


@given(st.lists(messages, min_size=1, max_size=6), st.integers(0, 5), st.integers(0, 6))
def test_ids_of_a_slice_are_those_of_its_rows(some, start, count):
    whole = columns_of(some)
    part = whole.slice(min(start, len(some)), count)
    expected = ids_of(whole, "in", 0).slice(min(start, len(some)), count)
    assert ids_of(part, "in", 0).to_pylist() == expected.to_pylist()


@given(st.lists(offsets, unique=True, max_size=8))
def test_different_offsets_have_different_ids(some):
    columns = columns_of([SourceMessage(b"", offset) for offset in some])
    assert len(set(ids_of(columns, "in", 0).to_pylist())) == len(some)


def test_offset_and_value_are_the_only_required_columns():
    batch = pa.RecordBatch.from_pydict({"value": [b"a", b"b"], "offset": [b"1", b"2"]})
    checked = check_columns(batch)
    assert checked.schema.names == list(TYPES)
    assert {checked.column(name).null_count for name in TYPES} == {0, 2}


def test_compatible_column_types_are_accepted():
    seen = datetime(2026, 8, 1, 12, tzinfo=UTC)
    batch = pa.RecordBatch.from_pydict(
        {
            "value": pa.array(["text"], pa.large_string()),
            "offset": pa.array(["1"]),
            "event_time": pa.array([seen], pa.timestamp("ns", "Europe/Berlin")),
            "partition": pa.array([7], pa.int64()),
            "deliveries": pa.array([2], pa.uint8()),
            "keys": pa.array([["k"]], pa.large_list(pa.string())),
            "unknown": [1],
        }
    )
    (row,) = check_columns(batch).to_pylist()
    assert (row["value"], row["offset"], row["event_time"]) == (b"text", b"1", seen)
    assert (row["partition"], row["deliveries"], row["keys"]) == (7, 2, ["k"])


BINARY = pa.array([b"1"], pa.binary())


@pytest.mark.parametrize(
    ("columns", "problem"),
    [
        (
            {"value": pa.array([None], pa.binary())},
            "read() must return a column 'value' without nulls",
        ),
        (
            {"offset": pa.array([None], pa.binary())},
            "read() must return a column 'offset' without nulls",
        ),
        ({"offset": pa.array([b""])}, "offset must have 1 to 4096 bytes, not 0"),
        ({"offset": pa.array([b"x" * 4_097])}, "offset must have 1 to 4096 bytes, not 4097"),
        ({"event_time": pa.array([NOW.replace(tzinfo=None)])}, "event_time must have a time zone"),
        ({"keys": pa.array([["a", None]])}, "read() must return keys without nulls"),
        (
            {"headers": pa.array([[("a", None)]], pa.map_(pa.string(), pa.string()))},
            "read() must return headers without nulls",
        ),
        (
            {"metadata": pa.array([[("g", [("k", None)])]], TYPES["metadata"])},
            "read() must return metadata without nulls",
        ),
        (
            {"metadata": pa.array([[("g", None)]], TYPES["metadata"])},
            "read() must return metadata without nulls",
        ),
        ({"deliveries": pa.array([0])}, "deliveries must be 1 or more, not 0"),
        ({"value": pa.array([1.5])}, "read() returned a column 'value' that cannot be used: "),
        (
            {"partition": pa.array([2**40])},
            "read() returned a column 'partition' that cannot be used",
        ),
    ],
    ids=lambda case: next(iter(case)) if isinstance(case, dict) else "",
)
def test_columns_that_cannot_be_messages_are_rejected(columns, problem):
    batch = pa.RecordBatch.from_pydict({"offset": BINARY, "value": BINARY} | columns)
    with pytest.raises((TypeError, ValueError), match=re.escape(problem)):
        check_columns(batch)


@pytest.mark.parametrize("missing", ["offset", "value"])
def test_offset_and_value_must_not_be_missing(missing):
    batch = pa.RecordBatch.from_pydict({"offset": BINARY, "value": BINARY}).drop_columns([missing])
    with pytest.raises(ValueError, match=re.escape(f"read() must return a column '{missing}'")):
        check_columns(batch)


def test_checking_a_slice_ignores_its_neighbours():
    whole = pa.RecordBatch.from_pydict(
        {
            "offset": pa.array([b"", b"1", None], pa.binary()),
            "value": pa.array([None, b"v", None], pa.binary()),
            "keys": pa.array([[None], ["k"], [None]], pa.list_(pa.string())),
        }
    )
    (row,) = check_columns(whole.slice(1, 1)).to_pylist()
    assert (row["offset"], row["value"], row["keys"]) == (b"1", b"v", ["k"])


def test_rows_fit_into_a_frame():
    columns = check_columns(columns_of([SourceMessage(b"v", b"1", keys=["k"], headers={"a": "b"})]))
    frame = frame_of(rows_of(columns, "in", 0, NOW))
    assert frames.decode(frames.encode(frame)) == frame
