"""The file sink: OK means on disk, and a crash leaves nothing that a reader takes for a message."""

from __future__ import annotations

import errno
import json
import multiprocessing
import os
import random
import signal
import time
from collections import Counter
from datetime import UTC, datetime

import pytest

from ebbflow import Message, Pipeline, Response
from ebbflow.connectors import File, Generator
from ebbflow.connectors.file import FileSettings, FileSink
from ebbflow.domain.errors import SetupError
from ebbflow.domain.message import Status
from ebbflow.engine import frames
from tests.waiting import let_time_pass

TIME = datetime(2026, 1, 2, 3, 4, 5, 678_000, tzinfo=UTC)


@pytest.fixture(autouse=True)
def place(monkeypatch):
    """The environment variables that a vertex's task sets for user code."""
    monkeypatch.setenv("NUMAFLOW_PIPELINE_NAME", "orders")
    monkeypatch.setenv("NUMAFLOW_VERTEX_NAME", "out")
    monkeypatch.setenv("NUMAFLOW_REPLICA", "0")


@pytest.fixture
def path(tmp_path):
    return tmp_path / "out.txt"


class Answering(FileSink):
    """The sink, with a response for every row."""

    def __call__(self, batch):
        answers = super().__call__(batch)
        return [answers.get(row, Response.ok()) for row in range(batch.num_rows)]


def sink_to(path, **settings):
    return Answering(FileSettings(str(path), **settings))


def data(*values, **columns):
    ids = [f"m{number}" for number in range(len(values))]
    return frames.batch_of({"id": ids, "value": values, **columns}, len(values))


def statuses(responses):
    return [response.status for response in responses]


def test_each_value_is_a_line(path):
    sink = sink_to(path)
    assert statuses(sink(data(b"one", b"", b"t\xffwo\r"))) == [Status.OK] * 3
    assert statuses(sink(data(b"three"))) == [Status.OK]

    assert path.read_bytes() == b"one\n\nt\xffwo\r\nthree\n"


def test_a_value_with_a_line_break_is_nacked_and_the_others_are_written(path):
    first, second, third = sink_to(path)(data(b"one", b"two\nlines", b"three"))

    assert (first.status, third.status) == (Status.OK, Status.OK)
    assert second.nack_options.max_deliveries == 0
    assert second.nack_options.reason == (
        "its value has a line break, which only format: json can keep"
    )
    assert path.read_bytes() == b"one\nthree\n"


def test_a_sliced_batch_writes_only_its_own_rows(path):
    sink_to(path)(data(b"zero\n", b"one", b"", b"three", b"fo\nur").slice(1, 3))

    assert path.read_bytes() == b"one\n\nthree\n"


def test_a_batch_without_a_valid_line_writes_nothing(path):
    answers = sink_to(path)(data(b"\n", b"a\n"))

    assert statuses(answers) == [Status.NACK] * 2
    assert path.read_bytes() == b""


def test_json_format_writes_every_field_of_a_message_on_one_line(path):
    sink = sink_to(path, format="json")
    headers = [[("h", "v")], None]
    sink(data(b"a\nb", b"\xff", keys=[["k"], None], headers=headers, event_time=[TIME, None]))

    assert [json.loads(line) for line in path.read_text().splitlines()] == [
        {
            "id": "m0",
            "value": "a\nb",
            "keys": ["k"],
            "headers": {"h": "v"},
            "eventTime": 1_767_323_045_678,
        },
        {"id": "m1", "valueBase64": "/w==", "keys": [], "headers": {}, "eventTime": None},
    ]


def test_the_path_uses_the_current_pipeline_vertex_and_partition(tmp_path, monkeypatch):
    sink = sink_to(tmp_path / "{pipeline}" / "{vertex}-{partition}.txt")
    sink.open()
    sink(data(b"zero"))
    monkeypatch.setenv("NUMAFLOW_REPLICA", "1")
    sink(data(b"one"))

    assert (tmp_path / "orders" / "out-0.txt").read_text() == "zero\n"
    assert (tmp_path / "orders" / "out-1.txt").read_text() == "one\n"


@pytest.mark.guarantee("file-ok-means-on-disk")
@pytest.mark.parametrize("torn", [b"ha", b"x" * 200_000, b"\xff"])
@pytest.mark.parametrize("before", [b"", b"one\n", b"one\ntwo\n" * 30_000])
def test_a_partial_line_left_by_a_crash_is_removed(path, before, torn):
    path.write_bytes(before + torn)
    sink_to(path)(data(b"next"))

    assert path.read_bytes() == before + b"next\n"


def test_existing_lines_are_kept(path):
    path.write_bytes(b"one\ntwo\n")
    sink_to(path)(data(b"three"))

    assert path.read_bytes() == b"one\ntwo\nthree\n"


@pytest.mark.guarantee("file-ok-means-on-disk")
def test_a_full_disk_is_an_outage_and_leaves_no_partial_line(path, monkeypatch):
    sink_to(path)(data(b"one"))
    write = os.write

    def some_room(file, rest):
        if len(rest) <= 4:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return write(file, rest[:4])

    monkeypatch.setattr("ebbflow.connectors.file.os.write", some_room)
    responses = sink_to(path)(data(b"a long one", b"another"))
    monkeypatch.undo()

    assert responses == [Response.unavailable(what=f"{path}: No space left on device")] * 2
    assert path.read_bytes() == b"one\n"


def test_an_unwritable_file_fails_the_vertex_before_any_message(tmp_path):
    (tmp_path / "file").touch()
    sink = sink_to(tmp_path / "file" / "out.txt")

    with pytest.raises(SetupError) as raised:
        sink.open()
    assert str(raised.value) == (f"{tmp_path}/file/out.txt cannot be written: Not a directory.")


def test_a_file_over_its_size_limit_is_rotated(path):
    sink = sink_to(path, max_bytes=10)
    for value in (b"12345", b"67890", b"abc", b"0123456789", b"x"):
        sink(data(value))

    found = {one.name: one.read_bytes() for one in path.parent.iterdir()}
    assert found == {
        "out.txt": b"x\n",
        "out.txt.1": b"12345\n67890\n",
        "out.txt.2": b"abc\n0123456789\n",
    }


def append(path, name, count, max_bytes):
    sink = sink_to(path, max_bytes=max_bytes)
    for start in range(0, count, 5):
        values = [b"%s %d %s" % (name, n, name * 50_000) for n in range(start, start + 5)]
        assert set(statuses(sink(data(*values)))) == {Status.OK}


@pytest.mark.guarantee("file-ok-means-on-disk")
def test_several_processes_can_write_to_one_file(path):
    context = multiprocessing.get_context("fork")
    names = [b"a", b"b", b"c"]
    writers = [context.Process(target=append, args=(path, name, 200, 5_000_000)) for name in names]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join(120)

    assert [writer.exitcode for writer in writers] == [0, 0, 0]
    lines = [line for one in path.parent.iterdir() for line in one.read_bytes().splitlines()]
    wanted = {b"%s %d %s" % (name, n, name * 50_000) for name in names for n in range(200)}
    assert Counter(lines) == dict.fromkeys(wanted, 1)


def write_until_killed(path, acknowledged):
    sink = sink_to(path)
    number = 0
    while True:
        values = [b"%d %s" % (n, b"x" * 20_000) for n in range(number, number + 20)]
        sink(data(*values))
        number += 20
        os.write(acknowledged, b"%d\n" % number)


@pytest.mark.guarantee("file-ok-means-on-disk")
def test_a_writer_killed_at_any_moment_leaves_whole_lines_and_every_ok_message(path, tmp_path):
    seed = time.time_ns()
    print(f"seed {seed}")
    rng = random.Random(seed)
    context = multiprocessing.get_context("fork")
    for round_ in range(8):
        path.unlink(missing_ok=True)
        read, write = os.pipe()
        writer = context.Process(target=write_until_killed, args=(path, write))
        writer.start()
        os.close(write)
        assert os.read(read, 100)  # the writer has begun
        let_time_pass(rng.uniform(0, 0.05))
        os.kill(writer.pid, signal.SIGKILL)
        writer.join()
        reported = b""
        while piece := os.read(read, 65_536):
            reported += piece
        os.close(read)
        ok = int(reported.split()[-1]) if reported.split() else 20

        sink_to(path)(data(b"after"))
        *lines, last = path.read_bytes().splitlines()

        assert last == b"after"
        assert lines == [b"%d %s" % (n, b"x" * 20_000) for n in range(len(lines))], round_
        assert len(lines) >= ok


@pytest.mark.slow
def test_every_partition_of_a_vertex_has_its_own_file(run, tmp_path):
    def number(datum):
        return Message(b"%d" % json.loads(datum.value)["value"])

    path = str(tmp_path / "{pipeline}" / "{vertex}" / "part-{partition}.txt")
    pipeline = Pipeline("test").source("in", Generator(messages=3_000)).map("number", number)
    run(pipeline.sink("out", File(path=path), partitions=2))

    files = sorted((tmp_path / "test" / "out").iterdir())
    assert [file.name for file in files] == ["part-0.txt", "part-1.txt"]
    lines = [int(line) for file in files for line in file.read_text().split()]
    assert sorted(lines) == list(range(3_000))
