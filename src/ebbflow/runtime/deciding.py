"""Decisions about chunks: user code decides, and its verdict becomes a settlement.

The only part of the chunk loop that makes a ``Verdict`` or looks into one. It also forwards a
stream map's outputs while the map still yields, one part of the chunk at a time.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Protocol

from ebbflow.domain.durations import Backoff
from ebbflow.domain.outcome import Counts
from ebbflow.engine.account import ChunkObserver, HeldRow, overriding
from ebbflow.engine.checks import Rules
from ebbflow.engine.frames import Rows
from ebbflow.engine.outage import OutageGate
from ebbflow.engine.publications import Chunk, ChunkNumber, Place
from ebbflow.engine.rescue import decide_in_pieces, settle_or_refuse
from ebbflow.engine.settlement import Settlement, settle
from ebbflow.engine.verdict import Verdict
from ebbflow.runtime.ports import Clock

_EMIT_EVERY = 0.1


PublishPart = Callable[[Verdict], int | None]
"""Publishes what a stream map has yielded so far; returns how many rows were written.

If the server refuses an output, its input becomes a dead letter in the verdict of the part. Returns
``None`` if the part cannot be published as it is; it then waits until its chunk is settled.
"""


def never_publish(part: Verdict) -> int | None:
    """Publishes nothing early: everything waits until the chunk is settled."""
    return None


Times = Callable[[Verdict], Iterable[datetime]]
"""Returns the event times with which a chunk raises the watermark of its vertex."""


class ChunkSize(Protocol):
    """How many rows a chunk may have, adapted to how long user code takes for them."""

    @property
    def limit(self) -> int:
        """The most rows of the next chunk."""

    def measured(self, verdict: Verdict) -> AbstractContextManager[None]:
        """Times user code on a chunk."""


def no_times(verdict: Verdict) -> Iterable[datetime]:
    """For a vertex that reads a buffer: its watermark follows the vertices that write to it."""
    return ()


def source_times(verdict: Verdict) -> Iterable[datetime]:
    """For a source: the times of its outputs, and of nacks and drops with an event time."""
    return verdict.gather_event_times()


@dataclass(frozen=True, slots=True)
class DecisionRules:
    """The rules by which the chunks of a vertex are decided and settled.

    ``emits`` is whether outputs may be forwarded before their chunk is settled.
    """

    place: Place
    on_error: Backoff
    largest: int
    emits: bool = False
    times: Times = no_times


@dataclass(frozen=True, slots=True)
class ChunkFacts:
    """The facts for settling a chunk, apart from the decisions about it.

    The source redelivers rows from ``returned_from`` on, ``held`` is the row behind the chunk if an
    ordered vertex holds it, and ``more`` are counts of that row. ``writer`` is the task and ``via``
    the chain of vertices when a vertex runs inline.
    """

    key: str
    number: ChunkNumber
    watermark: datetime | None
    writer: str = ""
    via: str = ""
    returned_from: int | None = None
    held: HeldRow | None = None
    more: Counts | None = None

    def path_to(self, vertex: str) -> str:
        """Returns the chain of inline vertices that ends with this one."""
        return f"{self.via}>{vertex}" if self.via else vertex

    def behind(self, vertex: str) -> ChunkFacts:
        """Returns the facts with which an inline vertex settles outputs of the chunk."""
        return ChunkFacts(self.key, self.number, self.watermark, self.writer, self.path_to(vertex))


@dataclass(frozen=True, slots=True)
class _Emission:
    """Forwards what a stream map yields for one chunk; see ``Emitter``."""

    decider: ChunkDecider
    publish: PublishPart

    def is_due(self) -> bool:
        return self.decider.emits_now()

    def emit(self, part: Verdict) -> int | None:
        return self.decider.emit(part, self.publish)


class ChunkDecider:
    """Lets user code decide the chunks of one task. Used by the task's thread."""

    def __init__(
        self,
        rules: DecisionRules,
        gate: OutageGate,
        size: ChunkSize,
        clock: Clock,
        observers: Sequence[ChunkObserver] = (),
    ) -> None:
        self._rules = rules
        self._around = overriding(observers, "calling")
        self._late = overriding(observers, "late")
        in_any_order = Rules(rules.place.vertex, rules.on_error, rules.largest)
        self._chunk_rules = {False: in_any_order, True: replace(in_any_order, ordered=True)}
        self._gate = gate
        self._size = size
        self._clock = clock
        self._emitted_at = clock.monotonic()

    @property
    def place(self) -> Place:
        """Where the chunks are settled."""
        return self._rules.place

    def decide(self, rows: Rows, in_order: bool, publish: PublishPart) -> Verdict:
        """Returns user code's verdict on the rows; ``publish`` is called meanwhile."""
        rules = self._chunk_rules[in_order]
        if not self._around:
            return self._decide(rows, rules, publish)
        with ExitStack() as stack:
            for observer in self._around:
                rows = stack.enter_context(observer.calling(rows))
            return self._decide(rows, rules, publish)

    def _decide(self, rows: Rows, rules: Rules, publish: PublishPart) -> Verdict:
        emitter = _Emission(self, publish) if self._rules.emits else None
        verdict = Verdict(rows, rules, emitter)
        try:
            with self._size.measured(verdict):
                self._gate.decide(verdict)
        except Exception as error:
            verdict = Verdict(rows, rules)
            decide_in_pieces(verdict, self._gate.decide, error)
        return verdict

    def undecided(self, rows: Rows) -> Verdict:
        """Returns a verdict without decisions on rows of the vertex."""
        return Verdict(rows, self._chunk_rules[False])

    def emits_now(self) -> bool:
        """Returns whether it is time to forward what a stream map has yielded so far."""
        return self._clock.monotonic() - self._emitted_at >= _EMIT_EVERY

    def emit(self, part: Verdict, publish: PublishPart) -> int | None:
        """Forwards outputs before their chunk is settled; returns how many rows were written."""
        self._emitted_at = self._clock.monotonic()
        return publish(part)

    def times(self, verdict: Verdict) -> Iterable[datetime]:
        """Returns the event times that raise the vertex's own watermark."""
        return self._rules.times(verdict)

    def settle(
        self, verdict: Verdict, facts: ChunkFacts, inline: Collection[str] = ()
    ) -> Settlement:
        """Returns the settlement of the chunk, without outputs for the vertices in ``inline``."""
        first = facts.returned_from
        returning = range(0) if first is None else range(first, sys.maxsize)
        chunk = Chunk(
            facts.key, verdict.rows, facts.number, self._gate.probing, facts.writer, facts.via
        )
        place, now, late = self._rules.place, self._clock.now(), self._late
        settlement = settle_or_refuse(
            chunk, verdict, place, now, facts.watermark, returning, facts.held, late, inline
        )
        more = facts.more
        return replace(settlement, counts=settlement.counts + more) if more else settlement

    def settle_part(self, part: Verdict, key: str, watermark: datetime | None) -> Settlement | None:
        """Returns the settlement of a part of the chunk: outputs of rows that have not ended.

        ``None`` if an output cannot be published. Settling the whole chunk finds out which one.
        """
        chunk, now = Chunk(key, part.rows), self._clock.now()
        try:
            return settle(
                chunk, part, self._rules.place, now, watermark,
                is_early=True, observers=self._late,
            )  # fmt: skip
        except Exception:
            return None
