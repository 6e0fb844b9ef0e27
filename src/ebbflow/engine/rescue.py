"""The safety net of every chunk: a row that cannot be decided or settled affects no other row.

User code may raise, and that is an outcome like any other. Here Ebbflow itself fails: while it
turns the results of user code into rows, routes, measures and packs them, or writes a dead letter.
Such an error would fail the task, and the next task on the same rows, forever. So the chunk is
tried again in ever smaller pieces, until the rows to blame are alone (``engine.isolation``). The
rows are not to blame only if the same work fails without any row: then the error is raised as it
is.

A row that cannot be decided counts as one on which user code raised. A row that was decided but
cannot be settled, for example because its outputs are too large, is dead-lettered at once. Both are
decisions like any other: a replay that fails the same way decides the same.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from datetime import datetime

import pyarrow as pa

from ebbflow.domain.errors import MessageTooLarge
from ebbflow.engine import frames
from ebbflow.engine.account import ChunkObserver, HeldRow
from ebbflow.engine.frames import Rows
from ebbflow.engine.isolation import Trouble, isolate
from ebbflow.engine.publications import Chunk, Place
from ebbflow.engine.redelivery import describe_error
from ebbflow.engine.settlement import Settlement, settle
from ebbflow.engine.verdict import Operator, Verdict

Work = Callable[[int, int], None]
"""Does something for the rows from the first index up to the second; raises if that fails."""


def decide_in_pieces(verdict: Verdict, operator: Operator, failure: Exception) -> None:
    """Decides all rows of a verdict on which the operator has failed as a whole."""

    alone: list[int] = []

    def work(start: int, end: int) -> None:
        batch = verdict.rows.batch.slice(start, end - start)
        part = verdict.part(Rows(batch, verdict.rows.watermark))
        alone.extend([start] if end - start == 1 else ())
        operator(part)
        if end > start:
            alone.clear()
        verdict.decisions.merge(range(start, end), part.decisions)

    def stops() -> bool:
        """Whether an ordered vertex must stop at a row that is redelivered."""
        return verdict.rules.ordered and bool(alone or verdict.first_held() is not None)

    verdict.disregard_time()
    end, errors = _find_culprits(len(verdict.rows), work, failure, stops)
    for index, error in errors.items():
        verdict.record_error(index, error)
    if end < len(verdict.rows):
        verdict.decisions.stop_at(end)


def settle_or_refuse(
    chunk: Chunk,
    verdict: Verdict,
    place: Place,
    now: datetime,
    watermark: datetime | None = None,
    returning: Collection[int] = (),
    held: HeldRow | None = None,
    observers: Sequence[ChunkObserver] = (),
    inline: Collection[str] = (),
) -> Settlement:
    """Settles a chunk; the rows that cannot be settled as decided are dead-lettered instead."""
    rest = (watermark, returning, held, observers, inline)
    try:
        return settle(chunk, verdict, place, now, *rest)
    except Exception as error:
        return _settle_in_pieces(error, chunk, verdict, place, now, *rest)


def _settle_in_pieces(
    failure: Exception,
    chunk: Chunk,
    verdict: Verdict,
    place: Place,
    now: datetime,
    watermark: datetime | None,
    returning: Collection[int],
    held: HeldRow | None,
    observers: Sequence[ChunkObserver],
    inline: Collection[str],
) -> Settlement:
    """Settles a chunk on which ``settle`` has failed as a whole.

    The rows that cannot be settled as they were decided are dead-lettered instead.
    """

    def whole(chunk: Chunk) -> Settlement:
        return settle(chunk, verdict, place, now, watermark, returning, held, observers, inline)

    def work(start: int, end: int) -> None:
        part = verdict.between(start, end)
        own = {index - start for index in range(start, end) if index in returning}
        own_chunk = replace(chunk, rows=part.rows)
        settle(own_chunk, part, place, now, watermark, own, observers=observers, inline=inline)

    _, culprits = _find_culprits(len(chunk.rows), work, failure)
    for index, cause in culprits.items():
        verdict.refuse(index, cause)
    try:
        return whole(chunk)
    except Exception:
        # Publications about these rows fail as well, so they get as few fields as possible.
        return whole(replace(chunk, rows=_strip(chunk.rows, culprits)))


def _find_culprits(
    rows: int, work: Work, failure: Exception, enough: Callable[[], bool] = lambda: False
) -> tuple[int, dict[int, Exception]]:
    """Returns how far the work is done, and the rows on which it fails, each with its error.

    Raises if it fails even without rows, or if no row could be decided.
    """
    errors: dict[int, Exception] = {}

    def attempt(start: int, end: int) -> Trouble | None:
        try:
            work(start, end)
        except Exception as error:
            errors[start] = error
            of_data = isinstance(error, MessageTooLarge) and end > start
            return Trouble(type(error).__name__, describe_error(error), of_data)
        return None

    isolated = isolate(0, rows, attempt, enough)
    if isolated.general is not None or not isolated.end:
        raise failure
    return isolated.end, {index: errors[index] for index in isolated.blamed}


def _strip(rows: Rows, culprits: Collection[int]) -> Rows:
    """Returns the rows, with only the mandatory columns of the culprits, such as id and value."""
    kept = {"id", "value", "deliveries", "failures", "retries"}
    names = [name for name in frames.SCHEMA.names if name not in kept]
    kept_rows = [None if index in culprits else index for index in range(len(rows))]
    indexes = pa.array(kept_rows, pa.int64())
    columns = {name: rows.batch.column(name).take(indexes) for name in names}
    return Rows(frames.with_columns(rows.batch, **columns), rows.watermark)
