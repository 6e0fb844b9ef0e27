"""The supervisor: keeps every vertex running, epoch after epoch.

Vertices that share a task have one driver thread. A task whose epoch fails is restarted after a
wait that doubles from half a second to thirty seconds, while the others continue; the reason is
kept for display. Messages are safe: those in flight are replayed from the task's positions.
"""

from __future__ import annotations

import math
import re
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from itertools import chain, count
from typing import TYPE_CHECKING, assert_never

from py4j.protocol import Py4JJavaError
from pyspark import InheritableThread

from ebbflow.domain.durations import Backoff
from ebbflow.engine.causes import Raised, RaisedErrors
from ebbflow.engine.redelivery import format_traceback
from ebbflow.runtime.loop import IN_VERTEX
from ebbflow.runtime.plan import VertexPlan
from ebbflow.runtime.task_sharing import Cut, Group, Merge, group_plans
from ebbflow.spark.batch.vertex import run_batches
from ebbflow.spark.epoch import Epochs
from ebbflow.spark.versions import says_worker_died
from ebbflow.status.conditions import SHARES_TASK, WORKER_DIED

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_RESTART = Backoff("500ms", steps=0, factor=2.0, cap="30s")
_STEADY = 60.0
# Seconds for the last epoch, in which the tasks receive the stop message.
_CLOSING = 10.0
_RECOVERED = 5.0
_ERROR_LINE = re.compile(
    r"^(?:[\w.]+\.)?(\w+(?:Error|Exception|Fenced|Violation|Timeout)): (.+)$", re.M
)
# The first line after the frames of a traceback is the error, whatever its name.
_AFTER_FRAMES = re.compile(
    r'^  File "(?:(?!^  File ").)*?^(?:\w+\.)*([A-Za-z_]\w*)(?:: ([^\n]*))?$', re.M | re.S
)
# An error of the JVM's own has no Python error behind it.
_JAVA_ERROR = re.compile(r"^(?:Caused by)?: (?:\w+\.)*(\w+): (.+)$", re.M)
_VERTEX = re.compile(rf"^{IN_VERTEX}(\S+)$", re.M)
_TRACE = re.compile(r"Traceback \(most recent call last\):\n.*?(?=\n\s*\n?\tat |\Z)", re.S)


class TaskSupervisor:
    """The vertices that share a task, and the thread that runs their epochs.

    ``plans`` are those of the current epoch.
    """

    def __init__(self, spark: SparkSession, plans: Group, lengths: Iterator[float]) -> None:
        self.plans = plans
        self.epoch = 0
        self.restarts = 0
        self._failure: str | None = None
        self._failed: str | None = None
        self.errors: defaultdict[str, RaisedErrors] = defaultdict(RaisedErrors)
        """The errors of its failed epochs, by vertex."""
        self._began = math.inf
        self.up_since = math.inf
        """When its first epoch since the last failure began; infinite while it has failed."""
        self._spark = spark
        self._epochs = Epochs(spark, plans)
        self._lengths = lengths
        self._stopping = threading.Event()
        self._next: tuple[Group, Callable[[], None]] | None = None
        self._open = self._replays = False
        self._thread = InheritableThread(target=self._run, name=f"vertex-{plans[0].vertex}")
        self._thread.daemon = True

    @property
    def failure(self) -> str | None:
        """The reason for the last failure, until the vertices have run again for a while."""
        return None if time.monotonic() - self._began > _RECOVERED else self._failure

    def failure_of(self, vertex: str) -> str | None:
        """Returns the same for one vertex; if another vertex of its task has failed, says so.

        An error that names no vertex, such as the death of a worker, counts for all of them.
        """
        if self._failed in (None, vertex):
            return self.failure
        return None if self.failure is None else f"{SHARES_TASK}{self._failed}, which has failed"

    def start(self) -> None:
        """Begins the first epoch."""
        self._thread.start()

    def stop(self) -> None:
        """Starts no further epoch, except one to close; tasks stop on a control message."""
        self._stopping.set()

    def change(self, plans: Group, then: Callable[[], None]) -> None:
        """Makes the next epoch after a successful one run ``plans``; then calls ``then``.

        Without plans the thread ends instead. A chunk that is left in flight must be replayed by
        the vertices that began it, so the change waits until there is none.
        """
        self._next = plans, then

    @property
    def changes(self) -> bool:
        """Whether a change is under way."""
        return self._next is not None

    def runs(self, vertex: str) -> bool:
        """Whether it runs a vertex, or will after the change that is under way."""
        upcoming = self._next[0] if self._next is not None else ()
        return any(plan.vertex == vertex for plan in (*self.plans, *upcoming))

    @property
    def running(self) -> bool:
        """True while the thread runs."""
        return self._thread.is_alive()

    def join(self, timeout: float) -> None:
        """Waits for the end of the running epoch, if one runs."""
        if self.running:
            self._thread.join(timeout)

    def _run(self) -> None:
        failures = 0
        isolate = False
        while self.plans and (self._open or not self._stopping.is_set()):
            self.epoch += 1
            self._began = time.monotonic()
            self.up_since = min(self.up_since, self._began)
            try:
                self._run_epoch(isolate)
                self._failure, isolate, failures = None, False, 0
                self._follow_change()
            except Exception as error:
                if self._stopping.is_set():
                    return
                self.restarts += 1
                self._note_failure(error)
                isolate = says_worker_died(str(error))
                steady = time.monotonic() - self._began > _STEADY
                failures = 1 if steady else failures + 1
                self._began = self.up_since = math.inf
                self._stopping.wait(_RESTART.wait(failures) / 1000)

    def _note_failure(self, error: Exception) -> None:
        """Records the error of an epoch for the vertex that it names, or for all vertices."""
        self._failure, self._failed = explain(error), find_vertex(error)
        for vertex in [self._failed] if self._failed else [plan.vertex for plan in self.plans]:
            self.errors[vertex].add(find_raised(error), datetime.now(UTC))

    def _follow_change(self) -> None:
        if self._next is None or self._replays or self._stopping.is_set():
            return
        self.plans, then = self._next
        self._next, self._epochs = None, Epochs(self._spark, self.plans)
        then()

    def _run_epoch(self, isolate: bool) -> None:
        seconds = _CLOSING if self._stopping.is_set() else next(self._lengths)
        if self.plans[0].streams.batched:
            run_batches(self._spark, self.plans[0], self.epoch, seconds, self._stopping)
        else:
            reports = self._epochs.run(self.epoch, seconds, isolate)
            # An epoch that ended just before the stop has left user code and the processes of
            # sources open for the next one. One more epoch receives the message and closes them.
            self._open = any(report.ended != "stop" for report in reports.values())
            self._replays = any(report.replays for report in reports.values())


def explain(error: BaseException) -> str:
    """Returns why an epoch failed, on one line: the Python error inside Spark's."""
    text = str(error)
    if says_worker_died(text):
        return WORKER_DIED
    patterns = (_AFTER_FRAMES, _ERROR_LINE, _JAVA_ERROR)
    errors = next((found for pattern in patterns if (found := pattern.findall(text))), None)
    if errors:
        kind, what = errors[-1]
        return f"{kind}: {what}" if what else kind
    return next((line.strip() for line in text.splitlines() if line.strip()), repr(error))[:300]


def find_vertex(error: BaseException) -> str | None:
    """Returns the vertex that a note on the error names, if its task has added one."""
    found = _VERTEX.search("\n".join([str(error), *getattr(error, "__notes__", ())]))
    return found[1] if found else None


def find_raised(error: BaseException) -> Raised:
    """Returns the Python error that failed an epoch, with its traceback if known.

    Spark forwards a worker's error as text, followed by its own stack.
    """
    trace = _TRACE.search(str(error))
    # The frames of a call to the JVM are those of the driver, which is not where the error is.
    own = str(error) if isinstance(error, Py4JJavaError) else format_traceback(error)
    shown = trace[0].rstrip() if trace else own
    return Raised.of_line(explain(error), shown)


class Supervisor:
    """All vertices of a pipeline. ``seconds`` returns the length of the next epoch."""

    def __init__(
        self, spark: SparkSession, plans: Sequence[VertexPlan], seconds: Callable[[], float]
    ) -> None:
        self._spark = spark
        self._plans = plans
        self._seconds = seconds
        groups = group_plans(plans)
        # The first epochs end one after another, so that each vertex keeps its workers.
        firsts = [seconds() * (number + 1) / len(groups) for number in range(len(groups))]
        self.tasks = [self._make(group, first) for group, first in zip(groups, firsts, strict=True)]

    def _make(self, group: Group, first: float) -> TaskSupervisor:
        lengths = chain([first], (self._seconds() for _ in count()))
        return TaskSupervisor(self._spark, group, lengths)

    def start(self) -> None:
        """Starts every vertex, beginning with the sources.

        With few slots, vertices take turns in this order, so that the output of a vertex is read in
        the same round and not in the next.
        """
        for task in self.tasks:
            task.start()

    def of(self, vertex: str) -> TaskSupervisor:
        """Returns the supervisor of a vertex, now or after the change that is under way."""
        return next(task for task in self.tasks if task.runs(vertex))

    def count_tasks(self) -> int:
        """Returns the current number of tasks."""
        return sum(task.plans[0].partitions for task in self.tasks if task.plans)

    @property
    def groups(self) -> list[Group]:
        """The vertices that share tasks; none while a change is under way or a task has failed."""
        tasks = [task for task in self.tasks if task.plans]
        unsteady = any(task.changes or task.failure is not None for task in tasks)
        return [] if unsteady else [task.plans for task in tasks]

    def change(self, change: Cut | Merge, end_epoch: Callable[[str], None]) -> None:
        """Changes which vertices share tasks; ``end_epoch`` ends the epoch of a vertex soon."""
        match change:
            case Cut(group, leaving):
                self._cut(self.of(group[0].vertex), leaving)
            case Merge(group, into):
                self._merge(self.of(group[0].vertex), self.of(into[0].vertex), end_epoch)
            case never:
                assert_never(never)
        end_epoch(change.group[0].vertex)

    def _cut(self, task: TaskSupervisor, leaving: Group) -> None:
        own = self._make(leaving, self._seconds())
        own.restarts = task.restarts
        self.tasks = [*self.tasks, own]
        task.change(tuple(plan for plan in task.plans if plan not in leaving), own.start)

    def _merge(
        self, task: TaskSupervisor, into: TaskSupervisor, end_epoch: Callable[[str], None]
    ) -> None:
        both = (*into.plans, *task.plans)
        joined = tuple(plan for plan in self._plans if plan in both)

        def join() -> None:
            into.change(joined, lambda: None)
            self.tasks = [other for other in self.tasks if other is not task]
            end_epoch(into.plans[0].vertex)

        task.change((), join)

    def stop(self, send_stop: Callable[[], None], timeout: float) -> bool:
        """Lets every task settle its messages and end; ``False`` if some did not in time.

        ``send_stop`` publishes the stop message. It is repeated, because a task that is just
        starting may have missed it.
        """
        for task in self.tasks:
            task.stop()
        deadline = time.monotonic() + timeout
        while any(task.running for task in self.tasks):
            if time.monotonic() > deadline:
                return False
            send_stop()
            for task in self.tasks:
                task.join(0.05)
        return True
