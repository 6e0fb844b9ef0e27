"""Inline edges: a task runs the next vertex on its own outputs, in memory, where that is cheaper.

A hop through a buffer costs a frame, two confirmed writes and a dozen wake-ups, whether it carries
one row or a thousand. So after a vertex has decided a chunk, its task may run the user code of the
next vertex right away. What that vertex decides becomes part of the chunk: its dead letters,
answers and outputs go where they always go, and its redeliveries to its own buffer, from where its
own task parks them. All of it is published in the stages of ``engine.settlement`` and confirmed
before the chunk is done. A nack at the second vertex redelivers the second vertex's input only, as
it does through a buffer.

Each chunk chooses again which edges it takes inline. The intent names them, so a replay makes the
same choice and the same ids. The vertex's own task keeps reading its buffer and its redeliveries:
an inline edge is one more outlet of the task before it, and nothing is converted when it changes.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Protocol

from ebbflow.engine.account import ChunkObserver
from ebbflow.engine.blame import POSTPONED
from ebbflow.engine.frames import Rows
from ebbflow.engine.outage import OutageGate
from ebbflow.engine.publications import EdgeRows
from ebbflow.engine.settlement import InlineSettlement, Settlement
from ebbflow.engine.verdict import Verdict
from ebbflow.runtime.deciding import ChunkDecider, ChunkFacts, never_publish
from ebbflow.runtime.ports import Clock, TaskEvents, VertexControl

_NOT_OPEN = "its user code could not be opened here"


class InlineRule(Protocol):
    """Says whether an edge is taken inline, and learns what that took."""

    def takes(self, rows: int, is_open: bool) -> bool:
        """Whether a chunk of this many rows is taken inline; never while the gate is closed."""

    def took(self, rows: int, seconds: float) -> None:
        """Learns how long the vertex took for a chunk."""

    def is_worked_off(self) -> bool:
        """Whether the vertex's own task has worked off what chunks have left in its buffer."""


@dataclass(frozen=True, slots=True)
class InlineVertex:
    """A vertex that the task of another vertex can run. Used by that task's thread.

    ``gate``, ``decider``, ``events`` and ``observers`` are those of this vertex in that task,
    ``control`` is what people want of it, ``rule`` says when it is run there, ``around`` is entered
    while its user code is called, and ``tell`` has the vertex's own tasks know how it went.
    """

    name: str
    gate: OutageGate
    decider: ChunkDecider
    rule: InlineRule
    events: TaskEvents
    clock: Clock
    control: VertexControl = field(default_factory=VertexControl)
    observers: Sequence[ChunkObserver] = ()
    around: Callable[[], AbstractContextManager[object]] = nullcontext
    tell: Callable[[OutageGate], None] = lambda gate: None

    def takes(self, rows: int) -> bool:
        """Whether a chunk of this many rows is given to it inline."""
        self.control.follow(self.gate)
        return self.rule.takes(rows, self._is_open())

    def _is_open(self) -> bool:
        # In an outage the vertex's own task tries single messages. It has worked off the buffer
        # only when the outage is over.
        if self.gate.probing and not self.rule.is_worked_off():
            return False
        with self.around():
            return self.gate.open()

    def decide(self, rows: Rows) -> Verdict:
        """Returns what the vertex decides about rows that the task has just made."""
        record = self.events.begin_chunk(self.clock.now(), len(rows))
        began = self.clock.monotonic()
        with self.around():
            verdict = self._decide(rows)
        record.call = self.clock.monotonic() - began
        record.end()
        self.rule.took(len(rows), record.call)
        self.tell(self.gate)
        return verdict

    def _decide(self, rows: Rows) -> Verdict:
        # Only a replay finds the gate closed: it has to make the choice that was made before.
        if self.gate.open():
            verdict = self.decider.decide(rows, in_order=False, publish=never_publish)
            self.gate.try_again(verdict)
            return verdict
        verdict = self.decider.undecided(rows)
        for index in range(len(rows)):
            verdict.postpone(index, POSTPONED, _NOT_OPEN)
        return verdict


class InlineVertices:
    """The vertices that one task may run inline. Used by the task's thread."""

    def __init__(self, vertices: Iterable[InlineVertex] = ()) -> None:
        self._vertices = {vertex.name: vertex for vertex in vertices}

    def settle(
        self,
        decider: ChunkDecider,
        verdict: Verdict,
        facts: ChunkFacts,
        again: Collection[str] | None = None,
    ) -> Settlement:
        """Settles what a vertex has decided, together with all that inline vertices make of it.

        ``again`` are the paths that a replayed chunk took; ``None`` if the chunk is a new one.
        """
        chosen = self._choose(decider, verdict, facts, again) if self._vertices else ()
        settlement = decider.settle(verdict, facts, chosen)
        if not chosen:
            return settlement
        return settlement.with_inlined([*self._run(settlement, chosen, facts, again)])

    @property
    def unpaused(self) -> tuple[str, ...]:
        """The vertices that people have not paused."""
        return tuple(n for n, vertex in self._vertices.items() if not vertex.gate.paused)

    def follow_pauses(self) -> bool:
        """Stops running vertices that people have paused; whether that has changed for any."""
        changed = [v for v in self._vertices.values() if v.gate.paused != v.control.paused]
        for vertex in changed:
            vertex.gate.paused = vertex.control.paused
        return bool(changed)

    def tell_now_and_then(self) -> None:
        """Tells what has been counted of the vertices, unless that was just done."""
        for vertex in self._vertices.values():
            vertex.events.tell_now_and_then()

    def flush(self) -> None:
        """Tells what has been counted of the vertices."""
        for vertex in self._vertices.values():
            vertex.events.flush()

    def _choose(
        self,
        decider: ChunkDecider,
        verdict: Verdict,
        facts: ChunkFacts,
        again: Collection[str] | None,
    ) -> Collection[str]:
        edges = [edge.to for edge in decider.place.edges if edge.to in self._vertices]
        if again is not None:
            return {name for name in edges if facts.path_to(name) in again}
        passed = facts.via.split(">")  # a vertex in a cycle is run once
        chosen = set()
        for name in edges:
            vertex = self._vertices[name]
            is_taken = name not in passed and vertex.takes(len(verdict.rows))
            vertex.events.takes_inline(decider.place.vertex, is_taken)
            chosen |= {name} if is_taken else set()
        return chosen

    def _run(
        self,
        settlement: Settlement,
        chosen: Collection[str],
        facts: ChunkFacts,
        again: Collection[str] | None,
    ) -> Iterator[InlineSettlement]:
        assert settlement.account is not None
        for edge in settlement.account.parts[0].routed.edges:
            if edge.to in chosen and edge.batch.num_rows:
                yield self._run_vertex(edge, facts.behind(edge.to), again)

    def _run_vertex(
        self, edge: EdgeRows, facts: ChunkFacts, again: Collection[str] | None
    ) -> InlineSettlement:
        vertex = self._vertices[edge.to]
        verdict = vertex.decide(Rows(edge.batch, facts.watermark))
        settlement = self.settle(vertex.decider, verdict, facts, again)
        assert settlement.account is not None
        for observer in vertex.observers:
            observer.see(settlement.account)
        return InlineSettlement(vertex.name, facts.via, settlement, edge.parents, vertex.observers)
