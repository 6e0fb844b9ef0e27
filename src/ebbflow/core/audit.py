"""Audit rows: what became of every message at every vertex, as columns, for the audit table.

A task publishes the rows of a chunk as the last thing before the chunk is done. They count only
when the position says that the chunk is done: rows of a chunk whose task was lost before that are
told again by the next task, under the same number and a later claim. So of each number the latest
claim counts, and every delivery of a message has exactly one row, whatever crashed (``choose``).

A frame holds only the columns in which rows differ; what all of them share, as in a chunk in which
everything is simply done, is said once. Few rows are written as JSON, which takes a tenth of the
time that Arrow takes for them.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from ebbflow.core import frames
from ebbflow.core.publications import Chunk, EdgeRows, Place, Publication, Routed, Stage
from ebbflow.core.trail import NOT_ROUTED, REDELIVERED, describe_outcome
from ebbflow.core.verdict import Verdict
from ebbflow.outcome import Dropped, Outcome

CHUNK = "Ebbflow-Chunk"
"""The header that says which chunk a frame tells of: number, claim, edition and part."""
OUTCOMES = ("done", "dropped", REDELIVERED, "fallback", "on_success", "served", "dead_lettered")
"""Every outcome of a delivery; all but ``redelivered`` are the end of a message at a vertex."""
DISCARDED = Dropped("the buffer of the next vertex was full")

TIME = frames.TIME
_TEXT = pa.dictionary(pa.int32(), pa.string())
SCHEMA = pa.schema(
    [
        ("id", pa.string()),
        ("outcome", _TEXT),
        ("deliveries", pa.int32()),
        ("reason", pa.string()),
        ("error", pa.string()),
        ("due", TIME),
        ("first_seen", TIME),
        ("ended", TIME),
        ("sent", pa.int32()),
        ("sent_to", _TEXT),
    ]
)
"""The columns of a frame's rows; the table has those of where they come from as well."""

TABLE = pa.schema(
    [
        ("pipeline", _TEXT),
        ("vertex", _TEXT),
        ("partition", pa.int32()),
        *(SCHEMA.field(name) for name in ("id", "outcome")),
        ("final", pa.bool_()),
        *(field for field in SCHEMA if field.name not in ("id", "outcome")),
        ("batch", _TEXT),
    ]
)
"""The columns of the table, in order."""
PLAIN_TABLE = pa.schema(
    [(field.name, pa.string() if field.type == _TEXT else field.type) for field in TABLE]
)
"""The same without dictionaries, for readers that know none."""

_MARK = b"EBBA\x01"
_LZ4 = pa.ipc.IpcWriteOptions(compression="lz4", use_threads=False)
_READ = pa.ipc.IpcReadOptions(use_threads=False)


# --- from a chunk to its rows -------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class HeldRow:
    """A row that an ordered vertex holds: it was delivered, and is not among those settled."""

    row: pa.RecordBatch
    outcome: Outcome


class AuditRows:
    """The rows of one chunk. ``varied`` are the columns in which they differ, the others shared."""

    def __init__(self, varied: dict[str, pa.Array], shared: dict[str, Any]) -> None:
        self.varied = varied
        self.shared = shared

    def discard(self, lost: Sequence[int]) -> AuditRows:
        """Returns the rows when the outputs of some were given up, and these are dropped."""
        rows = len(self.varied["id"])
        outcomes = _column(self.varied.get("outcome"), self.shared.get("outcome"), rows)
        reasons = _column(self.varied.get("reason"), None, rows)
        for index in lost:
            outcomes[index], reasons[index] = "dropped", DISCARDED.rule
        changed = {"outcome": _encode_outcomes(outcomes), "reason": pa.array(reasons, pa.string())}
        shared = {name: value for name, value in self.shared.items() if name not in changed}
        return AuditRows(self.varied | changed, shared)

    def publish(self, chunk: Chunk, place: Place, edition: int = 0) -> Iterator[Publication]:
        """Yields the frames of the rows, stamped with the chunk's number."""
        batch = pa.RecordBatch.from_pydict(self.varied)
        number, claim = chunk.number
        for part, piece in enumerate(_split(batch)):
            stamp = f"{number}.{claim}.{edition}.{part}"
            yield Publication(
                Stage.AUDIT,
                place.vertex,
                place.partition,
                # With the claim: a replay is told anew, and its rows count in place of the first.
                f"{chunk.key}:audit:{stamp}",
                _encode(piece, self.shared),
                {CHUNK: stamp},
            )


def _column(array: pa.Array | None, shared: Any, rows: int) -> list[Any]:
    return [shared] * rows if array is None else array.to_pylist()


def build_audit(
    chunk: Chunk, verdict: Verdict, now: datetime, routed: Routed, held: HeldRow | None
) -> AuditRows | None:
    """Returns what became of each row of a chunk, and of the row held behind it."""
    batch = chunk.rows.batch
    outcomes = dict(verdict.outcomes) | dict.fromkeys(routed.unrouted, NOT_ROUTED)
    sent = None if verdict.decisions.emitted_rows else _count_sent(routed.edges, batch.num_rows)
    if held is not None:
        outcomes[batch.num_rows] = held.outcome
        batch = frames.concat([batch, held.row])
        sent = None
    if not batch.num_rows:
        return None
    shared: dict[str, Any] = {"outcome": "done", "ended": now.astimezone(UTC)}
    varied = {
        "id": batch.column("id"),
        "deliveries": batch.column("deliveries").view(pa.int32()),
        "first_seen": batch.column("first_seen"),
    }
    if outcomes:
        del shared["outcome"]
        varied |= _describe_all(outcomes, batch.num_rows, now)
    if sent is not None:
        for name, value in zip(("sent", "sent_to"), sent, strict=True):
            (varied if isinstance(value, pa.Array) else shared)[name] = value
    return AuditRows(varied, shared)


def _describe_all(outcomes: Mapping[int, Outcome], rows: int, now: datetime) -> dict[str, pa.Array]:
    """Returns the columns that say how rows ended; a row without an outcome is done."""
    columns: dict[str, list[Any]] = {"outcome": ["done"] * rows}
    for index, outcome in outcomes.items():
        for name, value in describe_outcome(outcome, now).items():
            if value is not None:
                columns.setdefault(name, [None] * rows)[index] = value
    arrays = {"outcome": _encode_outcomes(columns.pop("outcome"))}
    for name, values in columns.items():
        arrays[name] = pa.array(values, SCHEMA.field(name).type)
    return arrays


def _encode_outcomes(words: list[str]) -> pa.Array:
    codes = pa.array(map(OUTCOMES.index, words), pa.int32())
    return pa.DictionaryArray.from_arrays(codes, pa.array(OUTCOMES))


def _count_sent(edges: Sequence[EdgeRows], rows: int) -> tuple[Any, Any]:
    """Returns how many outputs each input has, and where they went; one value if all agree."""
    every = range(rows)
    if all(len(edge.parents) == rows and list(edge.parents) == list(every) for edge in edges):
        return len(edges), ",".join(edge.to for edge in edges)
    counts = np.zeros(rows, np.int32)
    taken = np.zeros((len(edges), rows), bool)
    for number, edge in enumerate(edges):
        parents = np.asarray(edge.parents, np.int64)
        own = np.bincount(parents[parents >= 0], minlength=rows)
        counts += own.astype(np.int32)
        taken[number] = own > 0
    patterns, ways = np.unique(taken, axis=1, return_inverse=True)
    names = [
        ",".join(edge.to for edge, is_taken in zip(edges, pattern, strict=True) if is_taken)
        for pattern in patterns.T
    ]
    codes = pa.array(ways.reshape(-1), pa.int32())
    return pa.array(counts), pa.DictionaryArray.from_arrays(codes, pa.array(names, pa.string()))


# --- frames -------------------------------------------------------------------------------------


def _split(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Yields the rows in pieces that fit into a message."""
    if batch.num_rows <= 1 or frames.size_of(batch) <= frames.MAX_BYTES:
        yield batch
    else:
        half = batch.num_rows // 2
        yield from _split(batch.slice(0, half))
        yield from _split(batch.slice(half))


def _encode(batch: pa.RecordBatch, shared: Mapping[str, Any]) -> bytes:
    head: dict[str, Any] = {"rows": batch.num_rows, "shared": _to_plain(shared)}
    if batch.num_rows <= frames.FEW:
        columns = {name: batch.column(name).to_pylist() for name in batch.schema.names}
        head["columns"] = {name: [*map(_plain, values)] for name, values in columns.items()}
        body = b""
    else:
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, batch.schema, options=_LZ4) as writer:
            writer.write_batch(batch)
        body = sink.getvalue()
    text = json.dumps(head, separators=(",", ":")).encode()
    return b"".join((_MARK, len(text).to_bytes(4, "big"), text, body))


def _to_plain(facts: Mapping[str, Any]) -> dict[str, Any]:
    return {name: _plain(value) for name, value in facts.items()}


def _plain(value: Any) -> Any:
    """Returns a value as JSON has it: a time as its microseconds."""
    if isinstance(value, datetime):
        return pa.scalar(value, TIME).value
    return value


def read_audit(payload: bytes | memoryview) -> pa.RecordBatch:
    """Returns the rows of a frame, with all columns; ``ValueError`` if it is no such frame."""
    view = memoryview(payload)
    if view[:5] != _MARK:
        raise ValueError(f"not a frame of audit rows of version 1: starts with {bytes(view[:5])!r}")
    end = 9 + int.from_bytes(view[5:9], "big")
    head = json.loads(bytes(view[9:end]))
    columns = _read_columns(head, view[end:])
    arrays = [_fill(field, columns, head) for field in SCHEMA]
    return pa.RecordBatch.from_arrays(arrays, schema=SCHEMA)


def _read_columns(head: dict[str, Any], body: memoryview) -> dict[str, Any]:
    if "columns" in head:
        columns: dict[str, Any] = head["columns"]
        return columns
    with pa.ipc.open_stream(pa.py_buffer(body), options=_READ) as reader:
        batch = reader.read_next_batch()
    return dict(zip(batch.schema.names, batch.columns, strict=True))


def _fill(field: pa.Field, columns: Mapping[str, Any], head: Mapping[str, Any]) -> pa.Array:
    column = columns.get(field.name)
    if column is None:
        return repeat(head["shared"].get(field.name), head["rows"], field.type)
    if isinstance(column, pa.Array):
        return column
    if field.type == _TEXT:
        return pa.array(column, pa.string()).dictionary_encode()
    return pa.array(column, field.type)


def repeat(value: Any, rows: int, kind: pa.DataType) -> pa.Array:
    """Returns a column of one value; of a text, a dictionary, which costs next to nothing."""
    if value is None:
        return pa.nulls(rows, kind)
    if kind != _TEXT:
        return pa.repeat(pa.scalar(value, kind), rows)
    codes = pa.array(np.zeros(rows, np.int32))
    return pa.DictionaryArray.from_arrays(codes, pa.array([value], pa.string()))


def to_table(
    rows: pa.RecordBatch, pipeline: str, vertex: str, partition: int, batch: str
) -> pa.RecordBatch:
    """Returns the rows of a frame as those of the table, with where they come from."""
    count, outcome = rows.num_rows, rows.column("outcome")
    is_final = pa.array([word != REDELIVERED for word in outcome.dictionary.to_pylist()])
    beside = {
        "pipeline": repeat(pipeline, count, _TEXT),
        "vertex": repeat(vertex, count, _TEXT),
        "partition": repeat(partition, count, pa.int32()),
        "final": is_final.take(outcome.indices),
        "batch": repeat(batch, count, _TEXT),
    }
    arrays = [beside[name] if name in beside else rows.column(name) for name in TABLE.names]
    return pa.RecordBatch.from_arrays(arrays, schema=TABLE)


# --- which frames count -------------------------------------------------------------------------


class AuditStamp(NamedTuple):
    """Which part of which chunk a frame tells of. Of several editions the last one is right."""

    number: int
    claim: int
    edition: int
    part: int

    @classmethod
    def read(cls, text: str) -> AuditStamp:
        """From the header of a frame."""
        return cls(*map(int, text.split(".")))


class ToldFrame(NamedTuple):
    """A frame of the audit stream: its sequence, where it comes from and what it tells of."""

    seq: int
    vertex: str
    partition: int
    stamp: AuditStamp


def choose(
    told: Iterable[ToldFrame], after: Mapping[tuple[str, int], int], done: Mapping[Any, int]
) -> list[ToldFrame]:
    """Returns the frames that count of the chunks behind ``after`` up to ``done``, in order.

    Both are numbers of chunks for each vertex and partition. A chunk up to ``done`` is recorded, so
    no task will tell it again, and what it has told is stored. The answer is the same for ever.
    """
    latest: dict[tuple[str, int, int], tuple[tuple[int, int], dict[int, ToldFrame]]] = {}
    for frame in told:
        whose, stamp = (frame.vertex, frame.partition), frame.stamp
        if not after.get(whose, 0) < stamp.number <= done.get(whose, 0):
            continue
        key, own = (*whose, stamp.number), (stamp.claim, stamp.edition)
        newest, parts = latest.setdefault(key, (own, {}))
        # Of a number the latest claim counts: a task claims only what was not recorded, so what the
        # one before has told of it did not come to be. A frame of its that is late changes nothing.
        if own > newest:
            newest, parts = latest[key] = (own, {})
        if own == newest:
            parts.setdefault(stamp.part, frame)  # a copy that the server did not know says the same
    frames_that_count = (frame for _, parts in latest.values() for frame in parts.values())
    return sorted(frames_that_count, key=lambda frame: frame.seq)
