"""The driver's side of the tasks' events: what each task of a run has told last.

Events are heard on the thread of the connection to NATS, and read by the thread of the run. What
a task counts, it counts from its own beginning: the numbers of tasks before it are added.
"""

from __future__ import annotations

import contextlib
import json
import math
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, TypeVar

from nats.aio.msg import Msg

from ebbflow.engine.causes import CauseCount, CauseCounter, Raised
from ebbflow.engine.outage import Waiting
from ebbflow.engine.spread import Spread
from ebbflow.nats.link import Link
from ebbflow.nats.publish import Tally
from ebbflow.runtime.error_log import ErrorLog
from ebbflow.runtime.measures import STAGES, add_spreads, load_spreads
from ebbflow.streams.logs import LogEntry
from ebbflow.streams.names import Names

T = TypeVar("T")
# A task that has not spoken of its call for this long is gone.
_CALL_IS_OVER = 10.0
_LONG_CALL = 5.0
_MOST_CHUNKS = 50


@dataclass(frozen=True, slots=True)
class TaskNumbers:
    """What tasks have counted: durations by stage, and rows sent by the vertex they went to."""

    spreads: dict[str, Spread] = field(default_factory=dict)
    sent: dict[str, int] = field(default_factory=dict)

    def __add__(self, other: TaskNumbers) -> TaskNumbers:
        sent = {to: self.sent.get(to, 0) + other.sent.get(to, 0) for to in self.sent | other.sent}
        return TaskNumbers(add_spreads([self.spreads, other.spreads]), sent)


@dataclass(frozen=True, slots=True)
class ToldChunk:
    """A chunk as its task has told it; ``seconds`` are those of each stage."""

    partition: int
    at: datetime
    rows: int
    seconds: dict[str, float]

    @classmethod
    def of(cls, partition: int, told: list[float]) -> ToldChunk:
        """Returns the chunk of what ``ChunkRecord`` tells."""
        at, rows, *micros = told
        seconds = {stage: n / 1e6 for stage, n in zip(STAGES, micros, strict=True)}
        return cls(partition, datetime.fromtimestamp(at, UTC), int(rows), seconds)


class TaskListener:
    """Keeps the latest event of each task; ``take_log`` gets what vertices print."""

    def __init__(self, names: Names, take_log: Callable[[LogEntry], None]) -> None:
        self._names = names
        self._take_log = take_log
        self._last_reason: dict[str, str] = {}
        self._reasons: dict[str, list[CauseCount]] = {}
        self._present: dict[tuple[str, int], tuple[str, Tally]] = {}
        self._past: dict[str, Tally] = {}
        self._pending: dict[tuple[str, int], int | None] = {}
        self._waiting: dict[tuple[str, int], Waiting | None] = {}
        self._halted: dict[tuple[str, int], str | None] = {}
        self._heard: dict[tuple[str, int], float] = {}
        self._calls: dict[tuple[str, int], tuple[float, float]] = {}
        self._nacks: dict[str, CauseCounter] = {}
        self._in_hand: dict[tuple[str, int], tuple[int, float] | None] = {}
        self._measured: dict[tuple[str, int], TaskNumbers] = {}
        self._measured_before: dict[str, TaskNumbers] = {}
        self._chunks: dict[str, deque[ToldChunk]] = {}
        self._errors: dict[str, ErrorLog] = {}
        self._opened: set[tuple[str, int]] = set()

    @contextlib.contextmanager
    def listen(self, link: Link) -> Iterator[None]:
        """Receives the events of all tasks for as long as the context lasts."""
        subscribe, names = link.client.subscribe, self._names
        subscriptions = [
            link.run(subscribe(names.event_subject(), cb=self._hear)),
            link.run(subscribe(names.log_subject(), cb=self._hear_log)),
        ]
        try:
            yield
        finally:
            with contextlib.suppress(Exception):
                for subscription in subscriptions:
                    link.run(subscription.unsubscribe(), timeout=5)

    def reason(self, vertex: str) -> str | None:
        """Returns the reason of the vertex's latest nack, if it had one."""
        return self._last_reason.get(vertex)

    def tally(self, vertex: str) -> Tally:
        """Returns the counts of the vertex's publishing since the run began."""
        present = [tally for _, tally in _latest(vertex, self._present)]
        return sum(present, self._past.get(vertex, Tally()))

    def pending(self, vertex: str) -> int | None:
        """Returns how many messages wait at the vertex's source, as far as that is known."""
        known = [count for count in _latest(vertex, self._pending) if count is not None]
        return sum(known) if known else None

    def reasons(self, vertex: str) -> list[CauseCount]:
        """Returns the nack reasons of this run, the most frequent first."""
        return self._reasons.get(vertex, [])

    def in_hand(self, vertex: str) -> tuple[int, datetime] | None:
        """Returns how many messages tasks have taken and not settled, and since when."""
        held = [held for held in _latest(vertex, self._in_hand) if held is not None]
        if not held:
            return None
        since = min(since for _, since in held)
        return sum(rows for rows, _ in held), datetime.fromtimestamp(since, UTC)

    def numbers(self, vertex: str) -> TaskNumbers:
        """Returns the spreads of durations, and the rows sent by edge, since the run began."""
        parts = [self._measured_before.get(vertex, TaskNumbers()), *_latest(vertex, self._measured)]
        return sum(parts, TaskNumbers())

    def chunks(self, vertex: str) -> list[ToldChunk]:
        """Returns the last chunks of the vertex, as they ended."""
        return [*self._chunks.get(vertex, deque()).copy()]

    def errors(self, vertex: str) -> ErrorLog:
        """Returns the errors that its user code has raised in this run."""
        return self._errors.setdefault(vertex, ErrorLog())

    def has_opened(self, vertex: str, partitions: int) -> bool:
        """Returns whether every task of the vertex has had its user code open in this run."""
        return all((vertex, number) in self._opened for number in range(partitions))

    def count_heard(self, vertex: str, within: float) -> int:
        """Returns how many tasks of the vertex have spoken within the last seconds."""
        now = time.monotonic()
        return sum(now - at <= within for at in _latest(vertex, self._heard))

    def unheard(self, vertex: str, partitions: int) -> float:
        """Returns for how many seconds the task was silent that has been silent for longest.

        Infinite if there is one that has said nothing in this run.
        """
        now, heard = time.monotonic(), self._heard.copy()
        return max(now - heard.get((vertex, p), -math.inf) for p in range(partitions))

    def waiting(self, vertex: str) -> Waiting | None:
        """Returns the outage that the vertex waits for, if any; of several, the longest."""
        outages = [waiting for waiting in _latest(vertex, self._waiting) if waiting]
        return max(outages, key=lambda waiting: waiting.seconds, default=None)

    def halted(self, vertex: str) -> str | None:
        """Returns why the breaker of the vertex has stopped it, if it has."""
        return next((why for why in _latest(vertex, self._halted) if why), None)

    def has_heard(self, vertex: str, partitions: int, since: float) -> bool:
        """Returns whether every task of the vertex has spoken since a moment.

        Each task does when its user code is open, be there messages or not.
        """
        heard = self._heard.copy()
        return all(heard.get((vertex, p), -math.inf) >= since for p in range(partitions))

    def in_call(self, vertex: str) -> float | None:
        """Returns the seconds that user code has been in one call, if that is long."""
        now = time.monotonic()
        calls = _latest(vertex, self._calls)
        lengths = (now - began for began, at in calls if now - at < _CALL_IS_OVER)
        return max((seconds for seconds in lengths if seconds >= _LONG_CALL), default=None)

    async def _hear(self, message: Msg) -> None:
        kind = message.subject.rpartition(".")[2]
        if kind == "message":
            await self._hear_log(message)
        elif kind == "nack":
            self._note_nacks(json.loads(message.data))
        elif kind == "error":
            self._note_errors(json.loads(message.data))
        elif kind == "state":
            self._note(json.loads(message.data))
        elif kind == "call":
            self._note_call(json.loads(message.data))

    def _note_nacks(self, event: dict[str, Any]) -> None:
        vertex, reasons = event["vertex"], event["reasons"]
        self._last_reason[vertex] = next(iter(reasons))
        counted = self._nacks.setdefault(vertex, CauseCounter())
        counted.update(reasons.items())
        self._reasons[vertex] = counted.causes()  # which other threads read meanwhile

    async def _hear_log(self, message: Msg) -> None:
        self._take_log(LogEntry.read(message.headers or {}, message.data))

    def _note_call(self, event: dict[str, Any]) -> None:
        key, now = (event["vertex"], event["partition"]), time.monotonic()
        self._heard[key] = now
        self._in_hand[key] = event["in_hand"]
        if event["opened"]:
            self._opened.add(key)
        if event["seconds"] is None:
            self._calls.pop(key, None)
        else:
            self._calls[key] = (now - event["seconds"], now)

    def _note(self, event: dict[str, Any]) -> None:
        vertex, key = event["vertex"], (event["vertex"], event["partition"])
        self._heard[key] = time.monotonic()
        self._pending[key] = event["pending"]
        self._waiting[key] = Waiting(**event["waiting"]) if event["waiting"] else None
        self._halted[key] = event["halted"]
        if event["opened"]:
            self._opened.add(key)
        self._in_hand[key] = event["in_hand"]
        self._chunks.setdefault(vertex, deque(maxlen=_MOST_CHUNKS)).extend(
            ToldChunk.of(event["partition"], chunk) for chunk in event["chunks"]
        )
        task, tally = self._present.get(key, (event["task"], Tally()))
        if task != event["task"]:  # each task counts from nothing
            self._past[vertex] = self._past.get(vertex, Tally()) + tally
            before = self._measured_before.get(vertex, TaskNumbers())
            self._measured_before[vertex] = before + self._measured.get(key, TaskNumbers())
        self._present[key] = event["task"], Tally(**event["tally"])
        self._measured[key] = TaskNumbers(load_spreads(event["spreads"]), event["sent"])

    def _note_errors(self, event: dict[str, Any]) -> None:
        at = datetime.now(UTC)
        for raised in event["errors"]:
            self.errors(event["vertex"]).add(Raised(**raised), at)


def _latest(vertex: str, tasks: dict[tuple[str, int], T]) -> list[T]:
    """Returns what each task of the vertex said last; from a copy, as events arrive meanwhile."""
    return [said for (name, _), said in tasks.copy().items() if name == vertex]
