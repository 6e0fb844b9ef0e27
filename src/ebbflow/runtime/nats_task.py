"""A task on a worker: chunk loops with NATS, the system's clock and user code.

One or more vertices share it (``task_sharing``). It opens the streams that their plans say they
read.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace
from functools import partial
from typing import Any

from ebbflow.accounts.events import Events
from ebbflow.accounts.taps import Taps
from ebbflow.connectors.generator import GeneratorInlet, GeneratorPlan
from ebbflow.domain.errors import EbbflowError
from ebbflow.engine.inlet import Inlet, Intake
from ebbflow.engine.outage import OutageGate, VertexCode
from ebbflow.engine.position import Position, Span, known_of_redeliveries, known_of_writers
from ebbflow.nats.api import ApiError
from ebbflow.nats.link import Link, worker_link
from ebbflow.nats.publish import Tally
from ebbflow.runtime.control import Handlers, PauseWatch, listening
from ebbflow.runtime.deciding import ChunkDecider
from ebbflow.runtime.inline import InlineVertex, InlineVertices
from ebbflow.runtime.loop import (
    AT_BUFFER,
    AT_REQUESTS,
    AT_SOURCE,
    ChunkLoop,
    Epoch,
    GatheringPace,
    TaskParts,
    run_loops,
    with_vertex,
)
from ebbflow.runtime.plan import VertexPlan
from ebbflow.runtime.ports import Report, SystemClock, VertexControl
from ebbflow.runtime.source_process.companion import SourcePlan
from ebbflow.runtime.source_process.inlet import PulledInlet
from ebbflow.runtime.task_sharing import TaskLoad, read_idle_seconds
from ebbflow.runtime.vertex_parts import decision_rules, late_observers, open_spans
from ebbflow.runtime.worker import WORKER
from ebbflow.streams.ledger import Ledger
from ebbflow.streams.names import Names
from ebbflow.streams.overdue import RedeliveryPlace, clear_overdue
from ebbflow.streams.publish_settlement import NatsJournal
from ebbflow.streams.reader import FrameReader


def open_journal(plan: VertexPlan, partition: int, link: Link, tally: Tally) -> NatsJournal:
    """Returns the journal of a partition."""
    names, run = Names(plan.pipeline), plan.run
    return NatsJournal(link, names, plan.vertex, partition, run.id, run.publish, tally)


class VertexTask:
    """One partition of one vertex in a task. Made and run on a worker, by one thread."""

    def __init__(self, plan: VertexPlan, partition: int, epoch: Epoch, load: TaskLoad) -> None:
        self.plan = plan
        self._partition = partition
        self._link = worker_link(plan.run.server)
        self._names = names = Names(plan.pipeline)
        self._clock = SystemClock()
        self._epoch = epoch
        self.control = VertexControl()
        tally = Tally()
        self._journal = open_journal(plan, partition, self._link, tally)
        self.events = Events(self._link, names, plan.vertex, partition, tally, load.look)
        self._resident = WORKER.vertex(plan.vertex_of_run)
        self.taps = Taps(self._link, names, plan.vertex, self._resident.taps(partition))
        self.pauses = PauseWatch(names, plan.vertex, self.control.pause)
        spans = open_spans(plan, partition)
        late = late_observers(plan)
        self._observers = [self.events, *late, *([spans] if spans else []), self.taps]

    def resume(self, vertex: str | None) -> None:
        """Lets the vertex continue after too many dead letters, if it or no vertex is named."""
        if vertex in (None, self.plan.vertex):
            self.control.resume()

    def parts(self, code: VertexCode) -> TaskParts:
        """Returns the parts of its loop; only what the worker keeps outlives the epoch."""
        plan, resident = self.plan, self._resident
        patience = resident.patience("code", plan.policy.on_unavailable)
        return TaskParts(
            journal=self._journal,
            open_intake=self._open_intake,
            gate=OutageGate(code, patience, resident.breaker(plan.policy.breaker)),
            size=resident.pace(self._partition, plan.call_rows),
            rules=decision_rules(plan, self._partition),
            events=self.events,
            clock=self._clock,
            feeders=plan.feeders,
            pace=_pace(plan),
            observers=self._observers,
            control=self.control,
        )

    def _open_intake(self, done: Span) -> Intake:
        plan, partition, link, wake = self.plan, self._partition, self._link, self.control.wake
        assert self._journal.claimed is not None
        clear_overdue_redeliveries(plan, partition, link, self._journal.claimed)
        redeliveries = open_redeliveries(plan, partition, link, done, wake)
        ledger = self._journal.ledger = open_ledger(plan, partition, link)
        inlet = open_inlet(plan, partition, link, done, wake, ledger, self.events)
        return Intake(inlet, redeliveries, plan.paused, plan.ordered)


class SharedTask:
    """The task of one partition of one vertex, or of several that share it, for one epoch.

    The vertices run each other inline as far as their plans allow.
    """

    def __init__(self, plans: Sequence[VertexPlan], partition: int, seconds: float) -> None:
        clock = SystemClock()
        self._epoch = Epoch(seconds, clock)
        load = TaskLoad(clock, lambda: self._epoch.rested, read_idle_seconds)
        self.vertices = [VertexTask(plan, partition, self._epoch, load) for plan in plans]
        self._link = worker_link(plans[0].run.server)
        self._names = Names(plans[0].pipeline)

    def run(self, codes: Sequence[VertexCode]) -> Report:
        """Runs until the epoch ends or the driver stops it, and settles what is in flight.

        ``codes`` are the user code of the vertices. Returns the report of the first vertex;
        ``replays`` if any vertex leaves a chunk to the next task.
        """
        # Listens before the claim, so that a stop that arrives meanwhile is not missed.
        with listening(self._link, self._names, self._handlers()), ExitStack() as opened:
            for vertex in self.vertices:
                vertex.pauses.read(self._link)
            loops = self._open_loops(codes, opened)
            opened.pop_all()
            # Sinks first: they are open before their first message arrives.
            reports = run_loops(loops[::-1], self._epoch)
            return replace(reports[-1], replays=any(report.replays for report in reports))

    def _handlers(self) -> Handlers:
        every = self.vertices
        return {
            "stop": self._epoch.stop,
            "shorten": self._shorten,
            "resume": _each(vertex.resume for vertex in every),
            "pauses": _each(vertex.pauses.receive for vertex in every),
            "tap": _each(vertex.taps.take for vertex in every),
            "untap": _each(vertex.taps.end for vertex in every),
        }

    def _shorten(self, seconds: float, vertex: str | None) -> None:
        if vertex in (None, self.vertices[0].plan.vertex):
            self._epoch.shorten(seconds)

    def _open_loops(self, codes: Sequence[VertexCode], opened: ExitStack) -> list[ChunkLoop]:
        """Claims the partitions and opens their streams; ``opened`` closes them if one fails."""
        parts = [v.parts(code) for v, code in zip(self.vertices, codes, strict=True)]
        inline: dict[str, InlineVertex] = {}
        loops: dict[str, ChunkLoop] = {}
        for own in parts:
            name = own.rules.place.vertex
            inline[name] = _inline_vertex(own, partial(_few_wait, loops, name))
        for vertex, own in zip(self.vertices, parts, strict=True):
            plan = vertex.plan
            runs = [inline[name] for name in plan.inline if name in inline]
            others = InlineVertices(runs, plan.inline_replays) if runs else None
            own, name = replace(own, inline=others), plan.vertex
            loop = loops[name] = with_vertex(name, partial(ChunkLoop, own, self._epoch))
            opened.callback(loop.close)
        return [*loops.values()]


def _few_wait(loops: Mapping[str, ChunkLoop], name: str) -> bool:
    return loops[name].few_wait


def _inline_vertex(parts: TaskParts, few_wait: Callable[[], bool]) -> InlineVertex:
    """Returns a vertex in the form in which other loops of its task run it."""
    decider = ChunkDecider(parts.rules, parts.gate, parts.size, parts.clock, parts.observers)
    return InlineVertex(
        parts.rules.place.vertex,
        parts.gate,
        decider,
        few_wait,
        parts.events,
        parts.clock,
        parts.control,
        parts.observers,
    )


def _each(handlers: Iterable[Callable[..., None]]) -> Callable[..., None]:
    """Returns a handler that calls several."""
    every = [*handlers]

    def call(**facts: Any) -> None:
        for handler in every:
            handler(**facts)

    return call


def _pace(plan: VertexPlan) -> GatheringPace:
    """Returns how long the rows of small chunks gather."""
    if plan.streams.serves:
        return AT_REQUESTS
    return AT_SOURCE if plan.is_source else AT_BUFFER


def clear_overdue_redeliveries(
    plan: VertexPlan, partition: int, link: Link, position: Position
) -> None:
    """Handles redeliveries that a server no longer moves because it was killed."""
    names, known = Names(plan.pipeline), position.done.known
    place = RedeliveryPlace(names, plan.vertex, partition, known, position.chunks)
    # The next task tries again, and this task will notice any lasting problem of the server.
    with suppress(EbbflowError, ApiError, TimeoutError):
        link.run(clear_overdue(link.client, place, time.time()))


def open_redeliveries(
    plan: VertexPlan, partition: int, link: Link, done: Span, wake: threading.Event
) -> Inlet:
    """Opens the stream of the vertex's own redeliveries, behind ``done``."""
    names, known = Names(plan.pipeline), known_of_redeliveries(done.known)
    stream = names.redelivery(plan.vertex, partition)
    subject = names.due_subject(plan.vertex, partition)
    return FrameReader(link, stream, subject, done.redelivery, wake, known)


def open_ledger(plan: VertexPlan, partition: int, link: Link) -> Ledger | None:
    """Opens the ledger with the histories of a source's messages, if there is a source."""
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
        resident = WORKER.vertex(plan.vertex_of_run)
        patience = resident.patience(f"source {partition}", plan.policy.on_unavailable)
        source = replace(source, systems=plan.policy.systems)
        return PulledInlet(source, vertex, partition, done.inlet, ledger, wake, events, patience)
    buffer, subject = names.buffer(vertex, partition), names.buffer_subject(vertex, partition)
    known = known_of_writers(done.known)
    return FrameReader(link, buffer, subject, done.inlet, wake, known)
