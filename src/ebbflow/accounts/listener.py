"""The driver's side of the tasks' events: the latest report of each task of a run.

Events are received on the thread of the connection to NATS, and read by the thread of the run. Each
task counts from its own beginning: the numbers of earlier tasks are added.
"""

from __future__ import annotations

import contextlib
import json
import math
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

from nats.aio.msg import Msg

from ebbflow.accounts.numbers import Load, TaskNumbers, TaskState
from ebbflow.engine.account import STAGES
from ebbflow.engine.causes import CauseCount, CauseCounter, Raised, RaisedErrors
from ebbflow.engine.outage import Waiting
from ebbflow.nats.link import Link
from ebbflow.nats.publish import Tally
from ebbflow.streams.logs import LogEntry
from ebbflow.streams.names import Names

# A task that has not reported its call for this long has ended.
_CALL_IS_OVER = 10.0
_LONG_CALL = 5.0
_MOST_CHUNKS = 50


@dataclass(frozen=True, slots=True)
class ReportedChunk:
    """A chunk as its task has reported it; ``seconds`` has the duration of each stage."""

    partition: int
    at: datetime
    rows: int
    seconds: dict[str, float]

    @classmethod
    def of(cls, partition: int, record: list[float]) -> ReportedChunk:
        """Returns the chunk from the JSON of a ``ChunkRecord``."""
        at, rows, *micros = record
        seconds = {stage: n / 1e6 for stage, n in zip(STAGES, micros, strict=True)}
        return cls(partition, datetime.fromtimestamp(at, UTC), int(rows), seconds)


@dataclass(frozen=True, slots=True)
class _TaskReport:
    """The latest report of a partition's task, and when it arrived.

    ``call`` is when the current call of user code began, and when the task last reported it.
    """

    state: TaskState
    reported: float
    call: tuple[float, float] | None = None
    load: Load = field(default_factory=Load)


class _VertexReport:
    """The reports of all tasks of a vertex in this run.

    ``tally`` and ``numbers`` are the sums of tasks that were replaced by later ones.
    """

    def __init__(self) -> None:
        self.tally = Tally()
        self.numbers = TaskNumbers()
        self.nacks = CauseCounter()
        self.reasons: list[CauseCount] = []
        self.last_reason: str | None = None
        self.chunks: deque[ReportedChunk] = deque(maxlen=_MOST_CHUNKS)
        self.errors = RaisedErrors()


class TaskListener:
    """Keeps the latest state of each task; ``take_log`` gets what vertices print."""

    def __init__(self, names: Names, take_log: Callable[[LogEntry], None]) -> None:
        self._names = names
        self._take_log = take_log
        self._tasks: dict[tuple[str, int], _TaskReport] = {}
        self._vertices: dict[str, _VertexReport] = {}

    @contextlib.contextmanager
    def listen(self, link: Link) -> Iterator[None]:
        """Receives the events of all tasks for as long as the context lasts."""
        subscribe, names = link.client.subscribe, self._names
        subscriptions = [
            link.run(subscribe(names.event_subject(), cb=self._receive)),
            link.run(subscribe(names.log_subject(), cb=self._receive_log)),
        ]
        try:
            yield
        finally:
            with contextlib.suppress(Exception):
                for subscription in subscriptions:
                    link.run(subscription.unsubscribe(), timeout=5)

    def reason(self, vertex: str) -> str | None:
        """Returns the reason of the vertex's latest nack, if it had one."""
        return self._vertex(vertex).last_reason

    def tally(self, vertex: str) -> Tally:
        """Returns the publish counts of the vertex since the run began."""
        return sum((s.tally for s in self._states(vertex)), self._vertex(vertex).tally)

    def pending(self, vertex: str) -> int | None:
        """Returns how many messages wait at the vertex's source, as far as that is known."""
        known = [s.pending for s in self._states(vertex) if s.pending is not None]
        return sum(known) if known else None

    def reasons(self, vertex: str) -> list[CauseCount]:
        """Returns the nack reasons of this run, the most frequent first."""
        return self._vertex(vertex).reasons

    def in_flight(self, vertex: str) -> tuple[int, datetime] | None:
        """Returns how many messages tasks have taken and not settled, and since when."""
        counts = [s.in_flight for s in self._states(vertex) if s.in_flight is not None]
        if not counts:
            return None
        since = min(since for _, since in counts)
        return sum(rows for rows, _ in counts), datetime.fromtimestamp(since, UTC)

    def numbers(self, vertex: str) -> TaskNumbers:
        """Returns the histograms of durations, and the rows sent by edge, since the run began."""
        return sum((s.numbers for s in self._states(vertex)), self._vertex(vertex).numbers)

    def chunks(self, vertex: str) -> list[ReportedChunk]:
        """Returns the last chunks of the vertex, in the order in which they ended."""
        return [*self._vertex(vertex).chunks.copy()]

    def is_inline(self, start: str, to: str) -> bool:
        """Returns whether a task runs the second vertex inline on outputs of the first."""
        return any(start in state.inline_from for state in self._states(to))

    def errors(self, vertex: str) -> RaisedErrors:
        """Returns the errors that its user code has raised in this run."""
        return self._vertex(vertex).errors

    def has_opened(self, vertex: str, partitions: int) -> bool:
        """Returns whether every task of the vertex has opened its user code in this run."""
        opened = {s.partition for s in self._states(vertex) if s.opened}
        return opened.issuperset(range(partitions))

    def count_reporting(self, vertex: str, within: float) -> int:
        """Returns how many tasks of the vertex have reported within the last seconds."""
        now = time.monotonic()
        return sum(now - task.reported <= within for task in self._tasks_of(vertex))

    def longest_silence(self, vertex: str, partitions: int) -> float:
        """Returns the longest time, in seconds, since a task of the vertex last reported.

        Infinite if a task has not reported in this run.
        """
        now = time.monotonic()
        return max(now - self._last_report(vertex, p) for p in range(partitions))

    def load(self, vertex: str) -> Load:
        """Returns the load of the busiest task of the vertex."""
        return max((task.load for task in self._tasks_of(vertex)), default=Load())

    def waiting(self, vertex: str) -> Waiting | None:
        """Returns the outage that the vertex waits for, if any; the longest of several."""
        outages = [s.waiting for s in self._states(vertex) if s.waiting]
        return max(outages, key=lambda waiting: waiting.seconds, default=None)

    def halted(self, vertex: str) -> str | None:
        """Returns why the breaker of the vertex has stopped it, if it has."""
        return next((s.halted for s in self._states(vertex) if s.halted), None)

    def has_reported(self, vertex: str, partitions: int, since: float) -> bool:
        """Returns whether every task of the vertex has reported since a point in time.

        Each task reports when its user code is open, even without messages.
        """
        return all(self._last_report(vertex, p) >= since for p in range(partitions))

    def in_call(self, vertex: str) -> float | None:
        """Returns how many seconds the current call of user code has run, if that is long."""
        now = time.monotonic()
        calls = [task.call for task in self._tasks_of(vertex) if task.call is not None]
        lengths = (now - began for began, at in calls if now - at < _CALL_IS_OVER)
        return max((seconds for seconds in lengths if seconds >= _LONG_CALL), default=None)

    def _vertex(self, vertex: str) -> _VertexReport:
        return self._vertices.setdefault(vertex, _VertexReport())

    def _tasks_of(self, vertex: str) -> list[_TaskReport]:
        """Returns the tasks of the vertex; from a copy, as events arrive meanwhile."""
        return [task for (name, *_), task in self._tasks.copy().items() if name == vertex]

    def _states(self, vertex: str) -> list[TaskState]:
        return [task.state for task in self._tasks_of(vertex)]

    def _last_report(self, vertex: str, partition: int) -> float:
        task = self._tasks.get((vertex, partition))
        return -math.inf if task is None else task.reported

    async def _receive(self, message: Msg) -> None:
        kind = message.subject.rpartition(".")[2]
        if kind == "message":
            await self._receive_log(message)
        elif kind == "nack":
            self._note_nacks(json.loads(message.data))
        elif kind == "error":
            self._note_errors(json.loads(message.data))
        elif kind == "state":
            self._note(json.loads(message.data))
        elif kind == "call":
            self._note_call(json.loads(message.data))

    def _note_nacks(self, event: dict[str, Any]) -> None:
        vertex, reasons = self._vertex(event["vertex"]), event["reasons"]
        vertex.last_reason = next(iter(reasons))
        vertex.nacks.update(reasons.items())
        vertex.reasons = vertex.nacks.causes()  # a copy, because other threads read it

    async def _receive_log(self, message: Msg) -> None:
        self._take_log(LogEntry.read(message.headers or {}, message.data))

    def _note_call(self, event: dict[str, Any]) -> None:
        vertex, partition = event["vertex"], event["partition"]
        key, now = (vertex, partition), time.monotonic()
        before = self._tasks.get(key)
        state = before.state if before else TaskState(vertex, partition)
        # A first call may take forever: then this is all that is known about the task.
        opened = event["opened"] or state.opened
        state = replace(state, in_flight=event["in_flight"], opened=opened)
        call = None if event["seconds"] is None else (now - event["seconds"], now)
        self._tasks[key] = _TaskReport(state, now, call)

    def _note(self, event: dict[str, Any]) -> None:
        state = TaskState.from_json(event["state"])
        key, vertex = (state.vertex, state.partition), self._vertex(state.vertex)
        vertex.chunks.extend(ReportedChunk.of(state.partition, chunk) for chunk in event["chunks"])
        before, call = self._tasks.get(key), None
        if before is not None:
            if before.state.task != state.task:  # each task counts from zero
                vertex.tally += before.state.tally
                vertex.numbers += before.state.numbers
            state, call = replace(state, opened=state.opened or before.state.opened), before.call
        self._tasks[key] = _TaskReport(state, time.monotonic(), call, Load(*event.get("load", ())))

    def _note_errors(self, event: dict[str, Any]) -> None:
        at = datetime.now(UTC)
        for raised in event["errors"]:
            self.errors(event["vertex"]).add(Raised(**raised), at)
