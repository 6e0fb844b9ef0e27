"""Ordered vertices: a row that has to come back holds its partition until it is through.

Nothing overtakes it, not even across a restart: how often it was delivered and when it is due is
part of the position, and the position is exact to the row.
"""

from __future__ import annotations

import time

import pyarrow as pa

from ebbflow.buffers.reader import FrameReader
from ebbflow.core import frames
from ebbflow.core.inlet import Inlet
from ebbflow.core.position import Held
from ebbflow.core.publications import again_rows
from ebbflow.core.redelivery import due_time
from ebbflow.core.verdict import Verdict
from ebbflow.outcome import Counts, Redeliver, Retry

HELD_ROW = Counts(read=1, redelivered=1)

_STATE = ("deliveries", "failures", "retries", "nack_reason")


def with_held(batch: pa.RecordBatch, held: Held | None) -> pa.RecordBatch:
    """The rows, the first of them as it comes back."""
    if held is None:
        return batch
    columns = {name: batch.column(name).to_pylist() for name in _STATE}
    state = (held.deliveries, held.failures, held.retries, held.reason)
    for column, value in zip(columns.values(), state, strict=True):
        column[0] = value
    return frames.with_columns(batch, **columns)


def settled_part(
    verdict: Verdict, inlet: Inlet, batch: pa.RecordBatch
) -> tuple[Verdict, Held | None]:
    """The verdict on the rows that can be settled, and the row behind them if it is held."""
    end = verdict.first_held()
    if end is None:
        return verdict, None
    assert isinstance(inlet, FrameReader)
    inlet.give_back(batch, end)
    outcome = verdict.outcomes.get(end)
    held = _held(batch, end, outcome) if isinstance(outcome, Redeliver | Retry) else None
    return verdict.cut(end), held


def _held(batch: pa.RecordBatch, index: int, outcome: Redeliver | Retry) -> Held:
    row = again_rows(batch, [index], [outcome]).to_pylist()[0]
    now_ms = -(-time.time_ns() // 1_000_000)
    return Held(due_time(now_ms, outcome.delay), *(row[name] for name in _STATE))
