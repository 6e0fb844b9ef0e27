"""Names of streams: pipeline, vertex and partition can be read from the name."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ebbflow.streams.names import AUDIT, Names, StreamName, list_pipelines, parse_stream

LABEL = st.from_regex(r"[a-z]([-a-z0-9]{0,4}[a-z0-9])?", fullmatch=True)


@given(LABEL, LABEL, st.integers(0, 99))
def test_the_name_of_a_stream_shows_its_pipeline_vertex_and_partition(pipeline, vertex, partition):
    names = Names(pipeline)
    place = vertex, partition
    assert parse_stream(names.buffer(*place)) == StreamName(pipeline, "buffer", *place)
    assert parse_stream(names.redelivery(*place)) == StreamName(pipeline, "redelivery", *place)
    for stream in (names.dead_letters, names.audit, names.logs, names.status, names.trail):
        parsed = parse_stream(stream)
        assert parsed == StreamName(pipeline, stream.rpartition("_")[2])


@pytest.mark.parametrize(
    "stream", ["orders", "ebb", "ebb_p", "KV_ebb_p_positions", "ebb_p_v_0_other", "ebb_a_b_c_d_e"]
)
def test_the_names_of_foreign_streams_are_not_recognised(stream):
    assert parse_stream(stream) is None


def test_pipelines_and_partitions_are_found_by_their_streams():
    one, other = Names("one"), Names("one-more")
    streams = [one.dead_letters, other.dead_letters, other.audit, one.redelivery("v", 1)]
    streams += [one.buffer("v", 1), one.redelivery("w-x", 0), other.redelivery("y", 0), "orders"]
    assert list_pipelines(streams) == ["one", "one-more"]
    assert list_pipelines(streams, AUDIT) == ["one-more"]
    assert one.partitions_in(streams) == {("v", 1), ("w-x", 0)}
