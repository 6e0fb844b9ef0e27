"""In every mode, each message that kills its worker is found individually.

Its neighbours in the same call of user code are processed in the same run.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal

import pytest

from ebbflow import Backoff, Message, MonoVertex, Pipeline, Response, Unavailable
from ebbflow.connectors import Blackhole, Generator
from tests.spark.runs import Failures

pytestmark = pytest.mark.slow

KILLERS = {33, 34, 77}
COUNT = 100


def touch(value):
    """Ends the process on a bad message."""
    number = json.loads(value)["value"]
    if number == 33:
        os._exit(3)
    if number in KILLERS:  # SIGKILL as from the kernel when memory runs out
        os.kill(os.getpid(), signal.SIGSEGV if number == 34 else signal.SIGKILL)


def batch(data):
    for datum in data:
        touch(datum.value)
    return {datum.id: [Message(datum.value)] for datum in data}


def columnar(rows):
    for value in rows.column("value").to_pylist():
        touch(value)
    return rows


def pandas(rows):
    for value in rows["value"]:
        touch(value)
    return rows


async def unary(datum):
    await asyncio.sleep(0.001)
    touch(datum.value)
    return Message(datum.value)


def stream(datum):
    touch(datum.value)
    yield Message(datum.value)


@pytest.fixture
def store(journal):
    def sink(data):
        journal.write(*(json.loads(datum.value)["value"] for datum in data))
        return [Response.ok(datum.id) for datum in data]

    return sink


@pytest.mark.guarantee("failures-stay-with-their-message")
@pytest.mark.parametrize("code", [batch, columnar, pandas, unary, stream], ids=lambda f: f.__name__)
def test_each_message_that_kills_its_worker_is_found_and_its_neighbours_are_processed(
    run, journal, server_letters, store, code
):
    pipeline = Pipeline("test").source("in", Generator(messages=COUNT, rpu=COUNT))
    pipeline = pipeline.map("fragile", code, mode=code.__name__)
    summary = run(pipeline.sink("out", store))

    assert set(journal.read()) == set(range(COUNT)) - KILLERS
    assert summary.vertices["fragile"].done == COUNT - len(KILLERS)
    assert found(server_letters("test")) == KILLERS


@pytest.mark.guarantee("failures-stay-with-their-message")
def test_messages_that_kill_the_map_or_the_sink_of_a_monovertex_are_found(
    run, journal, server_letters, store
):
    def fragile(datum):
        if json.loads(datum.value)["value"] != 77:
            touch(datum.value)
        return Message(datum.value)

    def storing(data):
        for datum in data:
            touch(datum.value)
        return store(data)

    source = MonoVertex("test").source(Generator(messages=COUNT, rpu=COUNT))
    summary = run(source.map(fragile).sink(storing))

    assert set(journal.read()) == set(range(COUNT)) - KILLERS
    assert summary.vertices["test"].dead_lettered == len(KILLERS)
    assert found(server_letters("test")) == KILLERS


@pytest.mark.guarantee("failures-stay-with-their-message")
def test_a_message_whose_child_process_was_killed_externally_is_retried_once(
    run, journal, server_letters, store, tmp_path
):
    kills = tmp_path / "kills"

    def killed_twice(datum):
        kills.open("a").write(".")
        if (
            len(kills.read_text()) <= 2
        ):  # the worker, and then the child that handles only this message
            os.kill(os.getpid(), signal.SIGKILL)
        return Message(datum.value)

    pipeline = Pipeline("test").source("in", Generator(messages=1)).map("fragile", killed_twice)
    run(pipeline.sink("out", store))

    assert set(journal.read()) == {0}
    assert not list(server_letters("test"))
    assert len(kills.read_text()) == 3


@pytest.mark.guarantee("failures-stay-with-their-message")
def test_killer_messages_in_consecutive_chunks_are_all_found(
    run, journal, server_letters, store, tmp_path
):
    killers = {4, 5, 6}
    gate = tmp_path / "gate"

    class Fragile:
        def open(self):
            if not gate.exists():
                raise Unavailable("whatever it needs")

        def __call__(self, datum):
            if json.loads(datum.value)["value"] in killers:
                os._exit(3)
            return Message(datum.value)

    class AllAreThere(Failures):
        def look(self, status):
            super().look(status)
            if status["in"].counts.done == 10:
                gate.touch()

    # One message a frame, and an ordered vertex takes a frame at a time.
    slowly = {"messages": 10, "rpu": 1, "duration": "200ms"}
    pipeline = Pipeline("test").source("in", Generator(**slowly))
    pipeline = pipeline.map("fragile", Fragile, ordered=True).sink("out", store)
    run(pipeline, watcher=AllAreThere(), timeout="240s")

    assert set(journal.read()) == set(range(10)) - killers
    assert found(server_letters("test")) == killers


def test_a_message_that_needs_too_much_memory_fails_alone(run, server_letters):
    def greedy(datum):
        return Message(bytes(1 << 50 if json.loads(datum.value)["value"] == 3 else 1))

    pipeline = Pipeline("test").source("in", Generator(messages=20))
    pipeline = pipeline.map("greedy", greedy, on_error=Backoff("1s", steps=0))
    summary = run(pipeline.sink("out", Blackhole()))

    assert summary.vertices["out"].done == 19
    assert [letter.reason for letter in server_letters("test")] == ["MemoryError"]


def found(letters):
    """The numbers of the dead letters, each of which names the cause."""
    assert {letter.reason for letter in letters} == {"killed its worker"}
    assert len(letters) == len(KILLERS)
    return {json.loads(letter.value)["value"] for letter in letters}
