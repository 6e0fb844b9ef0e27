"""Columnar maps: a record batch in, a record batch out, without a Python call for each message.

The input has the columns of a frame and the watermark. The output needs ``value`` (binary). Without
``id`` and ``row`` it must have a row for every input, in order; with ``id`` (of inputs) or ``row``
(their numbers in the batch, from 0) there may be any number of rows for an input, and an input
without a row is dropped. Optional: ``keys`` (lists of texts), ``tags`` (lists of texts),
``event_time``, ``metadata`` (groups of named bytes); ``drop`` (true or false) leaves a row out,
``error`` (a text) marks the input as failed; to nack an input, ``nack`` (true or false) with
``nack_delay`` (milliseconds), ``nack_max_deliveries`` and ``nack_reason``. A null counts as unset:
such a row keeps the keys, event time and metadata of its input.

A map may return a pair: the outputs, and ``{row: exception}`` for inputs on which it has failed, by
their numbers in the batch. Such an input counts as if the map had raised on it alone. ``None`` in
place of the exception says that the input was not tried and is redelivered as it was.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from operator import itemgetter
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from ebbflow.domain.errors import ContractViolation, MessageTooLarge
from ebbflow.domain.message import NackOptions
from ebbflow.engine import frames
from ebbflow.engine.frames import Rows
from ebbflow.engine.outputs import GIVEN
from ebbflow.engine.verdict import Verdict

QUERY_TYPES: dict[str, pa.DataType] = {
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
"""The columns that a query may return, too."""

TYPES: dict[str, pa.DataType] = QUERY_TYPES | {
    "row": pa.int64(),
    "metadata": frames.SCHEMA.field("metadata").type,
    "drop": pa.bool_(),
    "error": pa.string(),
}
"""The columns that a columnar map may return."""


COLUMNS = [
    *("id", "keys", "value", "event_time", "headers", "metadata"),
    *("deliveries", "nack_reason", "retries"),
]
"""The columns of a frame that columnar code gets, followed by ``WATERMARK``."""

WATERMARK = "watermark"


def select_columns(rows: Rows) -> pa.RecordBatch:
    """Returns the columns that columnar user code gets, including the vertex's watermark."""
    times = pa.repeat(pa.scalar(rows.watermark, frames.TIME), len(rows))
    return rows.batch.select(COLUMNS).append_column(WATERMARK, times)


def record_columns(
    verdict: Verdict,
    start: int,
    count: int,
    result: Any,
    types: Mapping[str, pa.DataType] = TYPES,
) -> list[tuple[int, BaseException | None]]:
    """Records the result of a columnar map for ``count`` inputs, beginning at ``start``.

    Returns the inputs that failed individually, each with its error, or ``None`` if it was not
    tried; they are not decided here.
    """
    outputs, failed = _take_apart(verdict.rules.vertex, count, result)
    columns = _check_columns(verdict.rules.vertex, outputs, types)
    parents = _find_parents(verdict, start, count, columns)
    ended = {start + row for row in failed}
    ended |= _refuse_times(verdict, parents, columns, ended)
    ended |= _record_nacks(verdict, parents, columns, ended)
    ended |= _record_failures(verdict, parents, columns, ended)
    ended |= _refuse_large(verdict, parents, columns, ended)
    left_out = _leave_out(verdict, columns)
    if ended or left_out:
        rows = enumerate(parents)
        kept = [row for row, parent in rows if parent not in ended and row not in left_out]
        chosen = pa.array(kept, pa.int64())
        columns = {name: column.take(chosen) for name, column in columns.items()}
        parents = [parents[row] for row in kept]
    _drop_absent(verdict, range(start, start + count), ended, parents)
    _forward(verdict, parents, columns)
    return [(start + row, error) for row, error in sorted(failed.items(), key=itemgetter(0))]


def _take_apart(
    vertex: str, count: int, result: Any
) -> tuple[Any, Mapping[int, BaseException | None]]:
    """Returns the outputs, and the inputs that failed by their numbers in the batch."""
    if not isinstance(result, tuple):
        return result, {}
    if len(result) != 2 or not isinstance(result[1], Mapping):
        raise _violation(vertex, "returned a tuple that is not a pair of outputs and failed rows")
    for row, error in result[1].items():
        if type(row) is not int or not 0 <= row < count:
            raise _violation(vertex, f"returned an error for row {row!r:.40} of {count}")
        if not isinstance(error, BaseException | None):
            raise _violation(vertex, f"returned {error!r:.80} as the error of a row")
    return result


def _check_columns(
    vertex: str, result: Any, types: Mapping[str, pa.DataType]
) -> dict[str, pa.Array]:
    batch = result if isinstance(result, pa.Table) else _as_table(vertex, result)
    columns: dict[str, pa.Array] = {}
    for name, kind in types.items():
        if name in batch.schema.names:
            if pa.types.is_null(batch.schema.field(name).type) and name != "value":
                continue  # only nulls, the type that data frames give to empty columns
            try:
                columns[name] = batch.column(name).combine_chunks().cast(kind)
                columns[name].validate(full=True)  # for example text that is not valid UTF-8
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
    if "row" in columns:
        return _check_rows(vertex, start, count, columns["row"])
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


def _check_rows(vertex: str, start: int, count: int, rows: pa.Int64Array) -> list[int]:
    least, most = pc.min_max(rows).as_py().values() if len(rows) else (0, 0)
    if rows.null_count or least < 0 or (most >= count and len(rows)):
        raise _violation(vertex, f"returned a column 'row' with a number that is not below {count}")
    parents: list[int] = pc.add(rows, start).to_pylist()
    return parents


def _record_nacks(
    verdict: Verdict,
    parents: Sequence[int],
    columns: dict[str, pa.Array],
    ended: Collection[int],
) -> set[int]:
    """Nacks the inputs of rows with ``nack``, each as a whole; returns these inputs."""
    if "nack" not in columns:
        return set()
    names = ("nack_delay", "nack_max_deliveries", "nack_reason")
    asked = [columns[n].to_pylist() if n in columns else [None] * len(parents) for n in names]
    nacked: set[int] = set()
    rows = _rows_with(columns, "nack")
    _note_times(verdict, columns, rows)
    for row in rows:
        if parents[row] not in nacked and parents[row] not in ended:
            nacked.add(parents[row])
            verdict.nack(parents[row], NackOptions(*(column[row] for column in asked)))
    return nacked


def _record_failures(
    verdict: Verdict,
    parents: Sequence[int],
    columns: dict[str, pa.Array],
    ended: Collection[int],
) -> set[int]:
    """Records the inputs of rows with ``error`` as failed, each as a whole; returns them."""
    if "error" not in columns:
        return set()
    failed: set[int] = set()
    rows = pc.indices_nonzero(pc.is_valid(columns["error"])).to_pylist()
    _note_times(verdict, columns, rows)
    for row in rows:
        if parents[row] not in failed and parents[row] not in ended:
            failed.add(parents[row])
            verdict.fail(parents[row], columns["error"][row].as_py())
    return failed


def _leave_out(verdict: Verdict, columns: dict[str, pa.Array]) -> set[int]:
    """Returns the rows that are not forwarded; their event times count nevertheless."""
    rows = _rows_with(columns, "drop")
    _note_times(verdict, columns, rows)
    return set(rows)


def _rows_with(columns: dict[str, pa.Array], flag: str) -> list[int]:
    if flag not in columns:
        return []
    rows: list[int] = pc.indices_nonzero(columns[flag].fill_null(False)).to_pylist()
    return rows


def _note_times(verdict: Verdict, columns: dict[str, pa.Array], rows: Sequence[int]) -> None:
    if rows and (times := columns.get("event_time")) is not None:
        chosen = times.take(pa.array(rows, pa.int64())).drop_null()
        verdict.decisions.note_event_times(chosen.to_pylist())


def _refuse_times(
    verdict: Verdict, parents: Sequence[int], columns: dict[str, pa.Array], ended: Collection[int]
) -> set[int]:
    """Records an error for the inputs of rows whose time Python cannot represent; returns them."""
    if "event_time" not in columns:
        return set()
    times = columns["event_time"].cast(pa.int64())
    out_of_range = pc.or_(
        pc.less(times, frames.FIRST_TIME), pc.greater(times, frames.LAST_TIME)
    ).fill_null(False)
    rows = pc.indices_nonzero(out_of_range).to_pylist()
    if rows:  # these times must not count toward the watermark
        kept = pc.if_else(out_of_range, pa.scalar(None, pa.int64()), times)
        columns["event_time"] = kept.cast(frames.TIME)
    refused = {parents[row] for row in rows}.difference(ended)
    for parent in sorted(refused):
        error = ContractViolation(
            verdict.rules.vertex,
            "returned an event_time that is not in the years 1 to 9999 from a columnar map",
            fix="Check the unit of the times: event_time is in microseconds.",
        )
        verdict.record_error(parent, error)
    return refused


def _refuse_large(
    verdict: Verdict, parents: Sequence[int], columns: dict[str, pa.Array], ended: Collection[int]
) -> set[int]:
    """Records an error for the inputs of rows too large for a message; returns these inputs."""
    refused: set[int] = set()
    largest = verdict.rules.largest
    others = [columns[name] for name in ("keys", "metadata") if name in columns]
    sizes = pc.binary_length(columns["value"])
    most = pc.max(sizes).as_py() or 0
    if most + sum(column.nbytes for column in others) > largest:
        for row, (parent, size) in enumerate(zip(parents, sizes.to_pylist(), strict=True)):
            size += sum(frames.count_content(column.slice(row, 1)) for column in others)
            if size > largest and parent not in ended and parent not in refused:
                refused.add(parent)
                verdict.record_error(parent, MessageTooLarge(size, largest))
    return refused


def _drop_absent(
    verdict: Verdict, inputs: range, ended: Collection[int], parents: Sequence[int]
) -> None:
    if parents != inputs:
        for index in set(inputs).difference(ended, parents):
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
