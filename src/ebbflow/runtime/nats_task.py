"""A vertex task on a worker: the chunk loop, given NATS, the system's clock and user code.

The streams of the task are opened here, by what the plan says the vertex reads.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Coroutine, Iterable, Sequence
from dataclasses import replace
from typing import Any, TypeVar

import pyarrow as pa

from ebbflow.accounts.events import Events
from ebbflow.accounts.taps import Taps
from ebbflow.connectors.generator import GeneratorInlet, GeneratorPlan
from ebbflow.engine.account import ChunkObserver
from ebbflow.engine.inlet import Inlet
from ebbflow.engine.position import Mark, Position, Span, known_of_redeliveries
from ebbflow.engine.publications import Publication
from ebbflow.engine.settlement import Settlement
from ebbflow.nats.link import Link, worker_link
from ebbflow.nats.publish import Tally
from ebbflow.runtime.control import Handlers, PauseWatch, listening
from ebbflow.runtime.inline import InlineVertices
from ebbflow.runtime.inline_task import InlineTask, Speaker, open_load
from ebbflow.runtime.intake import Intake, OrderedIntake
from ebbflow.runtime.loop import AT_BUFFER, AT_REQUESTS, AT_SOURCE, ChunkLoop, TaskParts
from ebbflow.runtime.outage_gate import OutageGate, VertexCode
from ebbflow.runtime.plan import VertexPlan
from ebbflow.runtime.ports import Epoch, InFlight, Report, SystemClock
from ebbflow.runtime.source_process.client import SourcePlan
from ebbflow.runtime.source_process.inlet import PulledInlet
from ebbflow.runtime.vertex_parts import decision_rules, late_observers, open_spans
from ebbflow.runtime.worker import WORKER
from ebbflow.streams.ledger import Ledger
from ebbflow.streams.names import Names
from ebbflow.streams.positions import PositionStore
from ebbflow.streams.publish_settlement import publish_settlement, without_stored
from ebbflow.streams.reader import FrameReader

T = TypeVar("T")


class NatsJournal:
    """The journal of one partition in JetStream. Its coroutines run on the link's loop."""

    def __init__(self, plan: VertexPlan, partition: int, link: Link, tally: Tally) -> None:
        self._link = link
        self._plan = plan
        self._names = Names(plan.pipeline)
        self._tally = tally
        self._store = PositionStore(
            link.client, self._names, plan.vertex, partition, plan.run.publish, tally
        )
        self.ledger: Ledger | None = None

    async def claim(self) -> Position:
        """Takes the partition over: from now on the task that had it can write no more."""
        return await self._store.claim(self._plan.run.id)

    async def write(self, position: Position) -> None:
        """Replaces the record; ``Fenced`` when another task has claimed the partition."""
        await self._store.write(position)

    async def write_histories(self, rows: pa.RecordBatch) -> None:
        """Stores rows as they are to be when their source gives them again."""
        assert self.ledger is not None
        await self.ledger.write(rows, self._tally)

    async def end_histories(self, ids: pa.StringArray) -> None:
        """Deletes what was stored about messages that have ended for good."""
        assert self.ledger is not None
        await self.ledger.end(ids, self._tally)

    async def without_stored(self, settlement: Settlement, repeated: Mark | None) -> Settlement:
        """Returns the settlement without what an earlier attempt has stored."""
        return await without_stored(self._link.client, self._names, settlement, repeated)

    async def publish(self, settlement: Settlement, done: Mark) -> Collection[Publication]:
        """Stores the publications, stage after stage; returns those that a full buffer discards."""
        client, retry = self._link.client, self._plan.run.publish
        return await publish_settlement(client, self._names, settlement, retry, self._tally, done)

    def submit(self, step: Coroutine[Any, Any, T]) -> InFlight[T]:
        """Starts a coroutine on the link's loop."""
        return self._link.submit(step)


class VertexTask:
    """One partition of a vertex for one epoch. Made and run on a worker, by one thread."""

    def __init__(self, plan: VertexPlan, partition: int, seconds: float) -> None:
        self._plan = plan
        self._partition = partition
        self._link = worker_link(plan.run.server)
        self._names = Names(plan.pipeline)
        self._clock = SystemClock()
        self._epoch = Epoch(seconds, self._clock)
        tally = Tally()
        self._journal = NatsJournal(plan, partition, self._link, tally)
        self.events = Events(self._link, self._names, plan.vertex, partition, tally)
        self._rules = decision_rules(plan, partition)
        self._resident = WORKER.vertex(plan.whose)
        self.taps = Taps(self._link, self._names, plan.vertex, self._resident.taps(partition))
        self.pauses = PauseWatch(self._names, plan.vertex, self._epoch.pause)
        self.inline = [
            InlineTask(other, plan, partition, self._link, self._clock) for other in plan.inline
        ]
        self.speaker = Speaker(self.events)

    def run(self, code: VertexCode, inline: Sequence[VertexCode] = ()) -> Report:
        """Works until the epoch ends or the driver says stop, and settles what is in flight.

        ``inline`` is the user code of the vertices in ``self.inline``.
        """
        everyone: list[VertexTask | InlineTask] = [self, *self.inline]
        words: Handlers = {
            "stop": self._epoch.stop,
            "shorten": self._epoch.shorten,
            "resume": self._resume,
            "pauses": _each(vertex.pauses.hear for vertex in everyone),
            "tap": _each(vertex.taps.take for vertex in everyone),
            "untap": _each(vertex.taps.end for vertex in everyone),
        }
        # Heard before the claim, so that a stop that comes meanwhile is not missed.
        with listening(self._link, self._names, words):
            for vertex in everyone:
                vertex.pauses.read(self._link)
            return ChunkLoop(self._parts(code, inline), self._epoch).run()

    def _resume(self, vertex: str | None) -> None:
        if vertex in (None, self._plan.vertex):
            self._epoch.resume()
        for other in self.inline:
            if vertex in (None, other.plan.vertex):
                other.control.resume()

    def _parts(self, code: VertexCode, inline: Sequence[VertexCode]) -> TaskParts:
        plan, resident = self._plan, self._resident
        patience = resident.patience("code", plan.policy.on_unavailable)
        return TaskParts(
            journal=self._journal,
            open_intake=self._open_intake,
            gate=OutageGate(code, patience, resident.breaker(plan.policy.breaker)),
            size=resident.pace(self._partition, plan.call_rows),
            rules=self._rules,
            events=self.events,
            clock=self._clock,
            feeders=plan.feeders,
            interval=_interval(plan),
            observers=self._observers(),
            inline=self._inline_vertices(inline),
        )

    def _inline_vertices(self, codes: Sequence[VertexCode]) -> InlineVertices:
        if not codes:
            return InlineVertices()
        load = open_load(self._clock)
        pairs = zip(self.inline, codes, strict=True)
        return InlineVertices(own.vertex(code, load, self.speaker) for own, code in pairs)

    def _observers(self) -> Sequence[ChunkObserver]:
        """Returns who reports on the task's chunks."""
        spans = open_spans(self._plan, self._partition)
        return [
            self.events,
            *late_observers(self._plan),
            *([spans] if spans else []),
            self.taps,
        ]

    def _open_intake(self, done: Span) -> Intake:
        plan, partition, link, wake = self._plan, self._partition, self._link, self._epoch.wake
        redeliveries = open_redeliveries(plan, partition, link, done, wake)
        ledger = self._journal.ledger = open_ledger(plan, partition, link)
        inlet = open_inlet(plan, partition, link, done, wake, ledger, self.events)
        kind = OrderedIntake if plan.ordered else Intake
        return kind(inlet, redeliveries, plan.paused)


def _each(handlers: Iterable[Callable[..., None]]) -> Callable[..., None]:
    """Returns a handler that calls several."""
    every = [*handlers]

    def call(**facts: Any) -> None:
        for handler in every:
            handler(**facts)

    return call


def _interval(plan: VertexPlan) -> float:
    """Returns how long the rows of a trickle are gathered."""
    if plan.streams.serves:
        return AT_REQUESTS
    return AT_SOURCE if plan.is_source else AT_BUFFER


def open_redeliveries(
    plan: VertexPlan, partition: int, link: Link, done: Span, wake: threading.Event
) -> Inlet:
    """Opens the stream of rows that come back to the vertex itself, behind ``done``."""
    names, known = Names(plan.pipeline), known_of_redeliveries(done.known)
    stream = names.redelivery(plan.vertex, partition)
    subject = names.due_subject(plan.vertex, partition)
    return FrameReader(link, stream, subject, done.redelivery, wake, known)


def open_ledger(plan: VertexPlan, partition: int, link: Link) -> Ledger | None:
    """Opens the memory of what a source's messages have been through, if there is a source."""
    if not isinstance(plan.source, SourcePlan):
        return None
    names = Names(plan.pipeline)
    ledger = Ledger(link, names, plan.vertex, partition, plan.partitions, plan.run.publish)
    link.run(ledger.load())
    return ledger


def open_inlet(
    plan: VertexPlan,
    partition: int,
    link: Link,
    done: Span,
    wake: threading.Event,
    ledger: Ledger | None,
    events: Events,
) -> Inlet:
    """Opens the buffer, the generator or the source that the vertex reads, behind ``done``."""
    source, vertex, names = plan.source, plan.vertex, Names(plan.pipeline)
    if isinstance(source, GeneratorPlan):
        return GeneratorInlet(source, vertex, partition, plan.partitions, done.inlet)
    if isinstance(source, SourcePlan):
        assert ledger is not None
        resident = WORKER.vertex(plan.whose)
        patience = resident.patience(f"source {partition}", plan.policy.on_unavailable)
        source = replace(source, systems=plan.policy.systems)
        return PulledInlet(source, vertex, partition, done.inlet, ledger, wake, events, patience)
    buffer, subject = names.buffer(vertex, partition), names.buffer_subject(vertex, partition)
    return FrameReader(link, buffer, subject, done.inlet, wake, done.known)
