"""A user's own source on a real pipeline: its messages arrive, its acks and nacks are exact."""

from __future__ import annotations

import os
import signal
import time
from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from ebbflow import (
    Backoff,
    Limits,
    Message,
    MonoVertex,
    Nack,
    NackOptions,
    Pipeline,
    Response,
    SourceMessage,
)
from ebbflow.deadletters import DeadLetters
from ebbflow.engine.dead_letter import Letter
from ebbflow.nats.locate import open_link, start_embedded
from ebbflow.spark.run import run_pipeline
from ebbflow.status.run_report import Summary, Watcher
from tests.connectors.user_code.queue import Queue, QueueFile, RedeliveringQueue
from tests.spark.runs import Failures, Journal
from tests.waiting import until

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("spark")]


def at(queue, base=Queue, **attributes):
    """The source class for this test's file; a class of its own, as a user's would be."""
    return type("MyQueue", (base,), {"path": str(queue.path), **attributes})


def is_running(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


class Run:
    """A pipeline that was run once, for several tests to look at: its queue and its sink."""

    def __init__(self, folder: Path) -> None:
        self._state = folder / "state"
        self.queue = QueueFile(folder / "queue.db")
        self.journal = Journal(folder / "journal")
        self.summary: Summary | None = None

    def drain(self, pipeline: Pipeline) -> None:
        options = {"drain": True, "timeout": "240s", "state": self._state}
        self.summary = run_pipeline(pipeline.spec, watcher=Failures(), **options)

    def letters(self) -> list[Letter]:
        with start_embedded(self._state) as server, open_link(server) as link:
            return [stored.letter for stored in DeadLetters(link, "test").list()]

    def reported(self, value: bytes, *columns: str) -> list[tuple[Any, ...]]:
        """The acks and nacks that the source received for a message, in order."""
        query = f"select {','.join(columns)} from reported join messages using (id) where value = ?"
        return self.queue.ask(f"{query} order by at", value)


def nack_thrice(datum):
    if datum.value == b"bad" and datum.deliveries < 4:
        raise Nack(delay="300ms", max_deliveries=7, reason=f"delivery {datum.deliveries}")
    return Message(f"{datum.value.decode()} {datum.deliveries} {datum.nack_reason}".encode())


NACKED_THRICE = {"bad 4 delivery 3", "fine 1 None", "good 1 None"}
MANY = 3_000


@pytest.fixture(scope="module")
def plain(spark: Any, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A source without ``nack``: many messages, and one that the transformer nacks."""
    made = Run(tmp_path_factory.mktemp("plain"))
    journal = made.journal
    made.queue.fill([*(b"%d" % n for n in range(MANY)), b"good", b"bad", b"fine"])

    def some_nacked(datum):
        return Message(datum.value) if datum.value.isdigit() else nack_thrice(datum)

    def look(data):
        for datum in data:
            year = datum.event_time.isoformat()[:4]
            journal.write([datum.value.decode(), datum.id, datum.keys, datum.headers, year])
        return [Response.ok(datum.id) for datum in data]

    source = at(made.queue)
    made.drain(Pipeline("test").source("in", source, transformer=some_nacked).sink("out", look))
    return made


@pytest.mark.guarantee("sources-are-acknowledged-last")
def test_every_message_arrives_once_and_is_acknowledged_once(plain):
    assert plain.summary.ended == "drained"
    values = [value for value, *_ in plain.journal.read()]
    assert sorted(int(value) for value in values if value.isdigit()) == list(range(MANY))
    assert plain.queue.ask("select what, count(*) from reported group by what") == [
        ("ack", MANY + 3)
    ]
    assert plain.queue.ask("select distinct state, delivered from messages") == [("done", 1)]


def test_rows_have_the_sources_keys_headers_event_times_and_ids(plain):
    ((_, message_id, keys, headers, year),) = (row for row in plain.journal.read() if row[0] == "0")
    assert (message_id, keys, headers) == ("in-0-1/in", ["k1"], {"a": "b"})
    assert int(year) >= 2024


@pytest.mark.guarantee("sources-are-acknowledged-last")
def test_a_source_without_nack_is_acknowledged_and_ebbflow_redelivers_the_message(plain):
    values = {value for value, *_ in plain.journal.read() if not value.isdigit()}
    assert values == NACKED_THRICE
    assert plain.reported(b"bad", "what") == [("ack",)]


@pytest.fixture(scope="module")
def redelivering(spark: Any, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A source that takes nacked messages back: each message is nacked in another way."""
    made = Run(tmp_path_factory.mktemp("redelivering"))
    journal = made.journal
    made.queue.fill([b"good", b"bad", b"fine", b"unset", b"never", b"breaks", b"later"])

    def decide(datum):
        first = datum.deliveries == 1
        if datum.value == b"unset" and first:
            return Message.to_nack()
        if datum.value == b"never":
            raise Nack(max_deliveries=2, reason="never")
        if datum.value == b"breaks" and first:
            raise ValueError("no good")
        return nack_thrice(datum)

    def nack_later(data):
        journal.write(*([datum.value.decode(), datum.deliveries] for datum in data))
        return [
            Response.nack(datum.id, NackOptions(delay=50))
            if datum.value.startswith(b"later") and datum.deliveries == 1
            else Response.ok(datum.id)
            for datum in data
        ]

    source = at(made.queue, RedeliveringQueue)
    on_error = Backoff("200ms", steps=2)
    pipeline = Pipeline("test").source("in", source, transformer=decide, on_error=on_error)
    made.drain(pipeline.sink("out", nack_later))
    return made


def expect_nacked_thrice(reported: list[tuple[Any, ...]]) -> None:
    assert [row[:4] for row in reported] == [
        ("nack", 300, 7, "delivery 1"),
        ("nack", 300, 7, "delivery 2"),
        ("nack", 300, 7, "delivery 3"),
        ("ack", None, None, None),
    ]
    assert all(later[4] - earlier[4] >= 0.3 for earlier, later in pairwise(reported))


REPORTED = ("what", "delay", "max_deliveries", "reason", "at")


@pytest.mark.guarantee("sources-are-acknowledged-last")
def test_a_nack_reaches_the_source_with_exactly_its_options(redelivering):
    assert {value for value, _ in redelivering.journal.read()} >= NACKED_THRICE
    expect_nacked_thrice(redelivering.reported(b"bad", *REPORTED))


@pytest.mark.guarantee("sources-are-acknowledged-last")
def test_a_nack_in_a_monovertex_reaches_the_source_with_exactly_its_options(
    run, queue, store, journal
):
    queue.fill([b"good", b"bad", b"fine"])
    run(MonoVertex("test").source(at(queue, RedeliveringQueue)).map(nack_thrice).sink(store))

    assert set(journal.read()) == NACKED_THRICE
    expect_nacked_thrice(
        queue.ask(f"select {','.join(REPORTED)} from reported where id = 2 order by at")
    )


@pytest.mark.guarantee("sources-are-acknowledged-last")
def test_nack_options_that_were_left_out_stay_unset(redelivering):
    first, last = redelivering.reported(b"unset", "what", "delay", "max_deliveries", "reason")
    assert (first, last[0]) == (("nack", None, None, None), "ack")


def test_max_deliveries_is_exact_and_dead_letters_are_acknowledged(redelivering):
    (letter,) = redelivering.letters()
    assert (letter.deliveries, letter.reason) == (3, "never")
    assert redelivering.reported(b"never", "what") == [("nack",), ("nack",), ("ack",)]


def test_an_exception_becomes_a_nack_with_the_delay_of_the_backoff(redelivering):
    first, last = redelivering.reported(b"breaks", "what", "delay", "max_deliveries", "reason")
    assert (first, last[0]) == (("nack", 200, None, "ValueError: no good"), "ack")


def test_nack_options_of_a_sink_do_not_reach_the_source(redelivering):
    calls = [deliveries for value, deliveries in redelivering.journal.read() if "later" in value]
    assert sorted(calls) == [1, 2]
    assert redelivering.reported(b"later", "what") == [("ack",)]


@pytest.mark.long
@pytest.mark.guarantee("sources-are-acknowledged-last")
def test_deliveries_are_counted_across_runs(run, queue, store, journal):
    queue.fill([b"bad"])

    def fourth(datum):
        if datum.deliveries < 4:
            raise Nack(delay="100ms", max_deliveries=5)
        return Message(b"%d" % datum.deliveries)

    class UntilNacked(Watcher):
        def look(self, status):
            if status["in"].counts.redelivered:
                os.kill(os.getpid(), signal.SIGINT)

    source = at(queue, RedeliveringQueue)
    pipeline = Pipeline("test").source("in", source, transformer=fourth).sink("out", store)
    first = run(pipeline, watcher=UntilNacked())
    if first.ended == "stopped":
        run(pipeline)

    assert journal.read() == ["4"]


class KillSourceOnce(Watcher):
    """Kills the process of the source when some messages have arrived."""

    def __init__(self, pid_file, after):
        self.pid_file, self.after, self.killed = pid_file, after, False
        self.failures = []

    def look(self, status):
        if status["in"].failure:
            self.failures.append(status["in"].failure)
        if not self.killed and status["in"].counts.done > self.after:
            os.kill(int(self.pid_file.read_text()), signal.SIGKILL)
            self.killed = True


@pytest.mark.guarantee("sources-are-acknowledged-last")
def test_a_killed_source_process_is_restarted_and_nothing_is_lost(
    run, queue, store, journal, tmp_path
):
    queue.fill(b"%d" % n for n in range(20_000))
    pid_file = tmp_path / "pid"

    def open_and_write_pid(self):
        pid_file.write_text(str(os.getpid()))
        Queue.open(self)

    watcher = KillSourceOnce(pid_file, 2_000)
    source = at(queue, open=open_and_write_pid)
    limits = Limits(read_batch_size=100)
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

    run(Pipeline("test").source("in", Slow).sink("out", store), epoch="1s")

    assert Counter(map(int, journal.read())) == dict.fromkeys(range(400), 1)
    (pid,) = opened.read_text().split()
    assert closed.exists()
    until(lambda: not is_running(pid))


def test_an_exception_in_a_source_is_reported_and_the_call_is_retried(
    run, queue, store, journal, tmp_path
):
    queue.fill([b"1"])
    ready = tmp_path / "ready"
    reported = []

    class Sometimes(Queue):
        path = str(queue.path)

        def read(self, limit, timeout):
            if not ready.exists():
                raise ConnectionError("the queue is not up")
            return super().read(limit, timeout)

    class Watching(Watcher):
        def look(self, status):
            if status["in"].failure:
                reported.append(status["in"].failure)
                ready.touch()

    run(Pipeline("test").source("in", Sometimes).sink("out", store), watcher=Watching())

    assert reported[0] == "read() raised ConnectionError: the queue is not up"
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
def test_an_invalid_source_message_is_rejected_when_it_is_created(fields, problem):
    with pytest.raises((TypeError, ValueError), match=problem):
        SourceMessage(**fields)
