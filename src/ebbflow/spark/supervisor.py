"""The supervisor: keeps every vertex running, epoch after epoch.

Vertices that share a task have one driver thread. A task whose epoch fails is started again after a
wait that doubles from half a second to thirty seconds, while the others continue; why it failed is
kept to be shown. Its messages are safe: what it had in flight is replayed from its positions.
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
# Seconds that an epoch has to hear that it is the last one.
_CLOSING = 10.0
_RECOVERED = 5.0
_ERROR_LINE = re.compile(
    r"^(?:[\w.]+\.)?(\w+(?:Error|Exception|Fenced|Violation|Timeout)): (.+)$", re.M
)
# The first line behind the frames of a traceback: whatever its name, that is the error.
_BEHIND_FRAMES = re.compile(
    r'^  File "(?:(?!^  File ").)*?^(?:\w+\.)*([A-Za-z_]\w*)(?:: ([^\n]*))?$', re.M | re.S
)
# An error of the JVM's own has no Python error behind it.
_JAVA_ERROR = re.compile(r"^(?:Caused by)?: (?:\w+\.)*(\w+): (.+)$", re.M)
_VERTEX = re.compile(rf"^{IN_VERTEX}(\S+)$", re.M)
_TRACE = re.compile(r"Traceback \(most recent call last\):\n.*?(?=\n\s*\n?\tat |\Z)", re.S)


class TaskSupervisor:
    """The vertices that share a task, and the thread that runs their epochs.

    ``plans`` are those of the epoch that runs.
    """

    def __init__(self, spark: SparkSession, plans: Group, lengths: Iterator[float]) -> None:
        self.plans = plans
        self.epoch = 0
        self.restarts = 0
        self._failure: str | None = None
        self._failed: str | None = None
        self.errors: defaultdict[str, RaisedErrors] = defaultdict(RaisedErrors)
        """The errors by which its epochs have failed, by vertex."""
        self._began = math.inf
        self.up_since = math.inf
        """When its first epoch without a failure since began; never while it has failed."""
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
        """The reason of the last failure, until the vertices have run again for a while."""
        return None if time.monotonic() - self._began > _RECOVERED else self._failure

    def failure_of(self, vertex: str) -> str | None:
        """Returns the same of one vertex; the others of its task wait until that has started again.

        An error that names no vertex, such as a worker that died, is that of all of them.
        """
        if self._failed in (None, vertex):
            return self.failure
        return None if self.failure is None else f"{SHARES_TASK}{self._failed}, which has failed"

    def start(self) -> None:
        """Begins the first epoch."""
        self._thread.start()

    def stop(self) -> None:
        """Begins no further epoch but one that closes; tasks hear it on their control subject."""
        self._stopping.set()

    def change(self, plans: Group, then: Callable[[], None]) -> None:
        """Has the next epoch that follows a good one run other vertices; then calls ``then``.

        Without any the thread ends instead. A chunk that is left in flight is replayed by the
        vertices that began it, so a change waits until there is none.
        """
        self._next = plans, then

    @property
    def changes(self) -> bool:
        """Whether a change is under way."""
        return self._next is not None

    def runs(self, vertex: str) -> bool:
        """Whether it runs a vertex, or will after the change that is under way."""
        to_come = self._next[0] if self._next is not None else ()
        return any(plan.vertex == vertex for plan in (*self.plans, *to_come))

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
        """Keeps why an epoch failed, for the vertex that the error names or for all of them."""
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
            # An epoch that ran out just before the stop has left user code and the processes of
            # sources open for the next one: one more hears the word and closes them.
            self._open = any(report.ended != "stop" for report in reports.values())
            self._replays = any(report.replays for report in reports.values())


def explain(error: BaseException) -> str:
    """Returns why an epoch failed, on one line: the Python error behind Spark's."""
    text = str(error)
    if says_worker_died(text):
        return WORKER_DIED
    patterns = (_BEHIND_FRAMES, _ERROR_LINE, _JAVA_ERROR)
    errors = next((found for pattern in patterns if (found := pattern.findall(text))), None)
    if errors:
        kind, what = errors[-1]
        return f"{kind}: {what}" if what else kind
    return next((line.strip() for line in text.splitlines() if line.strip()), repr(error))[:300]


def find_vertex(error: BaseException) -> str | None:
    """Returns the vertex that a note on the error names, if its task has noted one."""
    found = _VERTEX.search("\n".join([str(error), *getattr(error, "__notes__", ())]))
    return found[1] if found else None


def find_raised(error: BaseException) -> Raised:
    """Returns the Python error by which an epoch failed, with its traceback as far as it is known.

    Spark passes on a worker's error as a text, with its own stack behind it.
    """
    trace = _TRACE.search(str(error))
    # The frames of a call to the JVM are those of the driver, which is not where the error is.
    own = str(error) if isinstance(error, Py4JJavaError) else format_traceback(error)
    shown = trace[0].rstrip() if trace else own
    return Raised.of_line(explain(error), shown)


class Supervisor:
    """All vertices of a pipeline. ``seconds`` says how long the next epoch is to last."""

    def __init__(
        self, spark: SparkSession, plans: Sequence[VertexPlan], seconds: Callable[[], float]
    ) -> None:
        self._spark = spark
        self._plans = plans
        self._seconds = seconds
        groups = group_plans(plans)
        # Epochs that end one after another leave each vertex the workers it had.
        firsts = [seconds() * (number + 1) / len(groups) for number in range(len(groups))]
        self.tasks = [self._make(group, first) for group, first in zip(groups, firsts, strict=True)]

    def _make(self, group: Group, first: float) -> TaskSupervisor:
        lengths = chain([first], (self._seconds() for _ in count()))
        return TaskSupervisor(self._spark, group, lengths)

    def start(self) -> None:
        """Starts every vertex, from the sources on.

        If there are few slots, turns come in this order: what a vertex has written is read in the
        same round, and not in the next one.
        """
        for task in self.tasks:
            task.start()

    def of(self, vertex: str) -> TaskSupervisor:
        """Returns who runs a vertex, now or as soon as its tasks have changed."""
        return next(task for task in self.tasks if task.runs(vertex))

    def count_tasks(self) -> int:
        """Returns how many tasks there are now."""
        return sum(task.plans[0].partitions for task in self.tasks if task.plans)

    @property
    def groups(self) -> list[Group]:
        """The vertices that share tasks; none while a change is under way or something failed."""
        tasks = [task for task in self.tasks if task.plans]
        unsteady = any(task.changes or task.failure is not None for task in tasks)
        return [] if unsteady else [task.plans for task in tasks]

    def change(self, change: Cut | Merge, end_epoch: Callable[[str], None]) -> None:
        """Has vertices share tasks in another way; ``end_epoch`` ends that of a vertex soon."""
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

        def take() -> None:
            into.change(joined, lambda: None)
            self.tasks = [other for other in self.tasks if other is not task]
            end_epoch(into.plans[0].vertex)

        task.change((), take)

    def stop(self, tell: Callable[[], None], timeout: float) -> bool:
        """Lets every task settle what it holds and end; ``False`` if some did not in time.

        ``tell`` publishes the word to stop. It is repeated, because a task that is just starting
        may not have heard it.
        """
        for task in self.tasks:
            task.stop()
        deadline = time.monotonic() + timeout
        while any(task.running for task in self.tasks):
            if time.monotonic() > deadline:
                return False
            tell()
            for task in self.tasks:
                task.join(0.05)
        return True
