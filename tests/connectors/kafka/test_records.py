"""Keys and headers of messages, in Kafka's headers and back."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ebbflow.connectors.kafka.records import TOMBSTONE, read_headers, write_headers

texts = st.text(max_size=8)
names = texts.filter(lambda name: not name.startswith("__"))


@given(st.lists(texts, max_size=5), st.dictionaries(names, texts, max_size=5))
def test_what_is_written_is_read_back(keys, headers):
    record = write_headers(keys, headers)
    assert read_headers(b"any key", record) == (keys, headers)


def test_keys_are_written_as_numaflow_writes_them():
    assert write_headers(["ann", "bob"], {"trace": "7"}) == [
        ("trace", b"7"),
        ("__key_len", b"2"),
        ("__key_0", b"ann"),
        ("__key_1", b"bob"),
    ]


def test_without_such_headers_the_key_of_the_record_is_the_one_key():
    assert read_headers(b"ann", None) == (["ann"], {})
    assert read_headers(None, [("a", b"1")]) == ([], {"a": "1"})
    assert read_headers(b"", []) == ([""], {})


@pytest.mark.parametrize(
    "headers",
    [
        {"__key_len": b"1"},
        {"__key_len": b"-1"},
        {"__key_len": b"many", "__key_0": b"x"},
        {"__key_len": b"2", "__key_0": b"x"},
        {"__key_len": b"99999999999999999999"},
    ],
)
def test_headers_that_only_look_like_keys_stay_headers(headers):
    keys, found = read_headers(b"ann", list(headers.items()))
    assert keys == ["ann"]
    assert found.keys() == headers.keys()


@given(st.binary(max_size=8), st.binary(max_size=8))
def test_bytes_that_are_no_text_stay_apart(one, other):
    both = [read_headers(key, None)[0][0] for key in (one, other)]
    if b"\\" not in one + other:
        assert (both[0] == both[1]) == (one == other)


def test_the_mark_of_a_deleted_value_is_not_written():
    assert dict(write_headers([], {TOMBSTONE: "true"})) == {"__key_len": b"0"}
