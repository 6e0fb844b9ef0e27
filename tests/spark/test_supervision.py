"""A vertex that fails is restarted, and a message that kills its worker is found."""

from __future__ import annotations

import json
import os
import signal
import traceback

import pytest
from py4j.protocol import Py4JJavaError

from ebbflow import Message, Pipeline, Response
from ebbflow.connectors import Blackhole, Generator, Log
from ebbflow.runtime.loop import with_vertex
from ebbflow.spark.supervisor import explain, find_raised, find_vertex
from tests.spark.runs import Failures
from tests.waiting import until

pytestmark = pytest.mark.slow


def _interrupt():
    raise KeyboardInterrupt


@pytest.mark.guarantee("failures-stay-with-their-message")
@pytest.mark.parametrize(
    ("deadly", "cause"),
    [
        (lambda: os.kill(os.getpid(), signal.SIGSEGV), "signal SIGSEGV"),
        (lambda: os._exit(3), "exit code 3"),
        (_interrupt, "exit code 1"),
    ],
    ids=["segfault", "exit", "KeyboardInterrupt"],
)
def test_a_message_that_kills_its_worker_is_dead_lettered_alone(
    run, journal, server_letters, deadly, cause
):
    def fragile(datum):
        print("working on", datum.id)
        if json.loads(datum.value)["value"] == 321:
            deadly()
        return Message(datum.value)

    def store(data):
        journal.write(*(json.loads(datum.value)["value"] for datum in data))
        return [Response.ok(datum.id) for datum in data]

    pipeline = Pipeline("test").source("in", Generator(messages=1_000))
    summary = run(pipeline.map("fragile", fragile).sink("out", store))

    assert sorted(set(journal.read())) == [n for n in range(1_000) if n != 321]
    assert summary.vertices["fragile"].dead_lettered == 1
    (letter,) = server_letters("test")
    assert letter.reason == "killed its worker"
    assert cause in letter.error


@pytest.mark.guarantee("failures-stay-with-their-message")
def test_a_message_that_kills_its_worker_is_found_even_if_it_forked_a_child(
    run, server_letters, tmp_path
):
    end = tmp_path / "end"

    def forks(datum):
        if json.loads(datum.value)["value"] == 21:
            if os.fork() == 0:
                until(end.exists, 300)
                os._exit(0)
            os._exit(9)
        return Message(datum.value)

    pipeline = Pipeline("test").source("in", Generator(messages=40))
    try:
        summary = run(pipeline.map("m", forks).sink("out", Blackhole()), timeout="240s")
    finally:
        end.touch()

    assert (summary.vertices["out"].done, summary.vertices["m"].dead_lettered) == (39, 1)
    (letter,) = server_letters("test")
    assert (letter.reason, "exit code 9" in letter.error) == ("killed its worker", True)


@pytest.mark.guarantee("failures-stay-with-their-message")
@pytest.mark.parametrize("deadly", [False, True], ids=["without a killer", "next to a killer"])
def test_the_output_of_user_code_affects_no_messages_outcome(run, deadly):
    texts = []

    class Reading(Failures):
        def log(self, entry):
            texts.append(entry.printed.text)

    def prints(datum):
        match json.loads(datum.value)["value"]:
            case 3 if deadly:
                os._exit(3)
            case 5:
                print("x" * 10_000_000)
            case 7:
                print("a lone \ud800")
            case number if number > 30:
                print("y" * 2_000_000)
        return Message(datum.value)

    pipeline = Pipeline("test").source("in", Generator(messages=40))
    summary = run(pipeline.map("m", prints).sink("out", Log()), watcher=Reading())

    assert summary.vertices["out"].done == 40 - deadly
    assert summary.vertices["m"].dead_lettered == deadly
    cut_off = [text for text in texts if text.endswith("more characters cut off)")]
    assert len(cut_off) >= 1
    assert any("a lone \\ud800" in text for text in texts)


@pytest.mark.guarantee("failures-stay-with-their-message")
def test_the_search_for_a_killer_message_opens_user_code_once_for_many_chunks(run, journal):
    class Model:
        def open(self):
            journal.write("open")

        def __call__(self, datum):
            if json.loads(datum.value)["value"] == 5_000:
                os._exit(3)
            return Message(datum.value)

    pipeline = Pipeline("test").source("in", Generator(messages=20_000))
    summary = run(pipeline.map("m", Model).sink("out", Blackhole()))

    assert summary.vertices["out"].done == 19_999
    # Workers, and one child for each half that contained the killer.
    assert len(journal.read()) < 25


@pytest.mark.guarantee("a-run-goes-on")
def test_a_vertex_that_cannot_open_is_retried_while_the_others_continue(run, journal, tmp_path):
    ready = tmp_path / "ready"

    class NeedsTime:
        def open(self):
            if not ready.exists():
                raise ConnectionError("the store is not up")

        def __call__(self, data):
            return [Response.ok(datum.id) for datum in data]

    seen = []

    class Watching(Failures):
        def look(self, status):
            if status["out"].failure and status["first"].counts.done == 100:
                seen.append(status["out"].failure)
                ready.touch()

    pipeline = Pipeline("test").source("in", Generator(messages=100))
    pipeline = pipeline.map("first", lambda datum: Message(datum.value)).sink("out", NeedsTime)
    summary = run(pipeline, watcher=Watching())

    assert seen[0] == "ConnectionError: the store is not up"
    assert summary.vertices["out"].done == 100


@pytest.mark.guarantee("at-least-once")
def test_epochs_follow_each_other_without_losing_or_repeating_anything(run, journal):
    def store(data):
        journal.write(*(json.loads(datum.value)["value"] for datum in data))
        return [Response.ok(datum.id) for datum in data]

    pipeline = Pipeline("test").source("in", Generator(messages=2_000, rpu=500))
    summary = run(pipeline.map("m", lambda d: Message(d.value)).sink("out", store), epoch="0.7s")

    assert sorted(journal.read()) == list(range(2_000))
    assert summary.vertices["out"].read == 2_000


@pytest.mark.guarantee("a-run-goes-on")
def test_epochs_of_a_millisecond_make_progress(run, journal):
    def store(data):
        journal.write(*(json.loads(datum.value)["value"] for datum in data))
        return [Response.ok(datum.id) for datum in data]

    pipeline = Pipeline("test").source("in", Generator(messages=500))
    run(pipeline.map("m", lambda d: Message(d.value)).sink("out", store), epoch="0.001s")

    assert sorted(journal.read()) == list(range(500))


def test_partitions_share_the_work_and_lose_nothing(run, journal):
    def store(data):
        journal.write(*(json.loads(datum.value)["value"] for datum in data))
        return [Response.ok(datum.id) for datum in data]

    pipeline = Pipeline("test").source("in", Generator(messages=9_000, rpu=9_000), partitions=2)
    pipeline = pipeline.map("m", lambda d: Message(d.value), partitions=3).sink("out", store)
    summary = run(pipeline)

    assert sorted(journal.read()) == list(range(9_000))
    assert summary.vertices["m"].done == 9_000


@pytest.fixture
def turns(run, journal):
    """The calls of a map's ``open`` and ``close`` on each worker, after a run."""

    class Counting:
        def open(self):
            journal.write("open")

        def close(self):
            journal.write("close")

        def __call__(self, datum):
            return Message(datum.value)

    def of(messages, epoch):
        pipeline = Pipeline("test").source("in", Generator(messages=messages, rpu=200))
        # Inline with "in", it would be closed whenever it moves to its own task.
        pipeline = pipeline.map("m", Counting, inline=False).sink("out", Blackhole())
        run(pipeline, epoch=epoch)
        by_worker = [path.read_text().split() for path in journal.folder.iterdir()]
        return [" ".join(entries).replace('"', "") for entries in by_worker]

    return of


def test_user_code_is_opened_once_per_worker_and_kept_for_the_next_epochs(turns):
    # A worker that is idle when the run stops keeps its code open until its next run.
    seen = turns(messages=600, epoch="0.5s")
    assert seen
    assert set(seen) <= {"open", "open close"}


def test_user_code_is_closed_when_the_run_stops(turns):
    assert turns(messages=20, epoch="10m") == ["open close"]


WORKER_ERROR = """\
Job aborted: org.apache.spark.api.python.PythonException: An exception was thrown from the worker:
Traceback (most recent call last):
  File "/site-packages/pyspark/worker.py", line 3, in main
    process()
    ^^^^^^^^^
  File "/site-packages/ebbflow/nats/publish.py", line 4, in check_size
    raise MessageTooLarge(size, largest)
%s

\tat org.apache.spark.api.python.BasePythonRunner
"""


@pytest.mark.parametrize(
    ("line", "explanation"),
    [
        ("ebbflow.domain.errors.MessageTooLarge: 9 bytes\nfor: one", "MessageTooLarge: 9 bytes"),
        ("KeyError: 'customer'", "KeyError: 'customer'"),
        ("AssertionError", "AssertionError"),
    ],
)
def test_a_failed_epoch_is_explained_by_the_error_of_the_worker_whatever_its_name(
    line, explanation
):
    error = RuntimeError(WORKER_ERROR % line)
    assert explain(error) == explanation
    assert find_raised(error).kind == explanation.partition(":")[0]


JAVA_ERROR = """\
An error occurred while calling z:org.apache.spark.api.python.PythonRDD.collectAndServe.
: org.apache.spark.SparkException: Job aborted due to stage failure: Task 0 in stage 0.0 failed
\tat org.apache.spark.rdd.RDD.iterator(RDD.scala:338)
%s\
\tat java.base/java.lang.Thread.run(Thread.java:840)
"""


@pytest.mark.parametrize(
    ("cause", "explanation"),
    [
        ("", "SparkException: Job aborted due to stage failure: Task 0 in stage 0.0 failed"),
        (
            "Caused by: java.io.IOException: Cannot run program\n\tat x\n"
            "Caused by: org.apache.spark.SparkException: EOFException occurred while reading\n",
            "SparkException: EOFException occurred while reading",
        ),
    ],
)
def test_a_failed_epoch_is_explained_by_the_jvm_where_no_worker_has_raised(cause, explanation):
    class JavaError(Py4JJavaError):
        def __init__(self):
            pass

        def __str__(self):
            return JAVA_ERROR % cause

    with pytest.raises(Py4JJavaError) as raised:
        raise JavaError
    assert explain(raised.value) == explanation
    assert find_raised(raised.value).where is None


def test_a_failed_epoch_is_attributed_to_the_vertex_that_raised():
    def fail():
        raise KeyError("customer")

    with pytest.raises(KeyError) as raised:
        with_vertex("enrich", fail)
    shown = "".join(traceback.format_exception(raised.value)).rstrip()
    error = RuntimeError(WORKER_ERROR % "\n".join(shown.splitlines()[-2:]))
    assert find_vertex(raised.value) == find_vertex(error) == "enrich"
    assert find_vertex(RuntimeError(WORKER_ERROR % "KeyError: 'customer'")) is None
    assert explain(error) == "KeyError: 'customer'"
