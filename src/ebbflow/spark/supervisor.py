"""Keeping every vertex running: one driver thread a vertex, epoch after epoch.

A vertex whose epoch fails is started again after a wait that doubles from half a second to thirty
seconds, while the others go on; why it failed is kept to be shown. Its messages are safe meanwhile:
what it had in hand is replayed from its position.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from pyspark import InheritableThread

from ebbflow.spark.epoch import run_epoch
from ebbflow.spark.plan import VertexPlan

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_FIRST_WAIT, _LONGEST_WAIT = 0.5, 30.0
_STEADY = 60.0
_ERROR_LINE = re.compile(
    r"^(?:[\w.]+\.)?(\w+(?:Error|Exception|Fenced|Violation|Timeout)): (.+)$", re.M
)


class VertexSupervisor:
    """One vertex and the thread that runs its epochs."""

    def __init__(self, spark: SparkSession, plan: VertexPlan, epoch_seconds: float) -> None:
        self.plan = plan
        self.epoch = 0
        self.restarts = 0
        self.failure: str | None = None
        self._spark = spark
        self._epoch_seconds = epoch_seconds
        self._stopping = threading.Event()
        self._thread = InheritableThread(target=self._run, name=f"vertex-{plan.vertex}")
        self._thread.daemon = True

    def start(self) -> None:
        """Begin the first epoch."""
        self._thread.start()

    def stop(self) -> None:
        """Begin no further epoch; the running one must be told by its control subject."""
        self._stopping.set()

    @property
    def running(self) -> bool:
        """Whether the thread is still there."""
        return self._thread.is_alive()

    def join(self, timeout: float) -> None:
        """Wait for the end of the running epoch."""
        self._thread.join(timeout)

    def _run(self) -> None:
        wait = _FIRST_WAIT
        while not self._stopping.is_set():
            self.epoch += 1
            began = time.monotonic()
            try:
                run_epoch(self._spark, self.plan, self.epoch, self._epoch_seconds)
                self.failure = None
                wait = _FIRST_WAIT
            except Exception as error:
                if self._stopping.is_set():
                    return
                self.restarts += 1
                self.failure = explain(error)
                if time.monotonic() - began > _STEADY:
                    wait = _FIRST_WAIT
                self._stopping.wait(wait)
                wait = min(wait * 2, _LONGEST_WAIT)


def explain(error: BaseException) -> str:
    """Why an epoch failed, on one line: the Python error behind Spark's."""
    text = str(error)
    found = _ERROR_LINE.findall(text)
    if found:
        kind, what = found[-1]
        return f"{kind}: {what}"
    return next((line.strip() for line in text.splitlines() if line.strip()), repr(error))[:300]


class Supervisor:
    """All vertices of a pipeline."""

    def __init__(
        self, spark: SparkSession, plans: Sequence[VertexPlan], epoch_seconds: float
    ) -> None:
        self.vertices = [VertexSupervisor(spark, plan, epoch_seconds) for plan in plans]

    def start(self) -> None:
        """Start every vertex, the last ones first, so that nobody waits for a reader."""
        for vertex in reversed(self.vertices):
            vertex.start()

    def stop(self, tell: Callable[[], None], timeout: float) -> bool:
        """Have every task settle what it holds and end; ``False`` if some did not in time.

        ``tell`` publishes the word to stop. It is repeated, because a task that is just starting
        may not have heard it.
        """
        for vertex in self.vertices:
            vertex.stop()
        deadline = time.monotonic() + timeout
        while any(vertex.running for vertex in self.vertices):
            if time.monotonic() > deadline:
                return False
            tell()
            for vertex in self.vertices:
                vertex.join(0.05)
        return True
