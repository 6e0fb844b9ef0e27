"""A system that is away is nobody's fault: the vertex waits, says so, and goes on by itself."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from ebbflow import Message, Pipeline, Response
from ebbflow.outcome import Counts
from tests.spark.conftest import Failures

pytestmark = pytest.mark.slow

MESSAGES = 400


class System:
    """Away while a file is there. Connections made before an outage stay broken after it."""

    def __init__(self, folder: Path) -> None:
        self._away = folder / "away"
        self._outages = folder / "outages"
        self._outages.touch()

    def go_down(self) -> None:
        self._outages.write_text(self._outages.read_text() + "x")
        self._away.touch()

    def come_up(self) -> None:
        self._away.unlink()

    def connect(self) -> str:
        if self._away.exists():
            raise ConnectionRefusedError("nobody is there")
        return self._outages.read_text()

    def use(self, connection: str) -> None:
        if self._away.exists() or self._outages.read_text() != connection:
            raise ConnectionResetError("the connection is lost")


@pytest.fixture
def system(tmp_path: Path) -> System:
    folder = tmp_path / "system"
    folder.mkdir()
    return System(folder)


class Outage(Failures):
    """Takes the system down once some messages are done, and up again once the vertex waits."""

    def __init__(self, system: System, vertex: str) -> None:
        self._system, self._vertex = system, vertex
        self.waits: list[Any] = []
        self.ended = self.begun = False

    def look(self, views: Any) -> None:
        super().look(views)
        view = views[self._vertex]
        if not self.begun and view.counts.done >= 20:
            self.begun = True
            self._system.go_down()
        elif self.begun and not self.ended and view.waiting:
            self.waits.append(view.waiting)
            if view.waiting.seconds > 1:
                self.ended = True
                self._system.come_up()


class Connected:
    """User code as the guide shows it: connects in open(), uses the connection, lets errors fly."""

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
    return json.loads(datum.value)["data"]["value"]


def storing(journal):
    def store(data):
        journal.write(*([number_of(datum), datum.deliveries] for datum in data))
        return [Response.ok(datum.id) for datum in data]

    return store


def messages() -> Pipeline:
    source = {"messages": MESSAGES, "rpu": 20, "duration": "200ms"}
    return Pipeline("test").source("in", generator=source)


def assert_nobody_was_blamed(counts: Counts) -> None:
    assert (counts.done, counts.dead_lettered) == (MESSAGES, 0)


@pytest.mark.parametrize(
    ("mode", "code"),
    [("unary", Unary), ("unary", Async), ("stream", Stream), ("batch", Batch)]
    + [("columnar", Columnar), ("pandas", Columnar)],
    ids=["unary", "async", "stream", "batch", "columnar", "pandas"],
)
def test_a_map_whose_system_goes_away_waits_and_goes_on(run, journal, system, mode, code):
    watcher = Outage(system, "m")
    pipeline = messages().map("m", partial(code, system), mode=mode)
    summary = run(pipeline.sink("out", storing(journal)), watcher=watcher)

    assert_nobody_was_blamed(summary.vertices["m"])
    assert sorted(journal.read()) == [[number, 1] for number in range(MESSAGES)]
    assert watcher.waits[0].certain
    assert watcher.ended
