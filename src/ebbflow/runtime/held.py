"""Whether the order of a chunk's rows counts, and the row that an ordered vertex holds.

In an ordered vertex a row that has to come back holds its partition until it is through. Nothing
overtakes it, not even across a restart: how often it was delivered and when it is due is part of
the position, and the position is exact to the row.
"""

from __future__ import annotations

import math
from datetime import datetime
from typing import Protocol

import pyarrow as pa

from ebbflow.core import frames
from ebbflow.core.inlet import Inlet
from ebbflow.core.position import Held
from ebbflow.core.publications import again_rows
from ebbflow.core.redelivery import due_time
from ebbflow.core.verdict import Verdict
from ebbflow.outcome import Counts, Redeliver, Retry

_HELD_ROW = Counts(read=1, redelivered=1)
_STATE = ("deliveries", "failures", "retries", "nack_reason")

Cut = tuple[Verdict, Held | None, Counts]
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
        return verdict, held, Counts()


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
        return part, held, _HELD_ROW if held else Counts()


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
