"""A system that is down penalises no message: the vertex waits, reports it, and continues."""

from __future__ import annotations

import json
import os
import signal
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from ebbflow import Backoff, Limits, Message, Pipeline, Response, Unavailable
from ebbflow.builders import Breaker, OnUnavailable
from ebbflow.cli.main import app
from ebbflow.connectors import Generator
from ebbflow.domain.outcome import Counts
from tests.spark.runs import Failures

pytestmark = pytest.mark.slow

MESSAGES = 120
# The system goes down at its third use, so that the first call, of whatever size, succeeds.
USES = 3
ATTEMPTS_WHILE_DOWN = 5


class System:
    """Goes down after a few uses, and is up again after a few failed attempts.

    Connections made before the outage stay broken after it.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        for name in ("uses", "attempts while down"):
            (folder / name).touch()

    def _count(self, name: str) -> int:
        """The number of calls so far, including this one."""
        with open(self._folder / name, "a") as file:
            file.write("x")
            return file.tell()

    def _is_down(self) -> bool:
        return (self._folder / "down").exists() and self._count(
            "attempts while down"
        ) <= ATTEMPTS_WHILE_DOWN

    @property
    def was_down(self) -> bool:
        return (self._folder / "attempts while down").stat().st_size > ATTEMPTS_WHILE_DOWN

    def connect(self) -> str:
        if self._is_down():
            raise ConnectionRefusedError("nothing listens there")
        return "old" if not (self._folder / "down").exists() else "new"

    def use(self, connection: str) -> None:
        if self._count("uses") >= USES:
            (self._folder / "down").touch()
        if self._is_down() or ((self._folder / "down").exists() and connection == "old"):
            raise ConnectionResetError("the connection is lost")


@pytest.fixture
def system(tmp_path: Path) -> System:
    folder = tmp_path / "system"
    folder.mkdir()
    return System(folder)


class Watching(Failures):
    """Records what a vertex waits for."""

    def __init__(self, vertex: str) -> None:
        self._vertex = vertex
        self.waits: list[Any] = []

    def look(self, status: Any) -> None:
        super().look(status)
        if (waiting := status[self._vertex].waiting) is not None:
            self.waits.append(waiting)


class Connected:
    """User code as in the guide: connects in open(), uses the connection, lets errors propagate."""

    def __init__(self, system: System) -> None:
        self._system = system

    def open(self) -> None:
        self._connection = self._system.connect()

    def work(self) -> None:
        self._system.use(self._connection)


class Unary(Connected):
    def __call__(self, datum):
        self.work()
        return Message(datum.value)


class Async(Connected):
    async def __call__(self, datum):
        self.work()
        return Message(datum.value)


class Stream(Connected):
    def __call__(self, datum):
        self.work()
        yield Message(datum.value)


class Batch(Connected):
    def __call__(self, data):
        self.work()
        return {datum.id: Message(datum.value) for datum in data}


class Columnar(Connected):
    def __call__(self, batch):
        self.work()
        return batch


class Sink(Connected):
    def __init__(self, system, journal):
        super().__init__(system)
        self._journal = journal

    def __call__(self, data):
        self.work()
        self._journal.write(*(number_of(datum) for datum in data))
        return [Response.ok(datum.id) for datum in data]


def number_of(datum) -> int:
    return json.loads(datum.value)["value"]


def storing(journal):
    def store(data):
        journal.write(*([number_of(datum), datum.deliveries] for datum in data))
        return [Response.ok(datum.id) for datum in data]

    return store


def messages() -> Pipeline:
    source = {"messages": MESSAGES, "rpu": 20, "duration": "200ms"}
    # However much arrives before the first call, there are more calls than the system survives.
    limits = Limits(read_batch_size=20)
    return Pipeline("test", limits=limits).source("in", Generator(**source))


def assert_no_message_was_penalised(counts: Counts) -> None:
    assert (counts.done, counts.dead_lettered) == (MESSAGES, 0)


@pytest.mark.guarantee("outages-blame-no-message")
@pytest.mark.parametrize(
    ("mode", "code"),
    [
        ("unary", Unary),
        ("unary", Async),
        ("stream", Stream),
        ("batch", Batch),
        ("columnar", Columnar),
        ("pandas", Columnar),
    ],
    ids=["unary", "async", "stream", "batch", "columnar", "pandas"],
)
def test_a_map_whose_system_goes_down_waits_and_continues(run, journal, system, mode, code):
    pipeline = messages().map("m", partial(code, system), mode=mode)
    summary = run(pipeline.sink("out", storing(journal)))

    assert_no_message_was_penalised(summary.vertices["m"])
    assert sorted(journal.read()) == [[number, 1] for number in range(MESSAGES)]
    assert system.was_down


@pytest.mark.guarantee("outages-blame-no-message")
@pytest.mark.parametrize("role", ["sink", "fallback", "on_success"])
def test_a_sink_whose_system_goes_down_waits_and_continues(run, journal, system, role):
    sink = partial(Sink, system, journal)

    def request_on_success(data):
        answer = Response.fallback if role == "fallback" else Response.on_success
        return [answer(datum.id) for datum in data]

    pipeline = messages()
    if role == "sink":
        pipeline = pipeline.sink("out", sink)
    else:
        pipeline = pipeline.sink("out", request_on_success, **{role: sink})
    summary = run(pipeline)

    assert summary.vertices["out"].dead_lettered == 0
    assert sorted(journal.read()) == list(range(MESSAGES))
    assert system.was_down


@pytest.mark.guarantee("outages-blame-no-message")
def test_an_ordered_vertex_waits_with_its_current_message(run, journal, system):
    pipeline = messages().map("m", partial(Unary, system), ordered=True)
    summary = run(pipeline.sink("out", storing(journal), ordered=True))

    assert_no_message_was_penalised(summary.vertices["m"])
    assert journal.read() == [[number, 1] for number in range(MESSAGES)]


def test_a_serving_store_that_goes_down_is_waited_for(run, journal, system):
    class Store(Sink):
        def put(self, request, payloads):
            self.work()
            self._journal.write(request)

        def get(self, request):
            """Is not called."""

    pipeline = Pipeline("test", serving_store=partial(Store, system, journal))
    source = {"messages": MESSAGES, "rpu": 20, "duration": "200ms"}
    pipeline = pipeline.source("in", Generator(**source))
    pipeline = pipeline.sink("out", lambda data: [Response.serve(d.id, b"yes") for d in data])
    summary = run(pipeline)

    assert_no_message_was_penalised(summary.vertices["out"])
    assert len(set(journal.read())) == MESSAGES


def test_the_system_that_a_vertex_waits_for_is_shown_until_it_is_up(run, journal, tmp_path):
    ready = tmp_path / "ready"

    def careful(datum):
        if not ready.exists():
            raise Unavailable("the orders database", retry_after="2s")
        return Message(datum.value)

    class UntilSeen(Watching):
        def look(self, status):
            super().look(status)
            if self.waits and self.waits[-1].seconds > 2:
                ready.touch()

    watcher = UntilSeen("m")
    pipeline = Pipeline("test").source("in", Generator(messages=50)).map("m", careful)
    summary = run(pipeline.sink("out", storing(journal)), watcher=watcher)

    assert summary.vertices["m"].done == 50
    assert {deliveries for _, deliveries in journal.read()} == {1}
    assert {(waiting.what, waiting.named) for waiting in watcher.waits} == {
        ("the orders database", True)
    }
    assert max(waiting.next_in for waiting in watcher.waits) > 0.5, "it was asked to wait 2 s"


@pytest.mark.guarantee("back-pressure-loses-nothing")
def test_an_outage_that_fills_the_buffer_ends_although_vertices_share_a_task(
    run, journal, tmp_path
):
    ready = tmp_path / "ready"

    def store(data):
        if not ready.exists():
            raise Unavailable("the store", retry_after="100ms")
        return storing(journal)(data)

    class UntilFull(Failures):
        def look(self, status):
            super().look(status)
            if status["in"].back_pressure is not None:
                ready.touch()

    small = Limits(buffer_max_length=2, buffer_usage_limit=100)
    pipeline = Pipeline("test").source("in", Generator(messages=20_000, msg_size=140))
    summary = run(pipeline.sink("out", store, limits=small), watcher=UntilFull())

    assert summary.ended == "drained"
    assert summary.vertices["out"].done == 20_000
    assert ready.exists(), "the buffer was never full"


@pytest.mark.guarantee("outages-blame-no-message")
def test_a_message_that_fails_while_others_pass_is_penalised_whatever_it_raises(
    run, journal, server_letters
):
    def lookup(datum):
        if number_of(datum) % 10 == 3:
            raise TimeoutError("no such host")
        return Message(datum.value)

    pipeline = Pipeline("test").source("in", Generator(messages=100))
    pipeline = pipeline.map("m", lookup, on_error=Backoff("100ms", steps=2))
    summary = run(pipeline.sink("out", storing(journal)))

    assert (summary.vertices["m"].done, summary.vertices["m"].dead_lettered) == (90, 10)
    letters = server_letters("test")
    assert {letter.error for letter in letters} == {"TimeoutError: no such host"}
    assert {letter.deliveries for letter in letters} == {3}


def test_user_defined_errors_can_mean_that_a_system_is_down(run, journal, system):
    class Gone(Exception):
        pass

    class Own(Unary):
        def __call__(self, datum):
            try:
                self.work()
            except ConnectionError:
                raise Gone from None
            return Message(datum.value)

    own = partial(Own, system)
    pipeline = messages().map("m", own, on_unavailable=OnUnavailable([Gone], interval="50ms"))
    summary = run(pipeline.sink("out", storing(journal)))

    assert_no_message_was_penalised(summary.vertices["m"])
    assert sorted(journal.read()) == [[number, 1] for number in range(MESSAGES)]


@pytest.mark.guarantee("outages-blame-no-message")
def test_a_bug_that_hits_every_message_stops_the_vertex_without_dead_letters(
    run, journal, server_letters, tmp_path
):
    fixed = tmp_path / "fixed"
    seen = []

    def buggy(datum):
        if not fixed.exists():
            raise KeyError("customer")
        return Message(datum.value)

    class UntilSeen(Failures):
        def look(self, status):
            if (waiting := status["m"].waiting) and waiting.seconds > 2:
                seen.append(waiting)
                fixed.touch()

    pipeline = Pipeline("test").source("in", Generator(messages=300))
    pipeline = pipeline.map("m", buggy, on_error=Backoff("10ms", steps=3))
    summary = run(pipeline.sink("out", storing(journal)), watcher=UntilSeen())

    assert (seen[0].certain, seen[0].what) == (False, "KeyError: 'customer'")
    assert (summary.vertices["m"].done, summary.vertices["m"].dead_lettered) == (300, 0)
    assert server_letters("test") == []


@pytest.mark.guarantee("outages-blame-no-message")
def test_a_flood_of_dead_letters_stops_the_vertex_until_it_is_resumed(
    run, journal, server_letters, tmp_path
):
    fixed = tmp_path / "fixed"
    seen, outputs = [], []

    def mostly_buggy(datum):
        if not fixed.exists() and number_of(datum) % 10:
            raise KeyError("customer")
        return Message(datum.value)

    class Resuming(Failures):
        def look(self, status):
            if status["m"].halted and not seen:
                seen.append(status["m"].halted)
                fixed.touch()
                args = ["resume", "test", "m", "--state", str(tmp_path / "state")]
                outputs.append(CliRunner().invoke(app, args).output)

    pipeline = Pipeline("test").source("in", Generator(messages=1_000))
    policy = Backoff("10ms", steps=1)
    limit = Breaker(share=0.2, window=100)
    pipeline = pipeline.map("m", mostly_buggy, on_error=policy, breaker=limit)
    summary = run(pipeline.sink("out", storing(journal)), watcher=Resuming())

    assert seen == [
        "20 of the last 100 messages became dead letters, the last one because of: "
        "KeyError: 'customer'"
    ]
    assert outputs == ["Resumed: m.\n"]
    assert (summary.vertices["m"].done, summary.vertices["m"].dead_lettered) == (980, 20)
    assert len(server_letters("test")) == 20


def test_a_new_run_resumes_halted_vertices(run, journal, tmp_path):
    fixed = tmp_path / "fixed"

    def buggy(datum):
        if not fixed.exists() and number_of(datum) % 3:
            raise KeyError("customer")
        return Message(datum.value)

    class Stopping(Failures):
        halted = 0

        def look(self, status):
            if status["m"].halted:
                fixed.touch()
                self.halted += 1
            if self.halted > 5:  # the bug is fixed for some seconds, and the vertex stays halted
                os.kill(os.getpid(), signal.SIGINT)

    pipeline = Pipeline("test").source("in", Generator(messages=500))
    limit = Breaker(share=0.1, window=100)
    pipeline = pipeline.map("m", buggy, on_error=Backoff("1s", steps=0), breaker=limit)
    pipeline = pipeline.sink("out", storing(journal))
    stopped = run(pipeline, watcher=Stopping())
    assert stopped.ended == "stopped"
    assert stopped.vertices["m"].dead_lettered == 10
    finished = run(pipeline)
    assert finished.totals["m"].done == 490
