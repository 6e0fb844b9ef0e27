"""A vertex task on a worker: the chunk loop, given NATS, the system's clock and user code.

The streams of the task are opened here, by what the plan says the vertex reads.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

from ebbflow.accounts.events import Events
from ebbflow.accounts.taps import Taps
from ebbflow.connectors.generator import GeneratorInlet, GeneratorPlan
from ebbflow.domain.errors import EbbflowError
from ebbflow.engine.account import ChunkObserver
from ebbflow.engine.blame import Outage
from ebbflow.engine.inlet import Inlet, Intake
from ebbflow.engine.outage import OutageGate, VertexCode
from ebbflow.engine.position import Position, Span, known_of_redeliveries, known_of_writers
from ebbflow.nats.api import ApiError
from ebbflow.nats.link import Link, worker_link
from ebbflow.nats.publish import Tally
from ebbflow.runtime.control import Handlers, PauseWatch, listening
from ebbflow.runtime.inline import InlineVertices
from ebbflow.runtime.inline_task import InlineTask, Speaker, open_load
from ebbflow.runtime.loop import AT_BUFFER, AT_REQUESTS, AT_SOURCE, ChunkLoop, Epoch, TaskParts
from ebbflow.runtime.plan import VertexPlan
from ebbflow.runtime.ports import Report, SystemClock
from ebbflow.runtime.source_process.companion import SourcePlan
from ebbflow.runtime.source_process.inlet import PulledInlet
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
    """One partition of a vertex for one epoch. Made and run on a worker, by one thread."""

    def __init__(self, plan: VertexPlan, partition: int, seconds: float) -> None:
        self._plan = plan
        self._partition = partition
        self._link = worker_link(plan.run.server)
        self._names = Names(plan.pipeline)
        self._clock = SystemClock()
        self._epoch = Epoch(seconds, self._clock)
        tally = Tally()
        self._journal = open_journal(plan, partition, self._link, tally)
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
            "answers": self._answer,
            "outage": self._meet,
            "halt": self._halt,
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

    def _answer(self, vertex: str) -> None:
        if vertex == self._plan.vertex:
            self._epoch.answer()

    def _meet(self, vertex: str, what: str, certain: bool) -> None:
        if vertex == self._plan.vertex:
            self._epoch.meet(Outage(what, certain))

    def _halt(self, vertex: str, why: str) -> None:
        if vertex == self._plan.vertex:
            self._epoch.halt(why)

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

    def _inline_vertices(self, codes: Sequence[VertexCode]) -> InlineVertices | None:
        if not codes:
            return None
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
        assert self._journal.claimed is not None
        clear_overdue_redeliveries(plan, partition, link, self._journal.claimed)
        redeliveries = open_redeliveries(plan, partition, link, done, wake)
        ledger = self._journal.ledger = open_ledger(plan, partition, link)
        inlet = open_inlet(plan, partition, link, done, wake, ledger, self.events)
        return Intake(inlet, redeliveries, plan.paused, plan.ordered)


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


def clear_overdue_redeliveries(
    plan: VertexPlan, partition: int, link: Link, position: Position
) -> None:
    """Sees to redeliveries that a server which was killed does not move any more."""
    names, known = Names(plan.pipeline), position.done.known
    place = RedeliveryPlace(names, plan.vertex, partition, known, position.chunks)
    # The next task tries again; whatever is wrong with the server, this one will hear of it.
    with suppress(EbbflowError, ApiError, TimeoutError):
        link.run(clear_overdue(link.client, place, time.time()))


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
    known = known_of_writers(done.known)
    return FrameReader(link, buffer, subject, done.inlet, wake, known)
