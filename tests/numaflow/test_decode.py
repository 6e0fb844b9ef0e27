"""Responses decoded in bulk equal those that protobuf's own parser decodes, one by one."""

import contextlib
from datetime import UTC, datetime, timedelta

import numpy as np
import pytest
from google.protobuf.message import DecodeError
from hypothesis import given
from hypothesis import strategies as st

from ebbflow.numaflow.decode import (
    DROP,
    FAIL,
    NACK,
    FewResponses,
    Responses,
)
from ebbflow.numaflow.proto import map_pb2, sourcetransform_pb2
from ebbflow.numaflow.protobuf import Messages, Places
from ebbflow.numaflow.services import SERVICES

TEXTS = st.text(max_size=20)
GROUPS = st.dictionaries(
    TEXTS, st.dictionaries(TEXTS, st.binary(max_size=9), max_size=3), max_size=3
)
TIMES = st.datetimes(datetime(1, 1, 2), datetime(9999, 12, 30))


@st.composite
def nack_options(draw):
    return {
        name: value
        for name, value in (
            ("reason", draw(TEXTS)),
            ("max_deliveries", draw(st.integers(0, 2**32 - 1))),
            ("delay", draw(st.integers(0, 2**62))),
        )
        if draw(st.booleans())
    }


@st.composite
def results(draw, timed=False):
    fields = {
        "keys": draw(st.lists(TEXTS, max_size=3)),
        "value": draw(st.binary(max_size=300)),
        "tags": draw(st.lists(st.sampled_from([DROP, NACK, FAIL, "a", "ü"]), max_size=3)),
    }
    if draw(st.booleans()):
        fields["metadata"] = {
            "previous_vertex": draw(TEXTS),
            "sys_metadata": {"s": {"key_value": {"k": b"v"}}},
            "user_metadata": {g: {"key_value": kv} for g, kv in draw(GROUPS).items()},
        }
    if draw(st.booleans()):
        fields["nack_options"] = draw(nack_options())
    if timed and draw(st.booleans()):
        fields["event_time"] = draw(TIMES).replace(tzinfo=UTC)
    return fields


def places_of(messages):
    buffer, edges = b"?", []
    for message in messages:
        packed = message.SerializeToString()
        edges += (len(buffer), len(buffer) + len(packed))
        buffer += packed + b"..."
    return Places(buffer, np.array(edges[::2], np.int64), np.array(edges[1::2], np.int64))


def check(messages, shape, timed):
    packed = [message.SerializeToString() for message in messages]
    check_read(messages, Responses(places_of(messages), shape), timed)
    check_read(messages, FewResponses(packed, shape), timed)


def check_read(messages, responses, timed):
    assert len(responses) == len(messages)
    assert responses.have_ids == any(message.id for message in messages)
    assert responses.ids.to_pylist() == [message.id for message in messages]
    expected = [(n, result) for n, m in enumerate(messages) for result in m.results]
    ends = [not timed and message.status.eot for message in messages]
    assert responses.last.tolist() == ends
    assert responses.owners.tolist() == [n for n, _ in expected]
    columns = {name: column.to_pylist() for name, column in responses.columns().items()}
    count = len(expected)

    def column(name, absent=None):
        return columns.get(name, [absent] * count)

    wanted = [result for _, result in expected]
    assert column("value") == [r.value for r in wanted]
    assert column("keys") == [list(r.keys) for r in wanted]
    assert column("tags") == [list(r.tags) or None for r in wanted]
    assert column("drop", False) == [DROP in r.tags for r in wanted]
    assert column("nack", False) == [NACK in r.tags for r in wanted]
    assert column("error") == [
        (r.nack_options.reason or "failed") if FAIL in r.tags else None for r in wanted
    ]
    for name in ("delay", "max_deliveries", "reason"):
        said = [
            getattr(r.nack_options, name) if r.nack_options.HasField(name) else None for r in wanted
        ]
        assert column(f"nack_{name}") == said or "nack" not in columns
    groups = [{g: dict(kv.key_value) for g, kv in r.metadata.user_metadata.items()} for r in wanted]
    read = [{g: dict(kv) for g, kv in m} for m in column("metadata")]
    assert read == groups
    if timed:
        times = [_time(r.event_time) if r.HasField("event_time") else None for r in wanted]
        assert column("event_time") == times


def _time(stamp):
    since = timedelta(seconds=stamp.seconds, microseconds=stamp.nanos // 1_000)
    return datetime(1970, 1, 1, tzinfo=UTC) + since


@given(st.lists(st.tuples(TEXTS, st.lists(results(), max_size=3), st.booleans()), max_size=6))
def test_responses_of_maps_are_decoded_as_by_protobuf(answers):
    messages = [
        map_pb2.MapResponse(id=i, results=rs, status={"eot": True} if last else None)
        for i, rs, last in answers
    ]
    check(messages, SERVICES["map"], timed=False)


@given(st.lists(st.tuples(TEXTS, st.lists(results(timed=True), max_size=3)), max_size=6))
def test_responses_of_transformers_are_decoded_as_by_protobuf(answers):
    messages = [sourcetransform_pb2.SourceTransformResponse(id=i, results=rs) for i, rs in answers]
    check(messages, SERVICES["transformer"], timed=True)


def test_overlong_lengths_and_unknown_fields_are_accepted():
    # Field 9 with a number, 10 with eight bytes, 11 with four; then the id with a padded length.
    message = b"\x48\xff\x01" + b"\x51" + b"8" * 8 + b"\x5d" + b"4" * 4 + b"\x12\x82\x80\x00ab"
    places = Places(message, np.array([0]), np.array([len(message)]))
    assert Responses(places, SERVICES["map"]).ids.to_pylist() == ["ab"]


@given(st.binary(min_size=1, max_size=40))
def test_bytes_that_are_not_a_message_raise_nothing_but_decoding_errors(noise):
    with contextlib.suppress(ValueError, DecodeError):
        Responses(Places(noise, np.array([0]), np.array([len(noise)])), SERVICES["map"]).columns()


@pytest.mark.parametrize("cut", range(1, 9))
def test_a_truncated_message_is_rejected(cut):
    packed = map_pb2.MapResponse(id="12345678").SerializeToString()[:-cut]
    with pytest.raises(ValueError, match="middle of a field"):
        Messages(Places(packed, np.array([0]), np.array([len(packed)])))
