"""Columnar maps: a record batch in, a record batch out, without a Python call for each message.

The input has the columns of a frame. The output needs ``value`` (binary). Without ``id`` it must
have a row for every input, in order; with ``id`` (of inputs) there may be any number of rows for
an input, and an input without a row is dropped. Optional: ``keys`` (lists of texts), ``tags``
(lists of texts), ``event_time``, and to give rows back ``nack`` (true or false) with
``nack_delay`` (milliseconds), ``nack_max_deliveries`` and ``nack_reason``. A null is as good as
nothing given: such a row keeps the keys and the event time of its input.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from ebbflow.core import frames
from ebbflow.core.frames import Rows
from ebbflow.core.outputs import GIVEN
from ebbflow.core.verdict import Verdict
from ebbflow.errors import ContractViolation, MessageTooLarge
from ebbflow.nacks import NackOptions

TYPES: dict[str, pa.DataType] = {
    "value": pa.binary(),
    "id": pa.string(),
    "keys": pa.list_(pa.string()),
    "tags": pa.list_(pa.string()),
    "event_time": frames.TIME,
    "nack": pa.bool_(),
    "nack_delay": pa.int64(),
    "nack_max_deliveries": pa.int64(),
    "nack_reason": pa.string(),
}
"""The columns that a columnar map may return."""


COLUMNS = [
    *("id", "keys", "value", "event_time", "headers", "metadata"),
    *("deliveries", "nack_reason"),
]
"""The columns that a columnar map is given."""

SINK_COLUMNS = [*COLUMNS, "retries"]
"""The columns that a columnar sink is given."""


def select_columns(rows: Rows, names: Sequence[str]) -> pa.RecordBatch:
    """Returns the columns that columnar user code is given: these, and the vertex's watermark."""
    times = pa.repeat(pa.scalar(rows.watermark, frames.TIME), len(rows))
    return rows.batch.select(names).append_column("watermark", times)


def record_columns(
    verdict: Verdict,
    start: int,
    count: int,
    result: Any,
    types: Mapping[str, pa.DataType] = TYPES,
) -> None:
    """Records what a columnar map returned for ``count`` inputs from the one at ``start`` on."""
    columns = _check_columns(verdict.rules.vertex, result, types)
    parents = _find_parents(verdict, start, count, columns)
    ended = _record_nacks(verdict, parents, columns)
    ended |= _refuse_large(verdict, parents, columns, ended)
    _drop_absent(verdict, start, count, parents)
    if ended:
        kept = [row for row, parent in enumerate(parents) if parent not in ended]
        chosen = pa.array(kept, pa.int64())
        columns = {name: column.take(chosen) for name, column in columns.items()}
        parents = [parents[row] for row in kept]
    _forward(verdict, parents, columns)


def _check_columns(
    vertex: str, result: Any, types: Mapping[str, pa.DataType]
) -> dict[str, pa.Array]:
    batch = result if isinstance(result, pa.Table) else _as_table(vertex, result)
    columns: dict[str, pa.Array] = {}
    for name, kind in types.items():
        if name in batch.schema.names:
            try:
                columns[name] = batch.column(name).combine_chunks().cast(kind)
            except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
                raise _violation(vertex, f"returned a column {name!r}: {error}") from error
            if pa.types.is_list(kind) and columns[name].flatten().null_count:
                raise _violation(vertex, f"returned a column {name!r} with nulls in its lists")
    if "value" not in columns or columns["value"].null_count:
        raise _violation(vertex, "returned no column 'value' without nulls")
    return columns


def _as_table(vertex: str, result: Any) -> pa.Table:
    if isinstance(result, pa.RecordBatch):
        return pa.Table.from_batches([result])
    if type(result).__name__ == "DataFrame":
        return pa.Table.from_pandas(result, preserve_index=False)
    raise _violation(vertex, f"returned {type(result).__name__}")


def _violation(vertex: str, what: str) -> ContractViolation:
    return ContractViolation(
        vertex,
        f"{what} from a columnar map",
        fix="Return a RecordBatch, Table or DataFrame with a binary column 'value', one row for "
        "each input in order, or with a column 'id' that names the input of each row.",
    )


def _find_parents(
    verdict: Verdict, start: int, count: int, columns: dict[str, pa.Array]
) -> Sequence[int]:
    """Returns the index of the input of each row."""
    vertex = verdict.rules.vertex
    rows = len(columns["value"])
    if "id" not in columns:
        if rows != count:
            raise _violation(vertex, f"returned {rows} rows for {count} messages")
        return range(start, start + count)
    places = {i: start + n for n, i in enumerate(verdict.rows.column("id")[start : start + count])}
    ids = columns["id"].to_pylist()
    unknown = [i for i in ids if i not in places]
    if unknown:
        raise _violation(vertex, f"returned the unknown id {unknown[0]!r}")
    return [places[i] for i in ids]


def _record_nacks(
    verdict: Verdict, parents: Sequence[int], columns: dict[str, pa.Array]
) -> set[int]:
    """Nacks the inputs of the rows to be nacked, each as a whole; returns these inputs."""
    if "nack" not in columns:
        return set()
    names = ("nack_delay", "nack_max_deliveries", "nack_reason")
    asked = [columns[n].to_pylist() if n in columns else [None] * len(parents) for n in names]
    nacked: set[int] = set()
    times = columns.get("event_time")
    for row in pc.indices_nonzero(columns["nack"].fill_null(False)).to_pylist():
        if times is not None and times[row].is_valid:
            verdict.decisions.note_event_times([times[row].as_py()])
        if parents[row] not in nacked:
            nacked.add(parents[row])
            verdict.nack(parents[row], NackOptions(*(column[row] for column in asked)))
    return nacked


def _refuse_large(
    verdict: Verdict, parents: Sequence[int], columns: dict[str, pa.Array], nacked: set[int]
) -> set[int]:
    """Records an error for the inputs of rows that no message can hold; returns these inputs."""
    refused: set[int] = set()
    largest, keys = verdict.rules.largest, columns.get("keys")
    sizes = pc.binary_length(columns["value"])
    most = pc.max(sizes).as_py() or 0
    if most + (0 if keys is None else keys.nbytes) > largest:
        for row, (parent, size) in enumerate(zip(parents, sizes.to_pylist(), strict=True)):
            own = () if keys is None else keys[row].as_py() or ()
            size += sum(len(key.encode()) for key in own)
            if size > largest and parent not in nacked and parent not in refused:
                refused.add(parent)
                verdict.record_error(parent, MessageTooLarge(size, largest))
    return refused


def _drop_absent(verdict: Verdict, start: int, count: int, parents: Sequence[int]) -> None:
    if parents != range(start, start + count):
        for index in set(range(start, start + count)) - set(parents):
            verdict.decisions.drop(index)


def _forward(verdict: Verdict, parents: Sequence[int], columns: dict[str, pa.Array]) -> None:
    tags = columns.get("tags")
    verdict.decisions.forward_columns(
        parents,
        _number_siblings(parents),
        [()] * len(parents) if tags is None else [t or () for t in tags.to_pylist()],
        {name: columns[name] for name in GIVEN if name in columns},
    )


def _number_siblings(parents: Sequence[int]) -> list[int]:
    """Returns each row's number among the outputs of its input."""
    if isinstance(parents, range) or len(set(parents)) == len(parents):
        return [0] * len(parents)
    seen: defaultdict[int, int] = defaultdict(int)
    numbers = []
    for parent in parents:
        numbers.append(seen[parent])
        seen[parent] += 1
    return numbers
