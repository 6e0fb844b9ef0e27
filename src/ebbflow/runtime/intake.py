"""What a task takes next: rows of its inlet, of its redeliveries, or of both.

An ordered vertex takes one frame at a time and nothing while a row is held, so that nothing is
overtaken. While a system is away, a probe is a single row, a new one and an old one in turns: bad
messages at the head of one of them cannot hide that the system is back.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, replace

import pyarrow as pa

from ebbflow.buffers.ledger import Ledger
from ebbflow.buffers.names import Names
from ebbflow.buffers.reader import FrameReader
from ebbflow.connectors.generator.source import GeneratorInlet, GeneratorPlan
from ebbflow.core.inlet import Inlet
from ebbflow.core.position import Mark, Span
from ebbflow.nats.link import Link
from ebbflow.runtime.events import Events
from ebbflow.runtime.handlers import patience_of
from ebbflow.runtime.plan import VertexPlan
from ebbflow.runtime.source_process.client import SourcePlan
from ebbflow.runtime.source_process.inlet import PulledInlet


@dataclass(frozen=True, slots=True)
class Taken:
    """Rows that become one chunk; ``ordered`` if the order among them counts."""

    batches: list[pa.RecordBatch]
    ordered: bool = False


class Intake:
    """Both streams that a task reads, opened where its position is. Used by the task's thread.

    ``ledger`` is the memory of what a source's messages have been through, if there is a source.
    """

    def __init__(
        self,
        plan: VertexPlan,
        partition: int,
        link: Link,
        done: Span,
        wake: threading.Event,
        events: Events,
    ) -> None:
        self._plan = plan
        self._partition = partition
        self._link = link
        self._wake = wake
        self._events = events
        self._names = Names(plan.pipeline)
        self._probes = 0
        self.ledger: Ledger | None = None
        vertex = plan.vertex
        stream, due = (
            self._names.redelivery(vertex, partition),
            self._names.due_subject(vertex, partition),
        )
        self.redeliveries = FrameReader(link, stream, due, done.redelivery, wake)
        self.inlet: Inlet = self._opened(done)

    def _opened(self, done: Span) -> Inlet:
        plan, partition, names = self._plan, self._partition, self._names
        source, vertex = plan.source, plan.vertex
        if isinstance(source, GeneratorPlan):
            return GeneratorInlet(source, vertex, partition, plan.partitions, done.inlet)
        if isinstance(source, SourcePlan):
            return self._opened_source(source, done.inlet)
        buffer, subject = names.buffer(vertex, partition), names.buffer_subject(vertex, partition)
        return FrameReader(self._link, buffer, subject, done.inlet, self._wake, done.known)

    def _opened_source(self, source: SourcePlan, start: Mark) -> PulledInlet:
        plan, partition = self._plan, self._partition
        self.ledger = Ledger(
            self._link, self._names, plan.vertex, partition, plan.partitions, plan.publish
        )
        self._link.run(self.ledger.load())
        return PulledInlet(
            replace(source, systems=plan.systems),
            plan.vertex,
            partition,
            start,
            self.ledger,
            self._wake,
            self._events,
            patience_of(plan.whose, f"source {partition}", plan.on_unavailable),
        )

    @property
    def end(self) -> Span:
        """Behind the last rows that were taken."""
        return Span(self.inlet.mark, self.redeliveries.mark, self.inlet.known)

    def take_again(self, intent: Span) -> Taken | None:
        """Exactly the rows up to ``intent``; ``None`` if all of them come again from a source."""
        redelivered = self.redeliveries.take_until(intent.redelivery)
        batches = [*redelivered, *self.inlet.take_until(intent.inlet)]
        return Taken(batches, self._plan.ordered and not redelivered) if batches else None

    def take(self, limit: int, probing: bool, held: bool) -> Taken | None:
        """Up to ``limit`` rows that are here; one if ``probing``. ``held`` if a row holds up."""
        if self._plan.ordered:
            return self._take_in_order(1 if probing else limit, held)
        return self._take_one() if probing else self._take_both(limit)

    def _take_both(self, limit: int) -> Taken | None:
        redelivered = self.redeliveries.take(max(1, limit // 2))
        room = limit - sum(batch.num_rows for batch in redelivered)
        batches = [*redelivered, *self._take_new(max(1, room))]
        return Taken(batches) if batches else None

    def _take_one(self) -> Taken | None:
        self._probes += 1
        takes = (self._take_new, self.redeliveries.take)
        for take in takes if self._probes % 2 else reversed(takes):
            if batches := take(1):
                return Taken(batches)
        return None

    def _take_new(self, limit: int) -> list[pa.RecordBatch]:
        return [] if self._plan.paused else self.inlet.take(limit)

    def _take_in_order(self, limit: int, held: bool) -> Taken | None:
        """One frame at most; letters that are sent back have no order."""
        if redelivered := self.redeliveries.take(limit):
            return Taken(redelivered)
        if held:
            return None
        assert isinstance(self.inlet, FrameReader)
        fresh = self.inlet.take(limit, most_frames=1)
        return Taken(fresh, ordered=True) if fresh else None

    def forget(self, done: Span) -> None:
        """Everything up to ``done`` is settled and need not be kept."""
        self.inlet.forget(done.inlet)
        self.redeliveries.forget(done.redelivery)

    def close(self, for_good: bool) -> None:
        """The task ends; ``for_good`` when no other follows it."""
        self.inlet.close(for_good=for_good)
        self.redeliveries.close()
