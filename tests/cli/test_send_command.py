"""``ebbflow send``: messages from arguments, lines and JSON, stored where their vertex reads."""

import json
import time

import pytest
from typer.testing import CliRunner

from ebbflow.cli.main import app
from ebbflow.engine.publications import partition_of
from ebbflow.status.backlog import Backlog
from ebbflow.streams.names import VertexStreams


@pytest.fixture
def send(state, standing):
    def invoke(*args, **options):
        words = ["send", standing.name, *args, "--state", str(state)]
        return CliRunner().invoke(app, words, **options)

    return invoke


def test_values_are_stored_in_the_buffer_of_a_vertex(send, standing):
    result = send("out", "one", "two", "--key", "k", "--header", "a=b=c")
    assert (result.exit_code, result.output) == (0, "Stored 2 messages for out.\n")
    rows = standing.stored("out")
    assert [(row["value"], row["keys"], row["headers"]) for row in rows] == [
        (b"one", ["k"], [("a", "b=c")]),
        (b"two", ["k"], [("a", "b=c")]),
    ]
    assert len({row["id"] for row in rows}) == 2
    assert all(row["deliveries"] == 1 and row["event_time"] for row in rows)


def test_lines_of_standard_input_are_messages(send, standing):
    lines = "".join(f"line {n}\n" for n in range(2_500))
    assert send("out", input=lines + "last").output == "Stored 2,501 messages for out.\n"
    assert [row["value"].decode() for row in standing.stored("out")] == (lines + "last").split("\n")
    backlog = Backlog(standing.link.client, standing.names, VertexStreams("out", 1, True))
    assert standing.link.run(backlog.look([None])).pending == 2_501


def test_messages_of_an_ordered_vertex_keep_the_order_of_their_keys(send, standing):
    lines = [json.dumps({"value": n, "keys": [f"k{n % 3}"]}) for n in range(30)]
    send("sorted", "--json-lines", input="\n".join(lines))
    partitions = [standing.stored("sorted", partition) for partition in range(2)]
    for number, rows in enumerate(partitions):
        assert {partition_of(row["keys"], 2) for row in rows} <= {number}
        for key in {row["keys"][0] for row in rows}:
            values = [int(row["value"]) for row in rows if row["keys"] == [key]]
            assert values == sorted(values)
    assert sum(map(len, partitions)) == 30


def test_json_lines_set_every_field_of_a_message(send, standing):
    message = {
        "id": "a-1",
        "value": {"base64": "/wA="},
        "keys": ["x"],
        "headers": {"h": "1"},
        "event_time": "2026-01-02T03:04:05",
    }
    result = send("out", "--json-lines", "--json", input=json.dumps(message) + "\n\n")
    assert json.loads(result.output) == {"vertex": "out", "id": "a-1", "stored": True}
    (row,) = standing.stored("out")
    assert (row["id"], row["value"], row["keys"]) == ("a-1", b"\xff\x00", ["x"])
    assert row["event_time"].isoformat() == "2026-01-02T03:04:05+00:00"


def test_an_id_is_stored_once_even_in_a_batch_of_others(send, standing):
    send("out", "x", "--id", "a")
    lines = "\n".join(json.dumps({"id": name, "value": name}) for name in "bac")
    result = send("out", "--json-lines", input=lines)
    assert result.output == "Stored 3 messages for out; 1 were there already.\n"
    assert sorted(row["id"] for row in standing.stored("out")) == ["a", "b", "c"]


def test_a_source_without_a_buffer_receives_the_message_as_if_it_had_read_it(send, standing):
    assert send("in", "x", "--id", "mine").exit_code == 0
    assert [(row["id"], row["deliveries"]) for row in standing.stored("in")] == [("mine", 1)]


@pytest.mark.parametrize(
    ("args", "lines", "said"),
    [
        (["nowhere", "x"], None, "has no vertex 'nowhere'; there are"),
        (["out", "--json-lines"], '{"value": 1}\n{"valu": 2}', "line 2: it is not an object"),
        (["out", "--json-lines"], '{"value": 1, "ids": 2}', "line 1: it has the unknown field"),
        (["out", "x", "--header", "a"], None, "write NAME=VALUE"),
        (["out", "x", "y", "--id", "a"], None, "is for one message"),
    ],
    ids=["vertex", "no value", "unknown field", "header", "id"],
)
def test_mistakes_are_explained_and_nothing_is_stored(send, standing, args, lines, said):
    result = send(*args, input=lines)
    assert result.exit_code != 0
    assert said in " ".join(result.output.split())
    assert standing.stored("out") == []


def test_send_waits_for_a_full_buffer_no_longer_than_its_timeout(send, standing):
    buffer = standing.names.buffer("out", 0)
    standing.limit(buffer, messages=1)
    assert send("out", "fits").exit_code == 0
    began = time.monotonic()
    result = send("out", "too much", "--timeout", "1s")
    assert result.exit_code != 0
    assert "found it full" in result.output
    assert time.monotonic() - began < 30, "it waited forever"
    assert [row["value"] for row in standing.stored("out")] == [b"fits"]
