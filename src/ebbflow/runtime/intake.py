"""The intake of a task: takes rows from its inlet, from its redeliveries, or from both.

An ordered vertex takes one frame at a time and nothing while a row is held, so that nothing is
overtaken. While a system is away, a probe is a single row, a new one and an old one in turns: bad
messages at the head of one of them cannot hide that the system is back.
"""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa

from ebbflow.core.inlet import Inlet
from ebbflow.core.position import Span
from ebbflow.runtime.held import ANY_ORDER, STRICT_ORDER, RowOrder

_PAUSED_FOR = 1.0


@dataclass(frozen=True, slots=True)
class Taken:
    """Rows that become one chunk, and what the order among them means."""

    batches: list[pa.RecordBatch]
    order: RowOrder = ANY_ORDER


class Intake:
    """Both streams that a task reads, opened where its position is. Used by the task's thread.

    A ``paused`` one takes nothing new.
    """

    def __init__(self, inlet: Inlet, redeliveries: Inlet, paused: bool = False) -> None:
        self.inlet = inlet
        self.redeliveries = redeliveries
        self._paused = paused
        self._probes = 0

    @property
    def end(self) -> Span:
        """Behind the last rows that were taken."""
        return Span(self.inlet.mark, self.redeliveries.mark, self.inlet.known)

    def take_again(self, intent: Span) -> Taken | None:
        """Returns exactly the rows up to ``intent``; ``None`` if all come again from a source."""
        redelivered = self.redeliveries.take_until(intent.redelivery)
        batches = [*redelivered, *self.inlet.take_until(intent.inlet)]
        return Taken(batches, self._order_of(redelivered)) if batches else None

    def _order_of(self, redelivered: list[pa.RecordBatch]) -> RowOrder:
        return ANY_ORDER

    def take(self, limit: int, held: bool) -> Taken | None:
        """Returns up to ``limit`` rows that are here. ``held`` if a row holds up an order."""
        redelivered = self.redeliveries.take(max(1, limit // 2))
        room = limit - sum(batch.num_rows for batch in redelivered)
        batches = [*redelivered, *self._take_new(max(1, room))]
        return Taken(batches) if batches else None

    def take_probe(self, held: bool) -> Taken | None:
        """Returns a single row, with which to find out whether a system is back."""
        self._probes += 1
        takes = (self._take_new, self.redeliveries.take)
        for take in takes if self._probes % 2 else reversed(takes):
            if batches := take(1):
                return Taken(batches)
        return None

    def _take_new(self, limit: int) -> list[pa.RecordBatch]:
        return [] if self._paused else self.inlet.take(limit)

    def ready_in(self) -> float:
        """Returns the seconds until there may be something without anything arriving."""
        return _PAUSED_FOR if self._paused else self.inlet.ready_in()

    def forget(self, done: Span) -> None:
        """Has everything up to ``done`` deleted, which is recorded as settled."""
        self.inlet.forget(done.inlet)
        self.redeliveries.forget(done.redelivery)

    def close(self, for_good: bool) -> None:
        """Ends the reading; ``for_good`` when no other task follows."""
        self.inlet.close(for_good=for_good)
        self.redeliveries.close()


class OrderedIntake(Intake):
    """The streams of an ordered vertex: one frame at most, or letters, which have no order."""

    def _order_of(self, redelivered: list[pa.RecordBatch]) -> RowOrder:
        return ANY_ORDER if redelivered else STRICT_ORDER

    def take(self, limit: int, held: bool) -> Taken | None:
        """Returns letters that are sent back, else rows of one frame unless one is held."""
        if redelivered := self.redeliveries.take(limit):
            return Taken(redelivered)
        if held:  # whatever was taken now would overtake the held row
            return None
        fresh = self.inlet.take_frame(limit)
        return Taken(fresh, STRICT_ORDER) if fresh else None

    def take_probe(self, held: bool) -> Taken | None:
        """Returns a single row; the held one comes first here, too."""
        return self.take(1, held)
