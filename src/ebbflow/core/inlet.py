"""What a vertex task reads from: a buffer's frames or a source, behind one small interface."""

from __future__ import annotations

from typing import Protocol

import pyarrow as pa

from ebbflow.core.copies import Known
from ebbflow.core.outage import Waiting
from ebbflow.core.position import Mark


class Inlet(Protocol):
    """A replayable stream of rows. Used on a worker, by the task's own thread only."""

    mark: Mark
    """Behind the last row that was taken."""

    known: Known
    """What was read of each writer's last chunk; nothing, unless the stream may hold copies."""

    passed: Mark | None
    """The mark behind which there were only copies so far, if there were any."""

    @property
    def waiting(self) -> Waiting | None:
        """What its system is waited for, if that is away."""

    @property
    def exhausted(self) -> bool:
        """Whether nothing more will ever come."""

    def ready_in(self) -> float:
        """Seconds until it is worth asking again; arrivals may wake the task before."""

    def take(self, limit: int) -> list[pa.RecordBatch]:
        """Up to ``limit`` rows that are there already."""

    def take_until(self, end: Mark) -> list[pa.RecordBatch]:
        """Exactly the rows up to ``end``, with the ids they had before."""

    def forget(self, done: Mark) -> None:
        """Everything up to ``done`` is settled and need not be kept."""

    def close(self, for_good: bool = False) -> None:
        """The task ends; ``for_good`` when no other follows it."""
