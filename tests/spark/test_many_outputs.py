"""One input with very many outputs: full buffers block the writer but not a stop."""

from __future__ import annotations

import time
from collections import Counter

import pyarrow as pa
import pytest

from ebbflow import Limits, Message, Pipeline, Response, Unavailable
from ebbflow.connectors import Generator
from ebbflow.testing.background_run import BackgroundRun, until

pytestmark = pytest.mark.slow

MANY = 30_000
SMALL = Limits(buffer_max_length=2, buffer_usage_limit=100)


def unary(datum):
    return [Message(b"unary") for _ in range(MANY)]


def stream(datum):
    for _ in range(MANY):
        yield Message(b"stream")


def batch(data):
    return {datum.id: [Message(b"batch")] * MANY for datum in data}


def columnar(rows):
    ids = pa.array(rows.column("id").to_pylist() * MANY)
    return pa.RecordBatch.from_pydict({"id": ids, "value": pa.array([b"columnar"] * MANY)})


@pytest.mark.long
def test_all_outputs_of_one_input_fit_through_a_two_frame_buffer_in_every_mode(run, journal):
    def store(data):
        journal.write(*(datum.value.decode() for datum in data))
        return [Response.ok(datum.id) for datum in data]

    pipeline = Pipeline("test", inline=False).source("in", Generator(messages=1))
    modes = [unary, stream, batch, columnar]
    for code in modes:
        pipeline = pipeline.map(code.__name__, code, mode=code.__name__, after="in")
    after = [code.__name__ for code in modes]
    run(pipeline.sink("out", store, after=after, limits=SMALL), epoch="1s")

    assert Counter(journal.read()) == dict.fromkeys(after, MANY)


@pytest.mark.guarantee("a-stop-loses-no-work")
def test_a_stop_interrupts_a_stream_map_that_waits_for_room(run, journal, tmp_path):
    gate = tmp_path / "gate"

    def numbers(datum):
        for number in range(30_000):
            yield Message(str(number).encode())

    def store(data):
        if not gate.exists():
            raise Unavailable("the store")
        journal.write(*(int(datum.value) for datum in data))
        return [Response.ok(datum.id) for datum in data]

    pipeline = Pipeline("test").source("in", Generator(messages=1))
    pipeline = pipeline.map("numbers", numbers, mode="stream").sink("out", store, limits=SMALL)
    live = BackgroundRun(pipeline, tmp_path / "state")
    assert until(lambda: live.status["numbers"].publishing.full > 4, 60)
    began = time.monotonic()
    live.stop()
    assert time.monotonic() - began < 30  # after forty seconds a run gives up on its tasks

    gate.touch()
    run(pipeline)
    assert set(journal.read()) == set(range(30_000))
