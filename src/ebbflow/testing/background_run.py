"""Runs a pipeline in the background of a test, on the current Spark session.

Every wait has a limit: a pipeline that does not start or stop in time raises an error that says
why, so that no test hangs.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ebbflow.operations.pipeline_run import PipelineRun
from ebbflow.runtime.run_setup import RunOptions
from ebbflow.spark.session import SessionPlan, open_session
from ebbflow.status.model import PipelineStatus
from ebbflow.status.run_report import Summary, Watcher
from ebbflow.streams.logs import LogEntry

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from ebbflow.builders import Builder

_START_WAIT = "60s"
_STOP_WAIT = "60s"
_LONGEST = "300s"
_TASKS = 8
_EVERY = 0.05


@contextmanager
def local_spark(tasks: int = _TASKS) -> Iterator[SparkSession]:
    """Opens Spark on this machine for the pipelines of tests, with slots for this many tasks.

    Share it among all tests, because starting it takes seconds. If this process already has a
    session, that session is used and left running.
    """
    with (
        tempfile.TemporaryDirectory(prefix="ebbflow-tests-") as logs,
        open_session(SessionPlan("tests", f"local[{tasks}]", tasks, Path(logs))) as spark,
    ):
        yield spark


class BackgroundRun(Watcher):
    """One run of a pipeline, in its own thread, until it is stopped."""

    def __init__(
        self,
        pipeline: Builder,
        state: Path,
        on_line: Callable[[str], None] = lambda line: None,
        **options: Any,
    ) -> None:
        self.status = PipelineStatus(pipeline.spec.name, phase="starting")
        self.failures: list[str] = []
        self._on_line = on_line
        chosen: Any = {"state": state, "timeout": _LONGEST, **options}
        limited = RunOptions.of(chosen)
        self._run = PipelineRun(pipeline.spec, limited, self)
        self._run.start(_START_WAIT)

    def line(self, text: str) -> None:
        """Passes on each line that a ``log`` sink prints."""
        for line in text.splitlines():
            self._on_line(line)

    def log(self, entry: LogEntry) -> None:
        """Passes on each line that user code prints."""
        self.line(entry.printed.text)

    def look(self, status: PipelineStatus) -> None:
        """Keeps the latest status, and every reason why a vertex failed."""
        self.status = status
        for vertex in status.vertices:
            reason = f"{vertex.name}: {vertex.failure}"
            if vertex.failure and reason not in self.failures:
                self.failures.append(reason)

    def stop(self) -> Summary:
        """Stops the run cleanly and returns its summary."""
        return self._run.stop(_STOP_WAIT)


def until(condition: Callable[[], bool], seconds: float, every: float = _EVERY) -> bool:
    """Waits at most this many seconds for a condition; returns whether it became true."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(every)
    return True


def until_none(left: Callable[[], int], patience: float, first: float = 0.0) -> bool:
    """Waits until ``left`` is 0; gives up after ``patience`` seconds without a decrease.

    ``first`` is the limit for the first decrease, if that is longer.
    """
    least, deadline = None, time.monotonic() + max(patience, first)
    while (now := left()) > 0:
        if least is None or now < least:
            deadline = time.monotonic() + patience if least is not None else deadline
            least = now
        if time.monotonic() > deadline:
            return False
        time.sleep(_EVERY)
    return True
