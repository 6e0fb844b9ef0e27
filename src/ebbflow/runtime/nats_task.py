"""A vertex task on a worker: the chunk loop, given NATS, the system's clock and user code.

The streams of the task are opened here, by what the plan says the vertex reads.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Collection, Coroutine
from dataclasses import replace
from typing import Any, TypeVar

import pyarrow as pa
from nats.aio.msg import Msg

from ebbflow.connectors.generator.source import GeneratorInlet, GeneratorPlan
from ebbflow.engine.inlet import Inlet
from ebbflow.engine.position import Mark, Position, Span, known_of_moved
from ebbflow.engine.publications import Place, Publication
from ebbflow.engine.settlement import Settlement
from ebbflow.nats.link import Link, worker_link
from ebbflow.nats.publish import Tally
from ebbflow.runtime.chunk_size import Pace
from ebbflow.runtime.deciding import DecisionRules, Times, no_times, source_times
from ebbflow.runtime.events import Events
from ebbflow.runtime.gate import Gate, VertexCode
from ebbflow.runtime.gathering import AT_BUFFER, AT_REQUESTS, AT_SOURCE
from ebbflow.runtime.handlers import breaker_of, lasting, patience_of
from ebbflow.runtime.intake import Intake, OrderedIntake
from ebbflow.runtime.journal import InFlight, Report, SystemClock
from ebbflow.runtime.pause_watch import PauseWatch
from ebbflow.runtime.plan import VertexPlan
from ebbflow.runtime.source_process.client import SourcePlan
from ebbflow.runtime.source_process.inlet import PulledInlet
from ebbflow.runtime.spans import open_spans
from ebbflow.runtime.taps import Tap, Taps
from ebbflow.runtime.task import ChunkLoop, TaskParts
from ebbflow.runtime.turn import STOP, Turn, resumes, turn_of
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
            link.client, self._names, plan.vertex, partition, plan.publish, tally
        )
        self.ledger: Ledger | None = None

    async def claim(self) -> Position:
        """Takes the partition over: from now on the task that had it can write no more."""
        return await self._store.claim(self._plan.run)

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
        client, retry = self._link.client, self._plan.publish
        return await publish_settlement(client, self._names, settlement, retry, self._tally, done)

    def submit(self, step: Coroutine[Any, Any, T]) -> InFlight[T]:
        """Starts a coroutine on the link's loop."""
        return self._link.submit(step)


class VertexTask:
    """One partition of a vertex for one epoch. Made and run on a worker, by one thread."""

    def __init__(self, plan: VertexPlan, partition: int, seconds: float) -> None:
        self._plan = plan
        self._partition = partition
        self._link = worker_link(plan.server)
        self._names = Names(plan.pipeline)
        self._clock = SystemClock()
        self._turn = Turn(seconds, self._clock)
        tally = Tally()
        self._journal = NatsJournal(plan, partition, self._link, tally)
        self.events = Events(self._link, self._names, plan.vertex, partition, tally)
        self._rules = _rules(plan, partition)
        known = lasting(plan.whose, ("taps", partition), dict[str, Tap])
        self._taps = Taps(self._link, self._names, self._rules.place, self._clock, known)
        self._pauses = PauseWatch(self._names, plan.vertex, self._turn.pause)

    def run(self, code: VertexCode) -> Report:
        """Works until the epoch ends or the driver says stop, and settles what is in hand."""
        # Subscribed before the claim, so that a stop that comes meanwhile is not missed.
        subject = self._names.control_subject
        words = self._link.run(self._link.client.subscribe(subject, cb=self._on_control))
        try:
            self._pauses.read(self._link)
            return ChunkLoop(self._parts(code), self._turn).run()
        finally:
            with contextlib.suppress(Exception):  # else it would take the place of a real error
                self._link.run(words.unsubscribe(), timeout=5)

    async def _on_control(self, message: Msg) -> None:
        word, seconds = message.data, turn_of(message.data)
        if word == STOP:
            self._turn.stop()
        elif resumes(word, self._plan.vertex):
            self._turn.resume()
        elif seconds is not None:
            self._turn.shorten(seconds)
        else:
            self._pauses.hear(word)
            self._taps.hear(word)

    def _parts(self, code: VertexCode) -> TaskParts:
        plan = self._plan
        patience = patience_of(plan.whose, "code", plan.on_unavailable)
        return TaskParts(
            journal=self._journal,
            open_intake=self._open_intake,
            gate=Gate(code, patience, breaker_of(plan.whose, plan.breaker)),
            size=lasting(plan.whose, ("pace", self._partition), lambda: Pace(plan.call_rows)),
            rules=self._rules,
            events=self.events,
            clock=self._clock,
            feeders=plan.feeders,
            interval=_interval(plan),
            tracing=open_spans(plan, self._partition),
            show=self._taps.show,
        )

    def _open_intake(self, done: Span) -> Intake:
        plan, partition, link, wake = self._plan, self._partition, self._link, self._turn.wake
        redeliveries = open_redeliveries(plan, partition, link, done, wake)
        ledger = self._journal.ledger = open_ledger(plan, partition, link)
        inlet = open_inlet(plan, partition, link, done, wake, ledger, self.events)
        kind = OrderedIntake if plan.ordered else Intake
        return kind(inlet, redeliveries, plan.paused)


def place_of(plan: VertexPlan, partition: int) -> Place:
    """Returns where the chunks of a partition are settled."""
    return Place(
        plan.vertex,
        partition,
        plan.edges,
        plan.max_payload,
        plan.bucket,
        plan.trail,
        plan.audit is not None,
    )


def _rules(plan: VertexPlan, partition: int) -> DecisionRules:
    place = place_of(plan, partition)
    # An ordered vertex must not pass on what a held row may still have to come before.
    emits = bool(plan.edges) and not plan.ordered
    return DecisionRules(place, plan.on_error, plan.largest_output, emits, _times(plan))


def _interval(plan: VertexPlan) -> float:
    """Returns how long the rows of a trickle are gathered."""
    if plan.serves:
        return AT_REQUESTS
    return AT_SOURCE if plan.is_source else AT_BUFFER


def _times(plan: VertexPlan) -> Times:
    if not plan.is_source:
        return no_times
    return source_times


def open_redeliveries(
    plan: VertexPlan, partition: int, link: Link, done: Span, wake: threading.Event
) -> Inlet:
    """Opens the stream of rows that come back to the vertex itself, behind ``done``."""
    names, known = Names(plan.pipeline), known_of_moved(done.known)
    stream = names.redelivery(plan.vertex, partition)
    subject = names.due_subject(plan.vertex, partition)
    return FrameReader(link, stream, subject, done.redelivery, wake, known)


def open_ledger(plan: VertexPlan, partition: int, link: Link) -> Ledger | None:
    """Opens the memory of what a source's messages have been through, if there is a source."""
    if not isinstance(plan.source, SourcePlan):
        return None
    names = Names(plan.pipeline)
    ledger = Ledger(link, names, plan.vertex, partition, plan.partitions, plan.publish)
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
        patience = patience_of(plan.whose, f"source {partition}", plan.on_unavailable)
        source = replace(source, systems=plan.systems)
        return PulledInlet(source, vertex, partition, done.inlet, ledger, wake, events, patience)
    buffer, subject = names.buffer(vertex, partition), names.buffer_subject(vertex, partition)
    return FrameReader(link, buffer, subject, done.inlet, wake, done.known)
