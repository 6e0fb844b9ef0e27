"""One partition of a simulated vertex. Each of its turns runs the production chunk loop.

The loop, the rules and the calls of user code are those of a worker. The simulation replaces the
server with one in memory (``world``) and the clock with a virtual one, and adds the incidents that
the test asks for. A turn lasts until the loop would wait; the next turn is due when that wait ends.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ebbflow.connectors.generator import GeneratorInlet, GeneratorPlan
from ebbflow.domain.errors import SimulationError
from ebbflow.engine.account import ChunkRecord
from ebbflow.engine.inlet import NEVER, Inlet, Intake
from ebbflow.engine.outage import Breaker, OutageGate, Patience, Waiting
from ebbflow.engine.position import Mark, Span, known_of_redeliveries, known_of_writers
from ebbflow.engine.verdict import Verdict
from ebbflow.runtime.loop import ChunkLoop, Epoch, GatheringPace, TaskParts
from ebbflow.runtime.operators import UserCode, vertex_variables
from ebbflow.runtime.plan import VertexPlan
from ebbflow.runtime.source_process.companion import SourcePlan
from ebbflow.runtime.vertex_parts import decision_rules
from ebbflow.runtime.worker import Worker
from ebbflow.testing.incidents import Incident, InterruptedVertex, VertexIncidents
from ebbflow.testing.simulated import ChunkNotes
from ebbflow.testing.simulated_source import PulledSource
from ebbflow.testing.world import Crashed, MemoryInlet, MemoryJournal, World
from ebbflow.usercode.calling import in_environment
from ebbflow.usercode.printing import Printed

if TYPE_CHECKING:
    from ebbflow.engine.causes import RaisedErrors

_CHUNK = 1_000
_ENDLESS = 1e9
# After this many writes of one partition at the same virtual time, that time would never pass.
_WRITES_AT_ONE_MOMENT = 1_000
# Seconds after which a simulation ends during an outage that is not one of its incidents: a bug
# that hits every message looks like an outage, and a pipeline would wait forever.
_PATIENCE = 60.0


class FixedSize:
    """Chunks of the same size however long user code takes, so that simulations are repeatable."""

    def __init__(self, limit: int = _CHUNK) -> None:
        self.limit = limit

    def measured(self, verdict: Verdict) -> AbstractContextManager[None]:
        """Measures nothing."""
        return nullcontext()


class _TaskNotes:
    """Receives the reports of a working task; keeps only the errors of opening user code."""

    def __init__(self, notes: ChunkNotes) -> None:
        self._notes = notes

    def opened(self) -> None:
        """Does nothing."""

    def begin_chunk(self, at: Any, rows: int) -> ChunkRecord:
        """Returns the record of a chunk."""
        return ChunkRecord(at, rows)

    def takes_inline(self, vertex: str, inline: bool) -> None:
        """Does nothing: all edges of a simulation are buffers."""

    def raised(self, errors: RaisedErrors) -> None:
        """Keeps the errors that user code raised when it was opened."""
        self._notes.errors.merge(errors)

    def waits(self, waiting: Waiting | None, halted: str | None) -> None:
        """Does nothing: the simulation reads this from the gate's parts."""

    def report_if_due(self) -> None:
        """Does nothing."""

    def flush(self) -> None:
        """Does nothing."""


def _print(printed: Printed) -> None:
    print(printed.text)


class SimulatedTask:
    """One partition of a vertex. It works in turns, and never waits."""

    def __init__(
        self, world: World, plan: VertexPlan, partition: int, incidents: Sequence[Incident]
    ) -> None:
        self.plan, self.partition = plan, partition
        self._world, self._clock = world, world.clock
        self.streams = world.partitions[plan.vertex, partition]
        self.notes = ChunkNotes(self._clock)
        self._incidents = VertexIncidents(plan.vertex, incidents, self._clock)
        self._worker = Worker(lambda _: InterruptedVertex(self._incidents.check_outage))
        self._rules = replace(decision_rules(plan, partition), emits=False)
        self._patience = Patience(plan.policy.on_unavailable, clock=self._clock.monotonic)
        self._breaker = Breaker(plan.policy.breaker)
        self._environment = tuple(vertex_variables(plan, partition).items())
        self._source = self._open_source()
        self._moment, self._writes_before = -1, 0

    def _open_source(self) -> GeneratorInlet | PulledSource | None:
        plan, clock = self.plan, self._clock
        match plan.source:
            case GeneratorPlan() as source:
                return GeneratorInlet(
                    source, plan.vertex, self.partition, plan.partitions, Mark(),
                    clock.monotonic, clock.now,
                )  # fmt: skip
            case SourcePlan() as source:
                patience = Patience(plan.policy.on_unavailable, clock=clock.monotonic)
                source = replace(source, systems=plan.policy.systems)
                return PulledSource(source, self.streams, patience, clock)
            case _:
                return None

    # --- turns ------------------------------------------------------------------------------------

    def has_work(self) -> bool:
        """Returns whether a turn could settle anything now."""
        if self._closed_until() is not None:
            return False
        position, streams = self.streams.latest, self.streams
        unread = position.done.inlet != Mark(len(streams.buffer)) and self._source is None
        if position.held is not None and position.held.due > self._clock.now_ms:
            unread = False
        redelivered = position.done.redelivery != Mark(len(streams.due))
        ready = self._source is not None and self._source.ready_in() <= 0
        return position.replays or unread or redelivered or ready

    def take_turn(self) -> bool:
        """Runs the vertex until it would wait; returns whether anything has changed."""
        epoch, parts = Epoch(_ENDLESS, self._clock), self._parts()
        parts.control.pause(self._incidents.paused_until() is not None)
        self._clock.on_wait = epoch.stop
        self._incidents.begin_turn()
        try:
            with in_environment(self._environment):
                return ChunkLoop(parts, epoch).run().chunks > 0
        except Crashed:
            self._worker.forget_handlers()
            self._restart_source()
            return True

    def _restart_source(self) -> None:
        """Makes the next task read again the messages that the crashed one did not settle."""
        if self._source is not None:
            self._source.mark = self.streams.latest.done.inlet
        if isinstance(self._source, PulledSource):
            self._source.begin_task()

    def next_at(self) -> int | None:
        """Returns when the next turn is due, in milliseconds; ``None`` if there is none."""
        now, position = self._clock.now_ms, self.streams.latest
        times = [due for due, _, _ in self.streams.parked[:1]]
        if position.held is not None:
            times.append(position.held.due)
        if (closed := self._closed_until()) is not None and not self._gives_up():
            times.append(closed)
        if self._source is not None and (wait := self._source.ready_in()) < NEVER:
            times.append(now + math.ceil(wait * 1000))
        return min((time for time in times if time > now), default=None)

    def _gives_up(self) -> bool:
        """Returns whether it waits for a system that is not down because of an incident."""
        waiting = self._patience.waiting
        lasts = waiting is not None and waiting.seconds > _PATIENCE
        return lasts and not self._incidents.outage_ended(within=_PATIENCE)

    def _closed_until(self) -> int | None:
        """Returns the time until which user code must not be called; ``None`` if it may be."""
        if self._breaker.tripped is not None:
            return 0
        if (paused := self._incidents.paused_until()) is not None:
            return paused
        wait = self._patience.ready_in()
        return self._clock.now_ms + math.ceil(wait * 1000) if wait > 0 else None

    # --- parts ------------------------------------------------------------------------------------

    def _parts(self) -> TaskParts:
        plan, clock = self.plan, self._clock
        code = UserCode(plan, _print, isolate=False, worker=self._worker, pause=clock.sleep)
        return TaskParts(
            journal=MemoryJournal(self._world, self.streams, self._step),
            open_intake=self._open_intake,
            gate=OutageGate(code, self._patience, self._breaker),
            size=FixedSize(),
            rules=self._rules,
            events=_TaskNotes(self.notes),
            clock=clock,
            feeders=plan.feeders,
            pace=GatheringPace(0.0, 0),
            observers=[self.notes],
        )

    def _open_intake(self, done: Span) -> Intake:
        streams, plan = self.streams, self.plan
        again = MemoryInlet(streams.due, done.redelivery, known_of_redeliveries(done.known))
        inlet: Inlet
        if self._source is None:
            inlet = MemoryInlet(streams.buffer, done.inlet, known_of_writers(done.known))
        else:
            inlet = self._source
            inlet.mark = done.inlet
        return Intake(inlet, again, plan.paused, plan.ordered)

    def _step(self) -> None:
        """Raises if the task crashes here or never ends. Called before each of its writes."""
        self._incidents.step()
        if self._clock.now_ms != self._moment:
            self._moment, self._writes_before = self._clock.now_ms, self.streams.revision
        if self.streams.revision - self._writes_before > _WRITES_AT_ONE_MOMENT:
            raise SimulationError(
                self.plan.vertex,
                "redelivers messages forever without a delay, so virtual time does not pass",
                "Give its nacks a delay, or max_deliveries.",
            )

    # --- results ----------------------------------------------------------------------------------

    @property
    def pending(self) -> int:
        """The number of messages that have no outcome yet."""
        return self.streams.count_unread()

    @property
    def waiting(self) -> str | None:
        """Why it cannot work now, as text; ``None`` if it can."""
        if self._breaker.tripped is not None:
            return self._breaker.tripped
        waiting = self._patience.waiting
        if waiting is None and self._source is not None:
            waiting = self._source.waiting
        if waiting is None:
            return None
        if waiting.certain:
            return f"waiting for {waiting.what}"
        return f"every message fails with {waiting.what}{self._where()}; fix the code"

    def _where(self) -> str:
        """Returns the line of user code that raised the newest error, if that is known."""
        newest = self.notes.errors.newest_first()
        return f" at {newest[0].where}" if newest and newest[0].where else ""

    def close(self) -> None:
        """Closes user code; a later turn opens it again."""
        with in_environment(self._environment):
            self._worker.close()

    def close_source(self) -> None:
        """Closes the source for good."""
        if isinstance(self._source, PulledSource):
            self._source.end()
