"""Inline edges: a task runs the next vertex on its own outputs, in memory, where that is cheaper.

A hop through a buffer costs a frame, two confirmed writes and a dozen wake-ups, whether it carries
one row or a thousand. So after a vertex has decided a chunk, its task may run the user code of the
next vertex right away. What that vertex decides becomes part of the chunk: its redeliveries go to
its own redelivery stream, its dead letters, answers and outputs where they always go, all in the
stages of ``engine.settlement`` and confirmed before the chunk is done. A nack at the second vertex
redelivers the second vertex's input only, as it does through a buffer.

Each chunk chooses again which edges it takes inline. The intent names them, so a replay makes the
same choice and the same ids. The vertex's own task keeps reading its buffer and its redeliveries:
an inline edge is one more outlet of the task before it, and nothing is converted when it changes.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Protocol

from ebbflow.engine.account import ChunkObserver
from ebbflow.engine.blame import POSTPONED
from ebbflow.engine.frames import Rows
from ebbflow.engine.publications import EdgeRows
from ebbflow.engine.settlement import InlineSettlement, Settlement
from ebbflow.engine.verdict import Verdict
from ebbflow.runtime.deciding import ChunkDecider, ChunkFacts, never_publish
from ebbflow.runtime.outage_gate import OutageGate

_NOT_OPEN = "its user code could not be opened here"


class InlineRule(Protocol):
    """Says whether an edge is taken inline, and learns what that took."""

    def takes(self, rows: int) -> bool:
        """Whether a chunk of this many rows is given to the vertex inline."""

    def measured(self, rows: int) -> AbstractContextManager[None]:
        """Times the vertex on a chunk."""


@dataclass(frozen=True, slots=True)
class InlineVertex:
    """A vertex that the task of another vertex can run. Used by that task's thread.

    ``gate``, ``decider`` and ``observers`` are those of this vertex in that task, ``rule`` says
    when it is run there, and ``around`` is entered while its user code is called.
    """

    name: str
    gate: OutageGate
    decider: ChunkDecider
    rule: InlineRule
    observers: Sequence[ChunkObserver] = ()
    edges: InlineEdges = field(default_factory=lambda: InlineEdges())
    around: Callable[[], AbstractContextManager[object]] = nullcontext

    def takes(self, rows: int) -> bool:
        """Whether a chunk of this many rows is given to it inline."""
        # In an outage the vertex's own task tries single messages; a whole chunk would not help.
        return self.rule.takes(rows) and self.gate.open() and not self.gate.probing

    def settle(
        self, edge: EdgeRows, facts: ChunkFacts, again: Collection[str] | None
    ) -> InlineSettlement:
        """Has the vertex decide about the rows of an edge; ``again`` are the paths of a replay."""
        with self.rule.measured(edge.batch.num_rows), self.around():
            verdict = self._decide(Rows(edge.batch, facts.watermark))
        settlement = self.edges.settle(self.decider, verdict, facts, again)
        for observer in self.observers:
            assert settlement.account is not None
            observer.see(settlement.account)
        return InlineSettlement(self.name, facts.via, settlement, edge.parents, self.observers)

    def _decide(self, rows: Rows) -> Verdict:
        # Only a replay comes here with a closed gate: it has to make the choice that was made.
        if self.gate.open():
            return self.decider.decide(rows, in_order=False, publish=never_publish)
        verdict = self.decider.undecided(rows)
        for index in range(len(rows)):
            verdict.postpone(index, POSTPONED, _NOT_OPEN)
        return verdict


class InlineEdges:
    """The edges of one vertex that its chunks may take inline. Used by the task's thread."""

    def __init__(self, vertices: Sequence[InlineVertex] = ()) -> None:
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
        chosen = self._choose(len(verdict.rows), facts, again) if self._vertices else ()
        settlement = decider.settle(verdict, facts, chosen)
        return (
            settlement.with_inlined([*self._run(settlement, chosen, facts, again)])
            if chosen
            else settlement
        )

    def _choose(
        self, rows: int, facts: ChunkFacts, again: Collection[str] | None
    ) -> Collection[str]:
        if again is not None:
            return {name for name in self._vertices if facts.path_to(name) in again}
        return {name for name, vertex in self._vertices.items() if vertex.takes(rows)}

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
                yield self._vertices[edge.to].settle(edge, facts.behind(edge.to), again)
