"""Keys, headers and deleted values of messages, in Kafka's records and back."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ebbflow.connectors.kafka.records import (
    KEY_COUNT,
    TOMBSTONE,
    Records,
    read_columns,
    write_records,
)
from ebbflow.engine import frames

texts = st.text(max_size=8)
names = texts.filter(lambda name: not name.startswith("__"))
messages = st.tuples(st.lists(texts, max_size=5), st.dictionaries(names, texts, max_size=5))


def read(*records):
    """Keys and headers of messages, from ``(key, headers)`` of records."""
    columns = read_columns([key for key, _ in records], [headers for _, headers in records])
    absent = [None] * len(records)
    keys = columns["keys"].to_pylist() if "keys" in columns else absent
    headers = columns["headers"].to_pylist() if "headers" in columns else absent
    return [(row or [], dict(pairs or ())) for row, pairs in zip(keys, headers, strict=True)]


def batch_of(rows, values=None):
    columns = {
        "id": [str(number) for number in range(len(rows))],
        "value": values or [b""] * len(rows),
        "keys": [keys or None for keys, _ in rows],
        "headers": [list(headers.items()) or None for _, headers in rows],
    }
    return frames.batch_of(columns, len(rows))


def write(*rows, values=None, set_key=False):
    """The values, keys and headers of the records for these messages."""
    records = write_records(batch_of(rows, values), set_key)
    return [list(map(dict, column)) if name == "headers" else list(column)
            for name, column in limit(records, len(rows)) if name != "timestamps"]  # fmt: skip


def limit(records: Records, count):
    for name, column in records._asdict().items():
        yield name, [item for _, item in zip(range(count), column, strict=False)]


@given(st.lists(messages, max_size=6))
def test_keys_and_headers_are_read_back_as_they_were_written(rows):
    _, _, headers = write(*rows)
    assert read(*((b"any key", list(row.items())) for row in headers)) == rows


@given(st.lists(messages, min_size=3, max_size=6), st.data())
def test_a_slice_of_a_batch_is_written_like_the_whole(rows, data):
    start = data.draw(st.integers(0, len(rows) - 1))
    whole, part = write_records(batch_of(rows), True), batch_of(rows).slice(start)
    records = dict(limit(write_records(part, True), len(rows) - start))
    for name, column in limit(whole, len(rows)):
        assert records[name] == column[start:]


def test_keys_are_written_as_numaflow_writes_them():
    values, keys, headers = write((["ann", "bob"], {"trace": "7"}), values=[b"v"], set_key=True)
    assert (values, keys) == ([b"v"], [b"ann:bob"])
    assert [list(row.items()) for row in headers] == [
        [("trace", b"7"), ("__key_len", b"2"), ("__key_0", b"ann"), ("__key_1", b"bob")]
    ]


def test_without_set_key_or_keys_a_record_has_no_key():
    _, keys, headers = write((["ann"], {}), ([], {}))
    assert keys == [None, None]
    assert [row[KEY_COUNT] for row in headers] == [b"1", b"0"]
    _, keys, headers = write(([], {}), ([], {}), set_key=True)
    assert keys == [None, None]
    assert headers == [{KEY_COUNT: b"0"}] * 2


def test_headers_of_a_message_are_not_mistaken_for_its_keys():
    _, _, headers = write(([], {"__key_len": "1", "__key_0": "x"}))
    assert headers == [{"__key_len": b"0", "__key_0": b"x"}]


def test_data_behind_nulls_is_ignored():
    batch = batch_of([(["ann"], {"a": "1"}), (["bob"], {"b": "2"})])
    keys, pairs = batch.column("keys"), batch.column("headers")
    hidden = pa.array([False, True])
    columns = {
        "keys": pa.ListArray.from_arrays(keys.offsets, keys.values, mask=hidden),
        "headers": pa.MapArray.from_arrays(pairs.offsets, pairs.keys, pairs.items, mask=hidden),
    }
    records = write_records(frames.with_columns(batch, **columns), True)
    assert list(records.keys) == [b"ann", None]
    assert list(records.headers) == [
        {"a": b"1", "__key_len": b"1", "__key_0": b"ann"},
        {"__key_len": b"0"},
    ]


def test_a_record_without_key_headers_has_its_own_key_as_the_only_key():
    records = (b"ann", None), (None, [("a", b"1")]), (b"", []), (None, None)
    assert read(*records) == [(["ann"], {}), ([], {"a": "1"}), ([""], {}), ([], {})]


def test_records_with_and_without_key_headers_can_be_mixed():
    several = [("__key_len", b"2"), ("__key_0", b"x"), ("trace", b"7"), ("__key_1", b"y")]
    records = (b"ann", None), (b"ann", several), (None, [("__key_len", b"0")])
    assert read(*records) == [(["ann"], {}), (["x", "y"], {"trace": "7"}), ([], {})]


@pytest.mark.parametrize(
    "headers",
    [
        {"__key_len": b"1"},
        {"__key_len": b"-1"},
        {"__key_len": None},
        {"__key_len": b"many", "__key_0": b"x"},
        {"__key_len": b"2", "__key_0": b"x"},
        {"__key_len": b"99999999999999999999"},
        {"__key_len": b"9" * 5_000},
    ],
)
def test_headers_that_only_look_like_keys_stay_headers(headers):
    ((keys, texts),) = read((b"ann", list(headers.items())))
    assert keys == ["ann"]
    assert texts.keys() == headers.keys()


def test_the_last_duplicate_header_wins_and_a_null_value_becomes_empty():
    pairs = [("trace", b"7"), ("none", None), ("trace", b"8")]
    assert read((None, pairs)) == [([], {"trace": "8", "none": ""})]


@given(st.binary(max_size=8), st.binary(max_size=8))
def test_different_keys_that_are_not_text_stay_different(one, other):
    (((first,), _), ((second,), _)) = read((one, None), (other, None))
    if b"\\" not in one + other:
        assert (first == second) == (one == other)


def test_a_tombstone_is_marked_by_a_header_that_is_not_written_back():
    columns = read_columns([b"ann", b"bob"], [None, [("a", b"1")]], deleted=[1])
    assert columns["headers"].to_pylist() == [[], [("a", "1"), (TOMBSTONE, "true")]]
    rows = [([], {TOMBSTONE: "true"})] * 2
    values, _, headers = write(*rows, values=[b"", b"not empty"])
    assert values == [None, b"not empty"]
    assert headers == [{KEY_COUNT: b"0"}] * 2
