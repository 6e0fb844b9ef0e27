"""Warming up: an executor with spare slots runs Python before it is given a task.

On an executor that has run nothing yet, a first task waits about five seconds: the JVM loads the
classes it needs, and the daemon its modules. Spark gives all tasks of a run to the executor that
comes first, if they fit, so when that one is lost, all of them would wait. An empty job, with about
a task for each executor, does it ahead. Executors without a spare slot run tasks already.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterable
from typing import TYPE_CHECKING

from pyspark import InheritableThread

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_GROUP = "ebbflow/warm-up"


class WarmUp:
    """Warms up executors once for each that comes; ``begin`` starts a job of so many tasks."""

    def __init__(self, begin: Callable[[int], None]) -> None:
        self._begin = begin
        self._seen: frozenset[tuple[str, int]] = frozenset()
        self._warm: frozenset[tuple[str, int]] = frozenset()

    def look(self, executors: Collection[tuple[str, int]], spare: int) -> None:
        """Takes where executors are and how many slots no task of the run needs.

        Those that have just come may be followed by others, so they are left alone for a look.
        """
        now, before = frozenset(executors), self._seen
        self._seen = now
        if now == before and now - self._warm and spare > 0:
            self._warm = now
            self._begin(min(len(now), spare))


def begin_warm_up(spark: SparkSession, tasks: int) -> None:
    """Starts a job of empty tasks, on a thread of its own. Spark spreads them over executors."""

    def run() -> None:
        context = spark.sparkContext
        with contextlib.suppress(Exception):  # without it everything works, only later
            context.setJobGroup(_GROUP, "starting Python on executors with spare slots")
            context.parallelize(range(tasks), tasks).foreachPartition(_do_nothing)

    InheritableThread(target=run, name="warm-up", daemon=True).start()


def _do_nothing(_: Iterable[int]) -> None:
    """Runs on a worker."""
