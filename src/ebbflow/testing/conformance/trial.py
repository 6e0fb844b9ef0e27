"""The base of trials of sources and sinks: stages, runs, and checks for leftovers.

Leftovers are processes, threads and sockets that were not there before the pipeline ran. Processes
are found by the name of their pipeline, which a vertex's task puts into its environment and its
child processes inherit.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from types import TracebackType
from typing import Generic, Self, TypeVar

import psutil

from ebbflow.builders import Pipeline
from ebbflow.deadletters import DeadLetters
from ebbflow.domain.durations import Duration, to_seconds
from ebbflow.domain.host import command_of
from ebbflow.engine.dead_letter import Letter
from ebbflow.nats.locate import open_link_to_pipeline
from ebbflow.status.model import VertexStatus
from ebbflow.status.run_report import Summary
from ebbflow.testing.background_run import BackgroundRun, local_spark
from ebbflow.testing.conformance.rules import UnderTest
from ebbflow.testing.conformance.samples import text_of


def processes_of(pipeline: str) -> list[int]:
    """Returns the processes that the tasks of a pipeline started, with their descendants."""
    processes = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            if process.environ().get(_PIPELINE) == pipeline and process.pid != os.getpid():
                processes.append(process.pid)
    return processes


def listening_ports() -> set[int]:
    """Returns the TCP ports on which this process listens."""
    connections = psutil.Process().net_connections("tcp")
    return {each.laddr.port for each in connections if each.status == psutil.CONN_LISTEN}


@dataclass(frozen=True)
class Before:
    """The threads and ports that this process had before a pipeline ran."""

    threads: frozenset[int]
    ports: frozenset[int]

    @classmethod
    def now(cls) -> Before:
        """Returns the current threads and ports."""
        idents = frozenset(
            thread.ident for thread in threading.enumerate() if thread.ident is not None
        )
        return cls(idents, frozenset(listening_ports()))

    def left_by(self, pipeline: str, more: Callable[[], Sequence[str]], wait: float) -> list[str]:
        """Returns what is new since then and still there after ``wait`` seconds."""
        deadline = time.monotonic() + wait
        while (left := [*self._left(pipeline), *more()]) and time.monotonic() < deadline:
            time.sleep(0.05)
        return left

    def _left(self, pipeline: str) -> list[str]:
        threads = [thread for thread in threading.enumerate() if thread.ident not in self.threads]
        return [
            *(
                f"process {pid}: {' '.join(command_of(pid)) or 'has just ended'}"
                for pid in processes_of(pipeline)
            ),
            *(f"thread {thread.name}" for thread in threads),
            *(f"port {port} is listened on" for port in listening_ports() - self.ports),
        ]


_PIPELINE = "NUMAFLOW_PIPELINE_NAME"
_GONE_WITHIN = 10.0
STARTED_WITHIN = 60.0
"""Seconds until a started pipeline has processed its first message."""


T = TypeVar("T")
Tested = TypeVar("Tested", bound=UnderTest)


class TrialRuns(Generic[Tested]):
    """Tests a connector, with one run of its pipeline after another."""

    def __init__(self, under_test: Tested, state: Path, patience: Duration) -> None:
        self.under_test = under_test
        self.state = Path(state)
        self.patience = to_seconds(patience)
        self.name = f"trial-{secrets.token_hex(4)}"
        self.left: list[str] = []
        self.summary: Summary | None = None
        self._stage = 0
        self._troubles: list[str] = []
        self._live: BackgroundRun | None = None
        self._never_ran: Exception | None = None
        self._stack = ExitStack()

    def stages(self) -> Sequence[Callable[[], None]]:
        """Returns the work of each stage."""
        raise NotImplementedError

    def release(self) -> None:
        """Lets a blocked pipeline continue."""

    def __enter__(self) -> Self:
        self.enter(local_spark())
        self._before = Before.now()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        with self._stack:
            self.release()
            self.stop()

    def reach(self, stage: IntEnum) -> None:
        """Runs the stages up to this one that have not run yet.

        If the pipeline could not be started, every rule raises that error.
        """
        if self._never_ran is not None:
            raise self._never_ran
        while self._stage < stage:
            self._stage += 1
            try:
                self.stages()[self._stage - 1]()
            except Exception as error:
                if self._live is None:
                    self._never_ran = error
                raise

    def start(self, pipeline: Pipeline) -> None:
        """Starts the pipeline."""
        self._live = BackgroundRun(pipeline, self.state, self.on_line)

    def on_line(self, line: str) -> None:
        """Receives a line that the run printed."""

    def stop(self) -> None:
        """Stops the pipeline, if it runs, and records what it leaves behind."""
        if self._live is not None:
            live, self._live = self._live, None
            self._troubles += live.failures
            self.summary = live.stop()
            self.left += self._before.left_by(self.name, self.under_test.left_behind, _GONE_WITHIN)

    def view(self, vertex: str) -> VertexStatus | None:
        """Returns the latest status of a vertex, if the pipeline runs."""
        return self._live.status.vertex(vertex) if self._live else None

    def enter(self, context: AbstractContextManager[T]) -> T:
        """Keeps a context open until the trial ends."""
        return self._stack.enter_context(context)

    def letters(self) -> dict[str, list[Letter]]:
        """Returns the dead letters so far, by message name."""
        by_name: defaultdict[str, list[Letter]] = defaultdict(list)
        with open_link_to_pipeline(self.state, None) as link:
            for stored in DeadLetters(link, self.name).list():
                by_name[self.name_of_letter(stored.letter)].append(stored.letter)
        return dict(by_name)

    def name_of_letter(self, letter: Letter) -> str:
        """Returns the name that observations have for the message of a dead letter."""
        # A dead letter keeps only the beginning and the size of a value that is too large.
        return text_of(letter.value) if letter.size is None else f"{letter.size} bytes"

    def waives(self, *rules: str) -> bool:
        """Returns whether all of these rules are waived, so that their stage can be skipped."""
        return all(rule in self.under_test.waived for rule in rules)

    def note(self, trouble: str) -> None:
        """Keeps a problem for the text of a broken rule."""
        self._troubles.append(trouble)

    def troubles(self) -> str:
        """Returns other problems, one per line."""
        all_troubles = [*self._troubles, *(self._live.failures if self._live else ())]
        return "".join(f"\nMeanwhile: {trouble}" for trouble in dict.fromkeys(all_troubles))
