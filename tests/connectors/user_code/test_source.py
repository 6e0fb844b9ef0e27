"""A user's own source on a real pipeline: what it gives arrives, what it is told is exact."""

from __future__ import annotations

import os
import signal
import time
from collections import Counter
from itertools import pairwise
from pathlib import Path

import pytest

from ebbflow import Message, MonoVertex, Nack, NackOptions, Pipeline, Response, SourceMessage
from ebbflow.runtime.run_report import Silent
from tests.connectors.user_code.queue import Queue, RedeliveringQueue

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("spark")]


def at(queue, base=Queue, **attributes):
    """The source class for this test's file; a class of its own, as a user's would be."""
    return type("MyQueue", (base,), {"path": str(queue.path), **attributes})


def is_running(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


@pytest.mark.guarantee("sources-are-acknowledged-last")
def test_every_message_arrives_once_and_is_acknowledged_once(run, queue, store, journal):
    queue.fill(b"%d" % n for n in range(3_000))

    summary = run(Pipeline("test").source("in", at(queue)).sink("out", store))

    assert summary.ended == "drained"
    assert sorted(map(int, journal.read())) == list(range(3_000))
    assert queue.ask("select count(*) from told where what = 'ack'") == [(3_000,)]
    assert queue.ask("select distinct state, given from messages") == [("done", 1)]


def test_rows_have_the_sources_keys_headers_event_times_and_ids(run, queue, journal):
    queue.fill([b"x"])

    def look(data):
        for datum in data:
            journal.write([datum.id, datum.keys, datum.headers, datum.event_time.isoformat()[:4]])
        return [Response.ok(datum.id) for datum in data]

    run(Pipeline("test").source("in", at(queue)).sink("out", look))

    ((message_id, keys, headers, year),) = journal.read()
    assert (message_id, keys, headers) == ("in-0-1", ["k1"], {"a": "b"})
    assert int(year) >= 2024


def nack_thrice(datum):
    if datum.value == b"bad" and datum.deliveries < 4:
        raise Nack(delay="300ms", max_deliveries=7, reason=f"delivery {datum.deliveries}")
    return Message(f"{datum.value.decode()} {datum.deliveries} {datum.nack_reason}".encode())


@pytest.mark.guarantee("sources-are-acknowledged-last")
@pytest.mark.parametrize("form", ["pipeline", "monovertex"])
def test_a_nack_goes_to_the_source_with_exactly_its_options(run, queue, store, journal, form):
    queue.fill([b"good", b"bad", b"fine"])
    source = at(queue, RedeliveringQueue)
    if form == "pipeline":
        run(Pipeline("test").source("in", source, transformer=nack_thrice).sink("out", store))
    else:
        run(MonoVertex("test").source(source).map(nack_thrice).sink(store))

    assert sorted(journal.read()) == ["bad 4 delivery 3", "fine 1 None", "good 1 None"]
    told = queue.ask("select what, delay, max_deliveries, reason from told where id = 2")
    assert told == [
        ("nack", 300, 7, "delivery 1"),
        ("nack", 300, 7, "delivery 2"),
        ("nack", 300, 7, "delivery 3"),
        ("ack", None, None, None),
    ]
    times = [row[0] for row in queue.ask("select at from told where id = 2 order by at")]
    assert all(later - earlier >= 0.3 for earlier, later in pairwise(times))


@pytest.mark.guarantee("sources-are-acknowledged-last")
def test_options_that_were_not_given_stay_unset(run, queue, store):
    queue.fill([b"bad"])

    def once(datum):
        return Message.to_nack() if datum.deliveries == 1 else Message(datum.value)

    run(
        Pipeline("test")
        .source("in", at(queue, RedeliveringQueue), transformer=once)
        .sink("out", store)
    )

    asked = "select delay, max_deliveries, reason from told where what = 'nack'"
    assert queue.ask(asked) == [(None, None, None)]


@pytest.mark.guarantee("sources-are-acknowledged-last")
def test_a_source_without_nack_is_acknowledged_and_the_message_comes_from_ebbflow(
    run, queue, store, journal
):
    queue.fill([b"good", b"bad", b"fine"])

    run(Pipeline("test").source("in", at(queue), transformer=nack_thrice).sink("out", store))

    assert sorted(journal.read()) == ["bad 4 delivery 3", "fine 1 None", "good 1 None"]
    assert queue.ask("select what, count(*) from told group by what") == [("ack", 3)]


def test_max_deliveries_is_exact_and_the_dead_are_acknowledged(run, queue, store, server_letters):
    queue.fill([b"good", b"bad"])

    def refuse(datum):
        if datum.value == b"bad":
            raise Nack(max_deliveries=2, reason="never")
        return Message(datum.value)

    source = at(queue, RedeliveringQueue)
    run(Pipeline("test").source("in", source, transformer=refuse).sink("out", store))

    (letter,) = server_letters("test")
    assert (letter.deliveries, letter.reason) == (3, "never")
    told = queue.ask("select what from told where id = 2")
    assert told == [("nack",), ("nack",), ("ack",)]


@pytest.mark.guarantee("sources-are-acknowledged-last")
def test_deliveries_are_counted_across_runs(run, queue, store, journal):
    queue.fill([b"bad"])

    def fourth(datum):
        if datum.deliveries < 4:
            raise Nack(delay=100, max_deliveries=5)
        return Message(b"%d" % datum.deliveries)

    class UntilNacked(Silent):
        def look(self, views):
            if views["in"].counts.redelivered:
                os.kill(os.getpid(), signal.SIGINT)

    source = at(queue, RedeliveringQueue)
    pipeline = Pipeline("test").source("in", source, transformer=fourth).sink("out", store)
    first = run(pipeline, watcher=UntilNacked())
    if first.ended == "stopped":
        run(pipeline)

    assert journal.read() == ["4"]


def test_an_exception_is_a_nack_with_the_wait_of_the_back_off(run, queue, store, journal):
    queue.fill([b"bad"])

    def breaks(datum):
        if datum.deliveries == 1:
            raise ValueError("no good")
        return Message(datum.value)

    pipeline = Pipeline("test").source(
        "in",
        at(queue, RedeliveringQueue),
        transformer=breaks,
        on_error={"interval": "200ms", "steps": 2},
    )
    run(pipeline.sink("out", store))

    assert journal.read() == ["bad"]
    asked = "select delay, max_deliveries, reason from told where what = 'nack'"
    assert queue.ask(asked) == [(200, None, "ValueError: no good")]


class KillSourceOnce(Silent):
    """Kills the process of the source when some messages have arrived."""

    def __init__(self, pid_file, after):
        self.pid_file, self.after, self.killed = pid_file, after, False
        self.failures = []

    def look(self, views):
        if views["in"].failure:
            self.failures.append(views["in"].failure)
        if not self.killed and views["in"].counts.done > self.after:
            os.kill(int(self.pid_file.read_text()), signal.SIGKILL)
            self.killed = True


@pytest.mark.guarantee("sources-are-acknowledged-last")
def test_a_killed_source_process_is_started_again_and_nothing_is_lost(
    run, queue, store, journal, tmp_path
):
    queue.fill(b"%d" % n for n in range(20_000))
    pid_file = tmp_path / "pid"

    def open_and_tell(self):
        pid_file.write_text(str(os.getpid()))
        Queue.open(self)

    watcher = KillSourceOnce(pid_file, 2_000)
    source = at(queue, open=open_and_tell)
    limits = {"read_batch_size": 100}
    run(Pipeline("test").source("in", source, limits=limits).sink("out", store), watcher=watcher)

    assert watcher.killed
    assert "its process has ended" in watcher.failures[0]
    assert {int(text) for text in journal.read()} == set(range(20_000))


def test_one_process_serves_all_epochs_and_ends_with_the_run(run, queue, store, journal, tmp_path):
    queue.fill(b"%d" % n for n in range(400))
    opened, closed = tmp_path / "opened", tmp_path / "closed"

    class Slow(Queue):
        path = str(queue.path)

        def open(self):
            with open(opened, "a") as file:
                print(os.getpid(), file=file)
            super().open()

        def read(self, limit, timeout):
            time.sleep(0.02)
            return super().read(2, timeout)

        def close(self):
            closed.touch()

    run(Pipeline("test").source("in", Slow).sink("out", store), epoch=1.0)

    assert Counter(map(int, journal.read())) == dict.fromkeys(range(400), 1)
    (pid,) = opened.read_text().split()
    assert closed.exists()
    deadline = time.monotonic() + 10
    while is_running(pid):
        assert time.monotonic() < deadline, "the source's process is still there"
        time.sleep(0.05)


def test_what_raises_in_a_source_is_told_and_tried_again(run, queue, store, journal, tmp_path):
    queue.fill([b"1"])
    ready = tmp_path / "ready"
    told = []

    class Sometimes(Queue):
        path = str(queue.path)

        def read(self, limit, timeout):
            if not ready.exists():
                raise ConnectionError("the queue is not up")
            return super().read(limit, timeout)

    class Watching(Silent):
        def look(self, views):
            if views["in"].failure:
                told.append(views["in"].failure)
                ready.touch()

    run(Pipeline("test").source("in", Sometimes).sink("out", store), watcher=Watching())

    assert told[0] == "read() raised ConnectionError: the queue is not up"
    assert journal.read() == ["1"]


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"value": "text", "offset": b"1"}, "value must be bytes, not str"),
        ({"value": b"", "offset": 1}, "offset must be bytes, not int"),
        ({"value": b"", "offset": b""}, "offset must have 1 to 4096 bytes, not 0"),
        ({"value": b"", "offset": b"1", "keys": "k"}, "keys must be a sequence of texts"),
    ],
)
def test_a_message_that_cannot_be_one_is_refused_when_it_is_made(fields, problem):
    with pytest.raises((TypeError, ValueError), match=problem):
        SourceMessage(**fields)


def test_nack_options_of_a_sink_do_not_reach_the_source(run, queue, journal):
    queue.fill([b"1"])

    def later(data):
        journal.write(*(datum.deliveries for datum in data))
        return [
            Response.nack(d.id, NackOptions(delay=50)) if d.deliveries == 1 else Response.ok(d.id)
            for d in data
        ]

    run(Pipeline("test").source("in", at(queue, RedeliveringQueue)).sink("out", later))

    assert sorted(journal.read()) == [1, 2]
    assert queue.ask("select what from told") == [("ack",)]
