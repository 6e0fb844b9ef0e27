"""Pipelines on the shared Spark session; each run has its own NATS server and state folder."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ebbflow import Datum, Pipeline, Response
from ebbflow.deadletters import DeadLetters
from ebbflow.engine.dead_letter import Letter
from ebbflow.nats.locate import open_link, start_embedded
from ebbflow.spark.run import run_pipeline
from ebbflow.status.model import PipelineStatus
from ebbflow.status.run_report import Summary, Watcher
from ebbflow.streams.logs import LogEntry


@pytest.fixture
def run(spark: Any, tmp_path: Path) -> Callable[..., Summary]:
    """Run a pipeline to its end in this test's state folder."""

    def execute(pipeline: Pipeline, **options: Any) -> Summary:
        options = {"drain": True, "timeout": "240s", "state": tmp_path / "state"} | options
        return run_pipeline(pipeline.spec, **{"watcher": Failures()} | options)

    return execute


class Failures(Watcher):
    """Prints why a vertex was restarted, for the report of a failing test."""

    def line(self, text: str) -> None:
        print(text)

    def log(self, entry: LogEntry) -> None:
        print(entry.with_vertex())

    def look(self, status: PipelineStatus) -> None:
        for view in status.vertices:
            if view.failure:
                print(f"{view.name} was restarted {view.restarts} times: {view.failure}")


class StopWhen(Failures):
    """Ends the run, as Ctrl-C does, as soon as its status meets a condition."""

    def __init__(self, reached: Callable[[PipelineStatus], bool]) -> None:
        self._reached = reached
        self._has_stopped = False

    def look(self, status: PipelineStatus) -> None:
        super().look(status)
        if not self._has_stopped and self._reached(status):
            self._has_stopped = True
            os.kill(os.getpid(), signal.SIGINT)


@pytest.fixture
def server_letters(tmp_path: Path) -> Callable[[str], list[Letter]]:
    """The dead letters of a finished run."""

    def read(pipeline: str) -> list[Letter]:
        with start_embedded(tmp_path / "state") as server, open_link(server) as link:
            return [stored.letter for stored in DeadLetters(link, pipeline).list()]

    return read


class Journal:
    """Lines that user code writes on workers and the test reads, in one file per process."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir()

    def write(self, *entries: Any) -> None:
        """Append entries; they are complete on disk when this returns."""
        import json as encoder
        import os

        lines = "".join(encoder.dumps(entry) + "\n" for entry in entries)
        with open(self.folder / str(os.getpid()), "a", encoding="utf-8") as file:
            file.write(lines)

    def read(self) -> list[Any]:
        """All entries of all writers."""
        texts = (path.read_text(encoding="utf-8") for path in sorted(self.folder.iterdir()))
        return [json.loads(line) for text in texts for line in text.splitlines()]


@pytest.fixture
def journal(tmp_path: Path) -> Journal:
    return Journal(tmp_path / "journal")


@pytest.fixture
def another_journal(tmp_path: Path) -> Journal:
    return Journal(tmp_path / "another-journal")


@pytest.fixture
def store(journal: Journal) -> Callable[[list[Datum]], list[Response]]:
    """A sink that writes the value of each message to the journal."""

    def sink(data: list[Datum]) -> list[Response]:
        journal.write(*(datum.value.decode() for datum in data))
        return [Response.ok(datum.id) for datum in data]

    return sink
