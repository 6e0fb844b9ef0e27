"""The rows that a query made of a whole batch, and how they become messages.

A row with the ``id`` of an input is an output of that input, as with a columnar map: it inherits
what is not given, and an input without a row is dropped. A query without ``id``, such as one that
counts, makes **aggregates**: rows that come from the batch as a whole. Their ids are made of the
batch and of their content, so that a replay with the same result is recognised, and one with
another result is kept beside it.

Rows come in no particular order. They are put into one that follows from their content alone.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from ebbflow.domain.errors import ContractViolation, MessageTooLarge
from ebbflow.engine import frames
from ebbflow.engine.frames import Rows
from ebbflow.engine.outputs import INHERITED, NOBODY, ColumnOutputs
from ebbflow.engine.verdict import Verdict
from ebbflow.usercode.columns import QUERY_TYPES, record_columns

HEADERS = pa.map_(pa.string(), pa.string())
_CONTENT = ("value", "keys", "tags", "event_time", "headers")


def record_query_rows(verdict: Verdict, result: pa.Table | None, batch: str, traced: bool) -> None:
    """Records the rows that a query made of the inputs; ``batch`` is a name only they have.

    ``traced`` if the query names inputs by ``id``. Rows of the same input, and all rows where
    inputs are not named, may come in any order.
    """
    if result is not None and "event_time" in result.schema.names:
        # Spark has times in the zone of its session; equal rows must look equal everywhere.
        at = result.schema.get_field_index("event_time")
        result = result.set_column(at, "event_time", result.column(at).cast(frames.TIME))
    if traced:
        _record_traced(verdict, result)
    elif result is not None:
        verdict.decisions.forward_outputs(_make_aggregates(verdict, result, batch))


def _record_traced(verdict: Verdict, result: pa.Table | None) -> None:
    ids = verdict.rows.column("id")
    if result is None:
        for index in range(len(ids)):
            verdict.decisions.drop(index)
        return
    vertex = verdict.rules.vertex
    indexes = {message_id: index for index, message_id in enumerate(ids)}
    parents = [_find_input(vertex, indexes, row_id) for row_id in result.column("id").to_pylist()]
    empty = _find_empty(result, parents)
    keys = _describe_rows(result) if len(set(parents)) < len(parents) else parents
    order = sorted(
        (row for row, parent in enumerate(parents) if parent not in empty),
        key=lambda row: (parents[row], keys[row]),
    )
    chosen = result.take(pa.array(order, pa.int64()))
    values = pc.fill_null(chosen.column("value"), b"")  # now only of rows that are nacked
    chosen = chosen.set_column(chosen.schema.get_field_index("value"), "value", values)
    record_columns(verdict, 0, len(ids), chosen, QUERY_TYPES | {"headers": HEADERS})
    verdict.record_errors(empty, null_value(vertex))


def _find_input(vertex: str, indexes: dict[str, int], row_id: str | None) -> int:
    if row_id is None or row_id not in indexes:
        what = "NULL" if row_id is None else f"the unknown id {row_id!r:.80}"
        raise ContractViolation(
            vertex,
            f"gave {what} as id",
            fix="Give the id of an input for each row, or leave the column out.",
        )
    return indexes[row_id]


def _find_empty(result: pa.Table, parents: Sequence[int]) -> set[int]:
    """Returns the inputs that have a row without a value, unless it is to be nacked."""
    missing = pc.is_null(result.column("value"))
    if "nack" in result.schema.names:
        missing = pc.and_not(missing, pc.fill_null(result.column("nack"), False))
    return {parents[row] for row in pc.indices_nonzero(missing).to_pylist()}


def null_value(vertex: str) -> ContractViolation:
    """Returns the error of a row that has no value."""
    return ContractViolation(vertex, "gave NULL as value", fix="Give a text or binary.")


def _describe_rows(result: pa.Table) -> list[str]:
    """Returns a text for each row, equal for rows that are equal."""
    columns = [result.column(name).to_pylist() for name in _CONTENT if name in result.schema.names]
    return [repr(row) for row in zip(*columns, strict=True)]


@dataclass(slots=True)
class Aggregates(ColumnOutputs):
    """Outputs that have no single input. A column left out is empty, the event time is ``at``."""

    ids: Sequence[str] = ()
    at: datetime | None = None

    def batch(
        self, rows: Rows, name: str, now: datetime | None, inherited: Sequence[str] = INHERITED
    ) -> pa.RecordBatch:
        """Returns the outputs as rows, first seen ``now``."""
        (piece,) = self.pieces
        columns: dict[str, Any] = {"id": self.ids, **piece}
        columns["first_seen"] = pa.repeat(pa.scalar(now, frames.TIME), len(self))
        latest = pa.repeat(pa.scalar(self.at, frames.TIME), len(self))
        own = piece.get("event_time")
        columns["event_time"] = latest if own is None else pc.coalesce(own, latest)
        return frames.batch_of(columns, len(self))


def _make_aggregates(verdict: Verdict, result: pa.Table, batch: str) -> Aggregates:
    vertex = verdict.rules.vertex
    if result.column("value").null_count:
        raise null_value(vertex)
    texts = _describe_rows(result)
    order = sorted(range(result.num_rows), key=texts.__getitem__)
    ordered = result.take(pa.array(order, pa.int64()))
    types = QUERY_TYPES | {"headers": HEADERS}
    piece = {
        name: ordered.column(name).combine_chunks().cast(types[name])
        for name in ("value", "keys", "event_time", "headers")
        if name in ordered.schema.names
    }
    _refuse_large(verdict, piece["value"])
    tags: list[Sequence[str]] = [()] * len(texts)
    if "tags" in ordered.schema.names:
        tags = [row_tags or () for row_tags in ordered.column("tags").to_pylist()]
    outputs = Aggregates(
        ids=_make_ids(vertex, batch, [texts[row] for row in order]),
        at=frames.to_time(pc.max(verdict.rows.batch.column("event_time"))),
    )
    outputs.add([NOBODY] * len(texts), [0] * len(texts), tags, piece)
    return outputs


def _make_ids(vertex: str, batch: str, texts: Sequence[str]) -> list[str]:
    """Returns an id for each row that a replay with the same rows makes again, in any order."""
    seen: Counter[str] = Counter()
    ids = []
    for text in texts:
        # Equal rows are numbered: with one id for both, one of them would be dropped as a copy.
        content = f"{batch}\n{seen[text]}\n{text}".encode("utf-8", "surrogatepass")
        ids.append(f"{vertex}-{hashlib.blake2b(content, digest_size=12).hexdigest()}")
        seen[text] += 1
    return ids


def _refuse_large(verdict: Verdict, values: pa.Array) -> None:
    most = pc.max(pc.binary_length(values)).as_py() or 0
    if most > verdict.rules.largest:
        raise MessageTooLarge(most, verdict.rules.largest)
