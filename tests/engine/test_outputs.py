"""Ids of outputs, which contain the path of a message, and what a row inherits from its input."""

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ebbflow import Message
from ebbflow.engine import frames
from ebbflow.engine.outputs import (
    DELIVERY,
    INHERITED,
    LONGEST_ID,
    ColumnOutputs,
    Outputs,
    output_ids,
)
from tests.engine.sample_rows import NOW, some


def ids_of(parents: list[str], indexes: list[int], name: str) -> list[str]:
    return output_ids(pa.array(parents, pa.string()), indexes, name).to_pylist()


@pytest.mark.parametrize(
    ("parents", "indexes", "expected"),
    [
        ([], [], []),
        (["a", "b"], [0, 0], ["a/v", "b/v"]),
        (["a", "a", "b"], [0, 1, 0], ["a/v", "a/v.1", "b/v"]),
        (["a/u.2"], [3], ["a/u.2/v.3"]),
    ],
)
def test_an_id_is_the_path_of_a_message_numbered_from_the_second_output_on(
    parents, indexes, expected
):
    assert ids_of(parents, indexes, "v") == expected


roots = st.text(st.characters(exclude_categories=["Cs"]), max_size=130)
steps = st.lists(st.tuples(st.sampled_from(["v", "w", "long" * 8]), st.integers(0, 2)), max_size=80)


@given(
    st.lists(
        st.tuples(st.text(min_size=1, max_size=300), st.integers(0, 2)), min_size=1, max_size=6
    )
)
def test_ids_do_not_depend_on_how_many_outputs_a_chunk_has(outputs):
    """A chunk of few rows and one of many are built in different paths."""
    parents, indexes = map(list, zip(*outputs, strict=True))
    many = ids_of(parents * 40, indexes * 40, "v")
    assert many == ids_of(parents, indexes, "v") * 40


@given(roots, steps)
def test_an_id_stays_short_in_a_cycle_and_keeps_the_start_of_its_root(root, path):
    row = root
    for name, index in path:
        (row,) = ids_of([row], [index], name)
        assert len(row) <= max(LONGEST_ID, len(root)) + 100
    first = root.partition("/")[0]
    assert row.startswith(first[:100])


@given(st.lists(steps.map(tuple), min_size=2, max_size=6))
def test_different_paths_from_one_message_have_different_ids_however_long_they_are(paths):
    found: dict[str, tuple] = {}
    for path in paths:
        row = "root"
        for number, (name, index) in enumerate(path, 1):
            (row,) = ids_of([row], [index], name)
            assert found.setdefault(row, path[:number]) == path[:number]


@given(st.integers(241, 600), st.integers(2, 5))
def test_outputs_of_inputs_that_differ_anywhere_have_different_ids(length, count):
    parents = [f"root/{n}/" + "x" * length for n in range(count)]
    parents += [f"root/{'x' * length}/{n}" for n in range(count)]
    count *= 2
    found = ids_of(parents * 2, [0] * count + [1] * count, "v")
    assert len(set(found)) == 2 * count
    assert all(i.startswith("root/~") and len(i) < LONGEST_ID for i in found)


def test_one_long_id_does_not_change_the_others():
    assert ids_of(["a", "b" * 300], [0, 0], "v")[0] == "a/v"


def test_an_id_of_exactly_the_maximum_length_is_kept():
    assert ids_of(["x" * LONGEST_ID], [0], "v") == ["x" * LONGEST_ID + "/v"]


def outputs_of(rows: list[tuple[int, int, Message]]) -> Outputs:
    outputs = Outputs()
    for parent, index, message in rows:
        outputs.add(parent, index, message)
    return outputs


INPUT = some(
    "a",
    "b",
    keys=[["k"], None],
    headers=[[("h", "1")], None],
    event_time=[NOW, None],
    deliveries=[3, 4],
    failures=[1, 0],
    retries=[2, 0],
    nack_reason=["busy", None],
    first_seen=[NOW.replace(year=2025), None],
)


def test_the_next_vertex_receives_a_new_message_with_headers_and_times():
    batch = outputs_of([(0, 0, Message(b"1"))]).batch(INPUT, "v", NOW)
    (row,) = batch.to_pylist()
    assert {name: row[name] for name in (*INHERITED, *DELIVERY)} == {
        "event_time": NOW,
        "headers": [("h", "1")],
        "metadata": None,
        "deliveries": 1,
        "failures": 0,
        "retries": 0,
        "nack_reason": None,
        "first_seen": NOW,
    }


def test_within_a_vertex_a_message_keeps_the_delivery_history_of_its_input():
    outputs = outputs_of([(0, 0, Message(b"1"))])
    (row,) = outputs.batch(INPUT, "v", NOW, (*INHERITED, *DELIVERY)).to_pylist()
    found = [row[name] for name in DELIVERY]
    assert found == [3, 1, 2, "busy", NOW.replace(year=2025)]


messages = st.builds(
    Message,
    value=st.binary(max_size=4),
    keys=st.none() | st.lists(st.text("kl", max_size=2), max_size=2),
    tags=st.lists(st.sampled_from("xy"), max_size=2),
    event_time=st.none() | st.just(NOW),
)
calls = st.lists(st.lists(st.tuples(st.integers(0, 5), messages), max_size=4), max_size=4)
"""What some calls returned: for each message the index of its input."""


def as_columns(call: list[tuple[int, int, Message]]) -> ColumnOutputs:
    outputs = ColumnOutputs()
    columns: dict[str, Any] = {"value": pa.array([m.value for _, _, m in call], pa.binary())}
    for name, kind in (("keys", pa.list_(pa.string())), ("event_time", frames.TIME)):
        given_values = [getattr(m, name) for _, _, m in call]
        if any(value is not None for value in given_values):
            columns[name] = pa.array(given_values, kind)
    outputs.add(
        [p for p, _, _ in call], [n for _, n, _ in call], [tuple(m.tags) for *_, m in call], columns
    )
    return outputs


@given(calls, st.permutations(range(6)), st.integers(0, 7))
def test_columns_behave_like_messages_when_joined_cut_and_turned_into_rows(given_calls, at, end):
    rows = some(*"abcdef", keys=[["in"]] * 6, event_time=[NOW.replace(year=2025)] * 6)
    both: list[Outputs | ColumnOutputs] = [Outputs(), ColumnOutputs()]
    for number, call in enumerate(given_calls):
        numbered = [(parent, number * 10 + n, message) for n, (parent, message) in enumerate(call)]
        both[0].extend(at, outputs_of(numbered))
        both[1].extend(at, as_columns(numbered))
    for one, other in (both, [outputs.cut(end) for outputs in both]):
        assert (one.parents, one.indexes, one.tags) == (other.parents, other.indexes, other.tags)
        assert len(one) == len(other)
        batches = [outputs.batch(rows, "v", NOW) for outputs in (one, other)]
        assert batches[0].to_pylist() == batches[1].to_pylist()
        assert batches[1].schema == frames.SCHEMA
    assert all(parent < end for parent in both[0].cut(end).parents)
    assert len(both[0].cut(end)) == sum(parent < end for parent in both[0].parents)
