"""The intake of a task: which rows it takes next, and what the order among them means.

Rows come from the inlet, from the redeliveries, or from both. In an ordered vertex a row that has
to come back holds its partition until it is through. Nothing overtakes it, not even across a
restart: how often it was delivered and when it is due is part of the position, and the position is
exact to the row. Such a vertex takes one frame at a time, and nothing while a row is held.

While a system is away, a probe is a single row, a new one and an old one in turns: bad messages at
the head of one of them cannot hide that the system is back.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

import pyarrow as pa

from ebbflow.domain.outcome import Counts, Redeliver, Retry
from ebbflow.engine import frames
from ebbflow.engine.account import HeldRow
from ebbflow.engine.inlet import Inlet
from ebbflow.engine.position import Held, Span, with_awaited
from ebbflow.engine.publications import again_rows
from ebbflow.engine.redelivery import due_time
from ebbflow.engine.verdict import Verdict

_HELD_ROW = Counts(read=1, redelivered=1)
_STATE = ("deliveries", "failures", "retries", "nack_reason")

Cut = tuple[Verdict, Held | None, Counts | None]
"""The verdict on what can be settled, the row held behind it, and the counts of that row."""


class RowOrder(Protocol):
    """What the order among the rows of a chunk means."""

    is_strict: bool

    def restore(self, batch: pa.RecordBatch, held: Held | None) -> pa.RecordBatch:
        """Returns the rows as user code is to see them, when ``held`` is what the vertex holds."""

    def cut(
        self,
        verdict: Verdict,
        inlet: Inlet,
        batch: pa.RecordBatch,
        held: Held | None,
        now: datetime,
    ) -> Cut:
        """Returns what can be settled, and gives the rest back to the inlet."""


class AnyOrder:
    """Rows that may overtake each other: all are settled, each comes back by itself."""

    is_strict = False

    def restore(self, batch: pa.RecordBatch, held: Held | None) -> pa.RecordBatch:
        """Returns the rows as they are."""
        return batch

    def cut(
        self,
        verdict: Verdict,
        inlet: Inlet,
        batch: pa.RecordBatch,
        held: Held | None,
        now: datetime,
    ) -> Cut:
        """Returns all of the verdict. A replayed letter does not change what the inlet holds."""
        return verdict, held, None


class StrictOrder:
    """Rows of one partition of an ordered vertex: they are settled up to the first that is held."""

    is_strict = True

    def restore(self, batch: pa.RecordBatch, held: Held | None) -> pa.RecordBatch:
        """Returns the rows, the first of them as it comes back."""
        return with_held(batch, held)

    def cut(
        self,
        verdict: Verdict,
        inlet: Inlet,
        batch: pa.RecordBatch,
        held: Held | None,
        now: datetime,
    ) -> Cut:
        """Returns the verdict on the rows before the held one, and that row."""
        part, held = settled_part(verdict, inlet, batch, now)
        return part, held, _HELD_ROW if held else None


ANY_ORDER: RowOrder = AnyOrder()
STRICT_ORDER: RowOrder = StrictOrder()


def with_held(batch: pa.RecordBatch, held: Held | None) -> pa.RecordBatch:
    """Returns the rows, the first of them as it comes back."""
    if held is None:
        return batch
    columns = {name: batch.column(name).to_pylist() for name in _STATE}
    state = (held.deliveries, held.failures, held.retries, held.reason)
    for column, value in zip(columns.values(), state, strict=True):
        column[0] = value
    return frames.with_columns(batch, **columns)


def settled_part(
    verdict: Verdict, inlet: Inlet, batch: pa.RecordBatch, now: datetime
) -> tuple[Verdict, Held | None]:
    """Returns the verdict on the rows that can be settled, and the row behind them if it is held.

    The inlet gets back the held row and all behind it: settled with the others, they would be
    passed on before it, or lost.
    """
    end = verdict.first_held()
    if end is None:
        return verdict, None
    inlet.give_back(batch, end)
    outcome = verdict.outcomes.get(end)
    held = _held(batch, end, outcome, now) if isinstance(outcome, Redeliver | Retry) else None
    return verdict.cut(end), held


def _held(batch: pa.RecordBatch, index: int, outcome: Redeliver | Retry, now: datetime) -> Held:
    row = again_rows(batch, [index], [outcome]).to_pylist()[0]
    now_ms = math.ceil(now.timestamp() * 1000)
    return Held(due_time(now_ms, outcome.delay), *(row[name] for name in _STATE))


def held_row(verdict: Verdict, batch: pa.RecordBatch, index: int) -> HeldRow:
    """Returns the row that is held, with what was decided about it."""
    return HeldRow(batch.slice(index, 1), verdict.outcomes[index])


_PAUSED_FOR = 1.0


@dataclass(frozen=True, slots=True)
class Taken:
    """Rows that become one chunk, and what the order among them means.

    ``leaves_rows`` if others may be waiting that it had no room for.
    """

    batches: list[pa.RecordBatch]
    order: RowOrder = ANY_ORDER
    leaves_rows: bool = False


class Intake:
    """Both streams that a task reads, opened where its position is. Used by the task's thread.

    A ``paused`` one takes nothing new.
    """

    def __init__(self, inlet: Inlet, redeliveries: Inlet, paused: bool = False) -> None:
        self.inlet = inlet
        self.redeliveries = redeliveries
        self._paused = paused
        self._probes = 0

    @property
    def end(self) -> Span:
        """Behind the last rows that were taken."""
        known = {**self.inlet.known, **self.redeliveries.known}
        return Span(self.inlet.mark, self.redeliveries.mark, known)

    def await_redeliveries(self, lineage: str, chunk: int, tokens: Sequence[str]) -> None:
        """Notes that a chunk sends frames back."""
        self.redeliveries.known = with_awaited(self.redeliveries.known, lineage, chunk, tokens)

    def take_again(self, intent: Span) -> Taken | None:
        """Returns exactly the rows up to ``intent``; ``None`` if all come again from a source."""
        redelivered = self.redeliveries.take_until(intent.redelivery)
        batches = [*redelivered, *self.inlet.take_until(intent.inlet)]
        return Taken(batches, self._order_of(redelivered)) if batches else None

    def _order_of(self, redelivered: list[pa.RecordBatch]) -> RowOrder:
        return ANY_ORDER

    def take(self, limit: int, held: bool) -> Taken | None:
        """Returns up to ``limit`` rows that are here. ``held`` if a row holds up an order."""
        share = max(1, limit // 2)
        redelivered = self.redeliveries.take(share)
        room = max(1, limit - _count_rows(redelivered))
        new = self._take_new(room)
        leaves_rows = _count_rows(redelivered) >= share or _count_rows(new) >= room
        batches = [*redelivered, *new]
        return Taken(batches, leaves_rows=leaves_rows) if batches else None

    def take_probe(self, held: bool) -> Taken | None:
        """Returns a single row, with which to find out whether a system is back."""
        self._probes += 1
        takes = (self._take_new, self.redeliveries.take)
        for take in takes if self._probes % 2 else reversed(takes):
            if batches := take(1):
                return Taken(batches)
        return None

    def _take_new(self, limit: int) -> list[pa.RecordBatch]:
        return [] if self._paused else self.inlet.take(limit)

    def ready_in(self) -> float:
        """Returns the seconds until there may be something without anything arriving."""
        return _PAUSED_FOR if self._paused else self.inlet.ready_in()

    def forget(self, done: Span) -> None:
        """Has everything up to ``done`` deleted, which is recorded as settled."""
        self.inlet.forget(done.inlet)
        self.redeliveries.forget(done.redelivery)

    def close(self, for_good: bool) -> None:
        """Ends the reading; ``for_good`` when no other task follows."""
        self.inlet.close(for_good=for_good)
        self.redeliveries.close()


def _count_rows(batches: list[pa.RecordBatch]) -> int:
    return sum(batch.num_rows for batch in batches)


class OrderedIntake(Intake):
    """The streams of an ordered vertex: one frame at most, or letters, which have no order."""

    def _order_of(self, redelivered: list[pa.RecordBatch]) -> RowOrder:
        return ANY_ORDER if redelivered else STRICT_ORDER

    def take(self, limit: int, held: bool) -> Taken | None:
        """Returns letters that are sent back, else rows of one frame unless one is held."""
        if redelivered := self.redeliveries.take(limit):
            return Taken(redelivered, leaves_rows=True)
        if held:  # whatever was taken now would overtake the held row
            return None
        fresh = self.inlet.take_frame(limit)
        return Taken(fresh, STRICT_ORDER, leaves_rows=True) if fresh else None

    def take_probe(self, held: bool) -> Taken | None:
        """Returns a single row; the held one comes first here, too."""
        return self.take(1, held)
