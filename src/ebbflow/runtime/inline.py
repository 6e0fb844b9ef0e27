"""Inline edges: a task runs the next vertex on its own outputs, in memory, where that is cheaper.

A hop through a buffer costs a frame, two confirmed writes and a dozen wake-ups, whether it carries
one row or a thousand. So after a vertex has decided a chunk, its task may run the user code of the
next vertex right away. The decisions of that vertex become part of the chunk: its dead letters,
answers and outputs go where they always go, and its redeliveries to its own buffer, from where its
own task parks them. All of it is published in the stages of ``engine.settlement`` and confirmed
before the chunk is done. A nack at the second vertex redelivers only that vertex's input, as it
does through a buffer.

Vertices run inline only in the task that also runs their own loops (``nats_task``): inline and
buffered messages share one instance of their user code, one gate and one breaker. For each chunk
the task chooses again which edges to take inline. The intent names them, so a replay makes the same
choice and the same ids.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

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


@dataclass(frozen=True, slots=True)
class InlineVertex:
    """A vertex that the loop of another vertex can run. Used by the thread of both.

    ``gate``, ``decider``, ``events``, ``control`` and ``observers`` are those of the vertex's own
    loop. ``few_wait`` says whether that loop is up to date with the vertex's buffer.
    """

    name: str
    gate: OutageGate
    decider: ChunkDecider
    few_wait: Callable[[], bool]
    events: TaskEvents
    clock: Clock
    control: VertexControl = field(default_factory=VertexControl)
    observers: Sequence[ChunkObserver] = ()

    def takes(self) -> bool:
        """Whether it can take messages now.

        Its own loop opens user code, and tries single messages in an outage. Messages that wait in
        its buffer take precedence: they are older.
        """
        gate = self.gate
        if self.control.paused or not gate.opened or gate.probing or gate.ready_in() > 0:
            return False
        return self.few_wait()

    def decide(self, rows: Rows) -> Verdict:
        """Returns the vertex's verdict on rows that the task has just made."""
        record = self.events.begin_chunk(self.clock.now(), len(rows))
        began = self.clock.monotonic()
        verdict = self._decide(rows)
        record.call = self.clock.monotonic() - began
        record.end()
        return verdict

    def _decide(self, rows: Rows) -> Verdict:
        # Only in a replay can the gate be closed: it must make the same choice as before.
        if self.gate.open():
            return self.decider.decide(rows, in_order=False, publish=never_publish)
        verdict = self.decider.undecided(rows)
        for index in range(len(rows)):
            verdict.postpone(index, POSTPONED, _NOT_OPEN)
        return verdict


class InlineVertices:
    """The vertices that one task may run inline. Used by the task's thread.

    Those in ``only_replays`` run inline only for a replayed chunk that has run them before.
    """

    def __init__(
        self, vertices: Iterable[InlineVertex] = (), only_replays: Collection[str] = ()
    ) -> None:
        self._vertices = {vertex.name: vertex for vertex in vertices}
        self._only_replays = only_replays
        self._unpaused = self.unpaused

    def settle(
        self,
        decider: ChunkDecider,
        verdict: Verdict,
        facts: ChunkFacts,
        again: Collection[str] | None = None,
    ) -> Settlement:
        """Settles a vertex's verdict, together with those of inline vertices on its outputs.

        ``again`` are the inline paths of a replayed chunk; ``None`` if the chunk is new.
        """
        chosen = self._choose(decider, facts, again) if self._vertices else ()
        settlement = decider.settle(verdict, facts, chosen)
        if not chosen:
            return settlement
        return settlement.with_inlined([*self._run(settlement, chosen, facts, again)])

    @property
    def unpaused(self) -> tuple[str, ...]:
        """The vertices that people have not paused."""
        return tuple(n for n, vertex in self._vertices.items() if not vertex.control.paused)

    def follow_pauses(self) -> bool:
        """Whether people have paused or resumed one of the vertices since the last call."""
        before, self._unpaused = self._unpaused, self.unpaused
        return before != self._unpaused

    def _choose(
        self,
        decider: ChunkDecider,
        facts: ChunkFacts,
        again: Collection[str] | None,
    ) -> Collection[str]:
        edges = [edge.to for edge in decider.place.edges if edge.to in self._vertices]
        if again is not None:
            return {name for name in edges if facts.path_to(name) in again}
        # A vertex in a cycle is run once.
        excluded = {*facts.via.split(">"), *self._only_replays}
        chosen = set()
        for name in edges:
            vertex = self._vertices[name]
            is_taken = name not in excluded and vertex.takes()
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
        verdict = vertex.decide(Rows(edge.batch, facts.watermark, edge.values))
        settlement = self.settle(vertex.decider, verdict, facts, again)
        assert settlement.account is not None
        for observer in vertex.observers:
            observer.see(settlement.account)
        return InlineSettlement(vertex.name, facts.via, settlement, edge.parents, vertex.observers)
