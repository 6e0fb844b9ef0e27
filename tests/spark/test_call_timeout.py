"""Calls that do not return are ended after ``limits.callTimeout``, in every mode."""

from __future__ import annotations

import asyncio
import ctypes
import json
import re
import threading
import time
from functools import partial

import pytest

from ebbflow import Backoff, Limits, Message, Pipeline, Response
from ebbflow.connectors import Blackhole, Generator, Spark
from ebbflow.domain.errors import CallTimeout
from ebbflow.spark.batch.query import watch_call
from tests.spark.runs import Failures
from tests.waiting import until

pytestmark = pytest.mark.slow

LIMITS = Limits(call_timeout="1s")
ONCE = Backoff("100ms", steps=1)
MESSAGES, BAD = 40, 17


def sleeps():
    time.sleep(10**6)


def spins():
    while True:
        pass


def matches():
    re.match(r"(a+)+$", "a" * 60 + "b")


def is_bad(value):
    return json.loads(value)["value"] == BAD


def a_map(hang):
    def call(datum):
        if is_bad(datum.value):
            hang()
        return Message(datum.value)

    return call


def generates(datum):
    if is_bad(datum.value):
        spins()
    yield Message(datum.value)


def batch(data):
    if any(is_bad(datum.value) for datum in data):
        sleeps()
    return {datum.id: Message(datum.value) for datum in data}


def columnar(rows):
    if any(is_bad(value) for value in rows.column("value").to_pylist()):
        spins()
    return rows.select(["id", "value"])


def pandas(rows):
    if any(is_bad(value) for value in rows["value"]):
        matches()
    return rows[["id", "value"]]


async def waits(datum):
    if is_bad(datum.value):
        await asyncio.sleep(10**6)
    return Message(datum.value)


async def blocks(datum):
    await asyncio.sleep(0)
    if is_bad(datum.value):
        sleeps()
    return Message(datum.value)


async def streams(datum):
    yield Message(datum.value)
    if is_bad(datum.value):
        await asyncio.sleep(10**6)


MAPS = {
    "sleeps": (a_map(sleeps), "unary"),
    "generates": (generates, "stream"),
    "batch": (batch, "batch"),
    "columnar": (columnar, "columnar"),
    "pandas": (pandas, "pandas"),
    "waits": (waits, "unary"),
    "blocks": (blocks, "unary"),
    "streams": (streams, "stream"),
}


@pytest.mark.guarantee("failures-stay-with-their-message")
def test_a_map_that_hangs_on_one_message_is_ended_in_every_mode(run, server_letters):
    pipeline = Pipeline("test").source("in", Generator(messages=MESSAGES))
    for name, (code, mode) in MAPS.items():
        pipeline = pipeline.map(name, code, mode=mode, limits=LIMITS, on_error=ONCE, after="in")
    summary = run(pipeline.sink("out", Blackhole(), after=list(MAPS)))

    for name in MAPS:
        counts = summary.vertices[name]
        assert (counts.done, counts.dead_lettered) == (MESSAGES - 1, 1), name
    letters = {letter.vertex: letter for letter in server_letters("test")}
    assert letters.keys() == MAPS.keys()
    for name, letter in letters.items():
        assert json.loads(letter.value)["value"] == BAD, name
        assert "CallTimeout: the call did not return within callTimeout, 1 s" in letter.error, name


def answers(answer, hang=lambda: None):
    def sink(data):
        if any(is_bad(datum.value) for datum in data):
            hang()
        return [answer(datum.id) for datum in data]

    return sink


@pytest.mark.guarantee("failures-stay-with-their-message")
def test_sinks_and_transformers_that_hang_on_one_message_are_ended(run, server_letters):
    options = {"limits": LIMITS, "on_error": ONCE}
    made = Generator(messages=MESSAGES)
    hangs = answers(Response.ok, sleeps)
    pipeline = Pipeline("test").source("in", made)
    pipeline = pipeline.sink("plain", hangs, after="in", **options)
    falls, succeeds = answers(Response.fallback), answers(Response.on_success)
    pipeline = pipeline.sink("falls", falls, fallback=hangs, after="in", **options)
    pipeline = pipeline.sink("succeeds", succeeds, on_success=hangs, after="in", **options)
    pipeline = pipeline.source("changes", made, transformer=a_map(spins), **options)
    summary = run(pipeline.sink("out", Blackhole(), after=["in", "changes"]))

    letters = {letter.vertex: letter for letter in server_letters("test")}
    assert letters.keys() == {"plain", "falls", "succeeds", "changes"}
    for name, letter in letters.items():
        assert json.loads(letter.value)["value"] == BAD, name
        assert "CallTimeout" in letter.error, name
        assert summary.vertices[name].dead_lettered == 1, name


@pytest.mark.guarantee("failures-stay-with-their-message")
@pytest.mark.parametrize("library", ["CDLL", "PyDLL"], ids=["without", "with the interpreter"])
def test_c_code_that_never_returns_is_ended_with_its_worker(run, server_letters, library):
    def locks(datum):
        if is_bad(datum.value):
            mutex = ctypes.create_string_buffer(64)
            c = getattr(ctypes, library)(None)
            c.pthread_mutex_lock(mutex)
            c.pthread_mutex_lock(mutex)
        return Message(datum.value)

    pipeline = Pipeline("test").source("in", Generator(messages=MESSAGES))
    pipeline = pipeline.map(
        "m", locks, limits=Limits(call_timeout="500ms"), on_error=Backoff("1s", steps=0)
    )
    summary = run(pipeline.sink("out", Blackhole()))

    assert summary.vertices["out"].done == MESSAGES - 1
    (letter,) = server_letters("test")
    assert json.loads(letter.value)["value"] == BAD
    assert "CallTimeout" in letter.error


NUMBER = "CAST(get_json_object(CAST(value AS STRING), '$.value') AS INT)"
SLEEPS = f"reflect('java.lang.Thread', 'sleep', CAST(IF({NUMBER} = 1, 600000, 0) AS BIGINT))"


def frame(messages):
    from pyspark.sql import functions as F

    def hang(value):
        if json.loads(value)["value"] == 1:
            sleeps()
        return bytes(value)

    return messages.select("id", F.udf(hang, "binary")("value").alias("value"))


@pytest.mark.guarantee("failures-stay-with-their-message")
def test_queries_and_spark_sinks_that_hang_on_one_message_are_cancelled(
    run, server_letters, tmp_path
):
    # Long enough for a new worker on a busy machine.
    options = {"limits": Limits(call_timeout="8s"), "on_error": ONCE, "after": "in"}
    made = {"format": "json", "options": {"path": str(tmp_path / "made")}}
    sql = f"SELECT id, value, {SLEEPS} AS tags FROM messages"
    pipeline = Pipeline("test").source("in", Generator(messages=2))
    pipeline = pipeline.map("frame", dataframe=frame, **options)
    pipeline = pipeline.map("query", sql=sql, **options)
    pipeline = pipeline.sink("sink", Spark(**made | {"columns": {"a": SLEEPS}}), **options)
    summary = run(pipeline.sink("out", Blackhole(), after=["frame", "query"]))

    letters = {letter.vertex: letter for letter in server_letters("test")}
    assert letters.keys() == {"frame", "query", "sink"}
    for name, letter in letters.items():
        assert json.loads(letter.value)["value"] == 1, name
        assert "CallTimeout: the call did not return within callTimeout, 8 s" in letter.error, name
        counts = summary.vertices[name]
        assert (counts.done, counts.dead_lettered) == (1, 1), name


class Jobs:
    """The tags of Spark's jobs; ``cancelled`` is set when a tag is cancelled."""

    def __init__(self):
        self.tags, self.cancelled = [], threading.Event()

    def addJobTag(self, tag):
        self.tags.append(tag)

    def removeJobTag(self, tag):
        pass

    def cancelJobsWithTag(self, tag):
        assert tag == self.tags[-1]
        self.cancelled.set()


def test_a_driver_function_that_returns_too_late_fails_and_is_shown_meanwhile():
    jobs, shown = Jobs(), []
    attempt = partial(watch_call, jobs, "test", 1.2, shown.append)

    def returns_late():
        with attempt() as call:
            jobs.cancelled.wait(120)
            call.check_time()

    with pytest.raises(CallTimeout):
        returns_late()
    assert shown[0] >= 1
    assert shown[-1] is None
    with pytest.raises(KeyError), attempt():
        raise KeyError("an error within its time is its own")
    assert len(set(jobs.tags)) == 2


@pytest.mark.guarantee("failures-stay-with-their-message")
def test_a_long_call_is_shown_while_it_lasts(run, tmp_path):
    seen = tmp_path / "seen"
    shown = []

    class Watching(Failures):
        def look(self, status):
            if status["m"].in_call is not None:
                shown.append(status["m"].in_call)
                seen.touch()
            elif shown:
                shown.append(None)

    def long(datum):
        if is_bad(datum.value):
            until(seen.exists, 300)
        return Message(datum.value)

    pipeline = Pipeline("test").source("in", Generator(messages=MESSAGES))
    run(pipeline.map("m", long).sink("out", Blackhole()), watcher=Watching())

    assert shown[0] >= 5
