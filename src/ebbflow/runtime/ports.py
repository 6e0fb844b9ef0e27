"""The seams of the chunk loop: where it records, what time it is, who watches.

``ChunkLoop`` carries the guarantees and knows none of the systems behind it. On a worker these
protocols are NATS and the system's clock (``nats_task``); in the tests of crashes they are a server
in memory, where anything may stop between any two steps, and a clock that is set forward.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Collection, Coroutine
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import Any, Protocol, TypeVar

import pyarrow as pa
from typing_extensions import override

from ebbflow.engine.account import ChunkRecord
from ebbflow.engine.causes import RaisedErrors
from ebbflow.engine.outage import OutageGate, Waiting
from ebbflow.engine.position import Mark, Position
from ebbflow.engine.publications import Publication
from ebbflow.engine.settlement import Settlement

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


@dataclass(frozen=True, slots=True)
class Report:
    """What a task tells the driver when its epoch is over.

    ``replays`` if a chunk that was begun is left to the next task, which has to replay it.
    """

    ended: str
    chunks: int
    rows: int
    replays: bool = False


class InFlight(Protocol[T_co]):
    """A step of the journal that continues while the task works, as a future."""

    def result(self, timeout: float | None = None) -> T_co:
        """Returns what it came to; ``TimeoutError`` when that takes longer than ``timeout``."""

    def done(self) -> bool:
        """Whether it is over, well or not."""

    def cancel(self) -> bool:
        """Gives it up where it is: what has been published stays published."""


class TaskJournal(Protocol):
    """The record of one partition, and everything that its task publishes.

    Each coroutine returns when the server has confirmed, however long that takes. The loop decides
    in which order they run; an implementation must not do any of them before it is awaited.
    """

    async def claim(self) -> Position:
        """Takes the partition over: from now on the task that had it can write no more."""

    async def write(self, position: Position) -> None:
        """Replaces the record; ``Fenced`` when another task has claimed the partition."""

    async def write_histories(self, rows: pa.RecordBatch) -> None:
        """Stores rows as they are to be when their source gives them again."""

    async def end_histories(self, ids: pa.StringArray) -> None:
        """Deletes what was stored about messages that have ended for good."""

    async def without_stored(self, settlement: Settlement, repeated: Mark | None) -> Settlement:
        """Returns the settlement without what an earlier attempt has stored.

        ``repeated`` is how far the redeliveries are read; ``None`` if there was no earlier attempt.
        """

    async def publish(self, settlement: Settlement, done: Mark) -> Collection[Publication]:
        """Stores the publications, stage after stage; returns those that are not stored.

        A full buffer has discarded them, or the server has refused them because of a message
        (``Publication.refusal``). What observers publish is left out then: it is not true.
        ``done`` is how far the redeliveries are recorded as read: none behind it is deleted.
        """

    def submit(self, step: Coroutine[Any, Any, T]) -> InFlight[T]:
        """Starts a coroutine of this journal, next to the task's own thread."""


class Clock(Protocol):
    """The time, and the way to let it pass."""

    def monotonic(self) -> float:
        """Returns seconds that only ever grow."""

    def now(self) -> datetime:
        """Returns the time of day, with a time zone."""

    def wait(self, wake: threading.Event, seconds: float, /) -> object:
        """Waits until ``wake`` is set, at most so long."""

    def sleep(self, seconds: float, /) -> None:
        """Waits so long, whatever happens meanwhile."""


class SystemClock:
    """The clock of the machine. Asked many times for each chunk, it is a table of functions."""

    monotonic = staticmethod(time.monotonic)
    now = staticmethod(partial(datetime.now, UTC))
    wait = staticmethod(threading.Event.wait)
    sleep = staticmethod(time.sleep)


class Stopping(Protocol):
    """How long a task that is to stop still waits."""

    @property
    def grace_is_over(self) -> bool:
        """Whether the task has been stopping for so long that it lets go of what it has."""


class TaskEvents(Protocol):
    """People who watch the task. Nothing depends on them."""

    def opened(self) -> None:
        """Says that user code is open."""

    def begin_chunk(self, at: datetime, rows: int) -> ChunkRecord:
        """Returns the record of a chunk that was just taken; the task fills it in."""

    def takes_inline(self, vertex: str, inline: bool) -> None:
        """Says whether chunks come from a vertex inline at the moment."""

    def raised(self, errors: RaisedErrors) -> None:
        """Counts the errors of user code."""

    def waits(self, waiting: Waiting | None, halted: str | None) -> None:
        """Says that a system is down, or that the breaker has stopped the vertex."""

    def tell_now_and_then(self) -> None:
        """Tells what has been counted, unless that was just done."""

    def flush(self) -> None:
        """Tells what has been counted."""


class Wake(threading.Event):
    """Set when something arrives for one loop, from any thread. It also wakes the loop's task.

    While it is ``quiet`` it does not: the loop takes its next turn at its own time.
    """

    def __init__(self) -> None:
        super().__init__()
        self.quiet = False
        self.task: threading.Event | None = None
        """What ends a wait of the task."""

    @override
    def set(self) -> None:
        super().set()
        if self.task is not None and not self.quiet:
            self.task.set()


class VertexControl:
    """What people want of a vertex. Words come from any thread."""

    def __init__(self) -> None:
        self.wake = Wake()
        self.paused = False
        """Whether people have paused the vertex."""
        self._resumed = False

    def pause(self, paused: bool) -> None:
        """Has the task take nothing more once it has settled what it holds, or continue."""
        self.paused = paused
        self.wake.set()

    def resume(self) -> None:
        """Has the vertex continue although there were too many dead letters."""
        self._resumed = True
        self.wake.set()

    def follow(self, gate: OutageGate) -> None:
        """Passes on to the gate what was said since the last call; on the task's thread."""
        if self._resumed:
            self._resumed = False
            gate.resume()
