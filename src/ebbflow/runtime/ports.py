"""The interfaces of the chunk loop: its journal, its clock, its control and its events.

``ChunkLoop`` carries the guarantees and knows none of the systems behind it. On a worker these
protocols are NATS and the system's clock (``nats_task``). In the crash tests they are an in-memory
server, where anything may stop between any two steps, and a clock that the test sets forward.
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
    """A task's report to the driver at the end of its epoch.

    ``replays`` if the next task has to replay a chunk that was begun.
    """

    ended: str
    chunks: int
    rows: int
    replays: bool = False


class InFlight(Protocol[T_co]):
    """A step of the journal that continues while the task works, as a future."""

    def result(self, timeout: float | None = None) -> T_co:
        """Returns its result; ``TimeoutError`` if that takes longer than ``timeout``."""

    def done(self) -> bool:
        """Whether it is over, successfully or not."""

    def cancel(self) -> bool:
        """Gives it up where it is: finished publications stay published."""


class TaskJournal(Protocol):
    """The record of one partition, and everything that its task publishes.

    Each coroutine returns when the server has confirmed, however long that takes. The loop decides
    their order; an implementation must not start any of them before it is awaited.
    """

    async def claim(self) -> Position:
        """Takes the partition over: the previous task can no longer write."""

    async def write(self, position: Position) -> None:
        """Replaces the record; ``Fenced`` when another task has claimed the partition."""

    async def write_histories(self, rows: pa.RecordBatch) -> None:
        """Stores rows in the state they must have when their source redelivers them."""

    async def end_histories(self, ids: pa.StringArray) -> None:
        """Deletes the histories of messages that have ended for good."""

    async def without_stored(self, settlement: Settlement, repeated: Mark | None) -> Settlement:
        """Returns the settlement without publications that an earlier attempt has stored.

        ``repeated`` is how far the redeliveries are read; ``None`` if there was no earlier attempt.
        """

    async def publish(self, settlement: Settlement, done: Mark) -> Collection[Publication]:
        """Stores the publications, stage after stage; returns those that are not stored.

        A full buffer has discarded them, or the server has refused them because of a message
        (``Publication.refusal``). The publications of observers are left out then: they are not
        true. ``done`` is how far the redeliveries are recorded as read: later ones must not be
        deleted.
        """

    def submit(self, step: Coroutine[Any, Any, T]) -> InFlight[T]:
        """Starts a coroutine of this journal, outside the task's thread."""


class Clock(Protocol):
    """The time, and ways to wait."""

    def monotonic(self) -> float:
        """Returns seconds that only ever grow."""

    def now(self) -> datetime:
        """Returns the time of day, with a time zone."""

    def wait(self, wake: threading.Event, seconds: float, /) -> object:
        """Waits until ``wake`` is set, at most that long."""

    def sleep(self, seconds: float, /) -> None:
        """Waits that long; no event ends the wait."""


class SystemClock:
    """The clock of the machine. It has no Python methods, as every chunk calls it many times."""

    monotonic = staticmethod(time.monotonic)
    now = staticmethod(partial(datetime.now, UTC))
    wait = staticmethod(threading.Event.wait)
    sleep = staticmethod(time.sleep)


class Stopping(Protocol):
    """How long a task that is to stop still waits."""

    @property
    def grace_is_over(self) -> bool:
        """Whether the task has been stopping so long that it must give up its chunk in flight."""


class TaskEvents(Protocol):
    """Reports on the task for people. No outcome depends on them."""

    def opened(self) -> None:
        """Reports that user code is open."""

    def begin_chunk(self, at: datetime, rows: int) -> ChunkRecord:
        """Returns the record of a chunk that was just taken; the task fills it in."""

    def takes_inline(self, vertex: str, inline: bool) -> None:
        """Reports whether chunks currently come from a vertex inline."""

    def raised(self, errors: RaisedErrors) -> None:
        """Counts the errors of user code."""

    def waits(self, waiting: Waiting | None, halted: str | None) -> None:
        """Reports that a system is down, or that the breaker has stopped the vertex."""

    def report_if_due(self) -> None:
        """Reports the counts, unless that was just done."""

    def flush(self) -> None:
        """Reports the counts."""


class Wake(threading.Event):
    """Set from any thread when something arrives for one loop. It also wakes the loop's task.

    While it is ``quiet`` it does not wake the task: the loop waits for its next turn.
    """

    def __init__(self) -> None:
        super().__init__()
        self.quiet = False
        self.task: threading.Event | None = None
        """The event that ends a wait of the task."""

    @override
    def set(self) -> None:
        super().set()
        if self.task is not None and not self.quiet:
            self.task.set()


class VertexControl:
    """The commands of people for a vertex. They arrive on any thread."""

    def __init__(self) -> None:
        self.wake = Wake()
        self.paused = False
        """Whether people have paused the vertex."""
        self._resumed = False

    def pause(self, paused: bool) -> None:
        """Makes the task settle what it has and take nothing more, or continue."""
        self.paused = paused
        self.wake.set()

    def resume(self) -> None:
        """Makes the vertex continue although there were too many dead letters."""
        self._resumed = True
        self.wake.set()

    def follow(self, gate: OutageGate) -> None:
        """Applies commands since the last call to the gate. Called on the task's thread."""
        if self._resumed:
            self._resumed = False
            gate.resume()
