"""Audit rows: the outcome of every message at every vertex, as columns, for the audit table.

Publishing its rows is the last step before a chunk is done. They count only when the position says
that the chunk is done: if a task is lost before that, the next task publishes the rows again, with
the same number and a later claim. So for each number the latest claim counts, and every delivery of
a message has exactly one row, whatever crashed (``choose``).

A frame has only the columns in which its rows differ; values that all rows share, as in a chunk in
which every message is done, are written once. Few rows are written as JSON, in a tenth of the time
that Arrow needs for them.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from ebbflow.engine import frames
from ebbflow.engine.account import REDELIVERED, Account
from ebbflow.engine.publications import Place, Publication, Stage

CHUNK = "Ebbflow-Chunk"
"""The header that says which chunk a frame is about: number, claim, edition and part."""
PATH = "Ebbflow-Path"
"""The header that names the inline vertices from the task's vertex to the one it is about."""

TIME = frames.TIME
COLUMNS = {
    "id": pa.string(),
    "outcome": pa.string(),
    "deliveries": pa.int32(),
    "reason": pa.string(),
    "error": pa.string(),
    "due": TIME,
    "first_seen": TIME,
    "ended": TIME,
    "sent": pa.int32(),
    "sent_to": pa.string(),
}
"""The columns that a frame may have; the table also has columns for where rows come from."""

_TEXT = pa.dictionary(pa.int32(), pa.string())
FEW_VALUES = ("pipeline", "vertex", "outcome", "sent_to", "batch")
"""The text columns in which many rows have the same value."""
PLAIN_TABLE = pa.schema(
    [
        ("pipeline", pa.string()),
        ("vertex", pa.string()),
        ("partition", pa.int32()),
        ("id", pa.string()),
        ("outcome", pa.string()),
        ("final", pa.bool_()),
        *((name, kind) for name, kind in COLUMNS.items() if name not in ("id", "outcome")),
        ("batch", pa.string()),
    ]
)
"""The columns of the table, in order."""
TABLE = pa.schema([(f.name, _TEXT if f.name in FEW_VALUES else f.type) for f in PLAIN_TABLE])
"""The same columns, with dictionaries for those with few values."""

_MARK = b"EBBA\x01"
_CODEC = pa.Codec("lz4")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)


# --- the rows of a chunk -------------------------------------------------------------------------


class AuditRows:
    """Rows of one chunk. ``varied`` are the columns in which they differ, ``shared`` the rest."""

    def __init__(self, rows: int, varied: dict[str, pa.Array], shared: dict[str, Any]) -> None:
        self.rows = rows
        self.varied = varied
        self.shared = shared

    def publish(self, account: Account, place: Place) -> Iterator[Publication]:
        """Yields the frames of the rows, stamped with the number of their chunk."""
        batch = pa.RecordBatch.from_arrays([*self.varied.values()], names=[*self.varied])
        vertex, partition, headers = place.vertex, place.partition, dict[str, str]()
        if account.via:
            # The rows count when the chunk of the task that ran the vertex is done.
            vertex, _, number = account.writer.rpartition(".")
            partition, headers = int(number), {PATH: account.via}
        for part, piece in enumerate(_split(batch)):
            stamp = f"{account.number.number}.{account.number.claim}.{account.edition}.{part}"
            yield Publication(
                Stage.AUDIT,
                vertex,
                partition,
                # With the claim: a replay publishes its rows again, and they replace the first.
                f"{account.key}:audit:{stamp}",
                _encode(piece, self.shared),
                headers | {CHUNK: stamp},
            )


# --- frames -------------------------------------------------------------------------------------


def _split(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Yields the rows in pieces that fit into a message each."""
    if batch.num_rows <= 1 or frames.size_of(batch) <= frames.MAX_BYTES:
        yield batch
    else:
        half = batch.num_rows // 2
        yield from _split(batch.slice(0, half))
        yield from _split(batch.slice(half))


def _encode(batch: pa.RecordBatch, shared: Mapping[str, Any]) -> bytes:
    head: dict[str, Any] = {"rows": batch.num_rows, "shared": _to_plain(shared)}
    body = b""
    if batch.num_rows <= frames.FEW:
        columns = {name: batch.column(name).to_pylist() for name in batch.schema.names}
        head["values"] = {name: [*map(_plain, values)] for name, values in columns.items()}
    else:
        # Both sides know the types of the columns, so only the batch itself is sent.
        plain = batch.serialize()
        head |= {"columns": batch.schema.names, "size": plain.size}
        body = _CODEC.compress(plain, asbytes=True)
    text = json.dumps(head, separators=(",", ":")).encode()
    return b"".join((_MARK, len(text).to_bytes(4, "big"), text, body))


def _to_plain(facts: Mapping[str, Any]) -> dict[str, Any]:
    return {name: _plain(value) for name, value in facts.items()}


def _plain(value: Any) -> Any:
    """Returns a value for JSON: a time as its microseconds."""
    if isinstance(value, datetime):
        return (value - _EPOCH) // _MICROSECOND
    return value


def read_audit(payload: bytes | memoryview) -> AuditRows:
    """Returns the rows of a frame; ``ValueError`` if it is not a frame of audit rows."""
    view = memoryview(payload)
    if view[:5] != _MARK:
        raise ValueError(f"not a frame of audit rows of version 1: starts with {bytes(view[:5])!r}")
    end = 9 + int.from_bytes(view[5:9], "big")
    head = json.loads(bytes(view[9:end]))
    if "values" in head:
        varied = {name: pa.array(v, COLUMNS[name]) for name, v in head["values"].items()}
    else:
        plain = _CODEC.decompress(view[end:], head["size"])
        batch = pa.ipc.read_record_batch(plain, _schema_of(tuple(head["columns"])))
        varied = dict(zip(head["columns"], batch.columns, strict=True))
    return AuditRows(head["rows"], varied, head["shared"])


@lru_cache(maxsize=64)
def _schema_of(names: tuple[str, ...]) -> pa.Schema:
    return pa.schema([(name, COLUMNS[name]) for name in names])


# --- the table ----------------------------------------------------------------------------------


class PlacedRows(NamedTuple):
    """The rows of a frame, and where they come from."""

    vertex: str
    partition: int
    told: AuditRows


def to_table(pieces: Sequence[PlacedRows], pipeline: str, batch: str) -> pa.RecordBatch:
    """Returns the rows of many frames with the columns of the table.

    Values that the rows of a frame share are repeated for all frames at once.
    """
    counts = [piece.told.rows for piece in pieces]
    places = pa.array(np.repeat(np.arange(len(pieces), dtype=np.int32), counts))
    columns = {name: _join(pieces, name, kind, places) for name, kind in COLUMNS.items()}
    outcome = columns["outcome"]
    is_final = pa.array([word != REDELIVERED for word in outcome.dictionary.to_pylist()])
    columns |= {
        "pipeline": _repeat([pipeline] * len(pieces), _TEXT, places),
        "vertex": _repeat([piece.vertex for piece in pieces], _TEXT, places),
        "partition": _repeat([piece.partition for piece in pieces], pa.int32(), places),
        "final": is_final.take(outcome.indices),
        "batch": _repeat([batch] * len(pieces), _TEXT, places),
    }
    return pa.RecordBatch.from_arrays([columns[name] for name in TABLE.names], schema=TABLE)


def _join(pieces: Sequence[PlacedRows], name: str, kind: pa.DataType, places: pa.Array) -> pa.Array:
    """Returns a column of all frames."""
    values = [piece.told.shared.get(name) for piece in pieces]
    own = [piece.told.varied.get(name) for piece in pieces]
    if all(array is None for array in own):
        return _repeat(values, _TEXT if name in FEW_VALUES else kind, places)
    arrays = [
        pa.repeat(pa.scalar(value, kind), piece.told.rows) if array is None else array
        for piece, value, array in zip(pieces, values, own, strict=True)
    ]
    column = pa.concat_arrays(arrays)
    return column.dictionary_encode() if name in FEW_VALUES else column


def _repeat(values: Sequence[Any], kind: pa.DataType, places: pa.Array) -> pa.Array:
    """Returns a column with the value of each frame for each of its rows."""
    if all(value is None for value in values):
        return pa.nulls(len(places), kind)
    if kind != _TEXT:
        return pa.array(values, kind).take(places)
    encoded = pa.array(values, pa.string()).dictionary_encode()
    return pa.DictionaryArray.from_arrays(encoded.indices.take(places), encoded.dictionary)


# --- which frames count -------------------------------------------------------------------------


class AuditStamp(NamedTuple):
    """Which part of which chunk a frame is about. Of several editions the last one counts."""

    number: int
    claim: int
    edition: int
    part: int

    @classmethod
    def read(cls, text: str) -> AuditStamp:
        """Reads the header of a frame."""
        return cls(*map(int, text.split(".")))


class AuditFrame(NamedTuple):
    """A frame of the audit stream: its sequence, the task that wrote it and what it is about.

    ``path`` is the chain of inline vertices to the one that it is about, if that is not the task's.
    """

    seq: int
    vertex: str
    partition: int
    stamp: AuditStamp
    path: str = ""

    def rows(self, told: AuditRows) -> PlacedRows:
        """Returns its rows, with the vertex that they are about."""
        return PlacedRows(self.path.rpartition(">")[2] or self.vertex, self.partition, told)


def choose(
    written: Iterable[AuditFrame], after: Mapping[tuple[str, int], int], done: Mapping[Any, int]
) -> list[AuditFrame]:
    """Returns the frames that count of the chunks after ``after`` up to ``done``, in order.

    Both are numbers of chunks for each vertex and partition. A chunk up to ``done`` is recorded, so
    its rows are stored and no task publishes them again. The result never changes.
    """
    chunks: dict[tuple[str, int, int], list[AuditFrame]] = defaultdict(list)
    for frame in written:
        task, number = (frame.vertex, frame.partition), frame.stamp.number
        if after.get(task, 0) < number <= done.get(task, 0):
            chunks[*task, number].append(frame)
    chosen = (frame for frames in chunks.values() for frame in _choose_of_chunk(frames))
    return sorted(chosen, key=lambda frame: frame.seq)


def _choose_of_chunk(written: Sequence[AuditFrame]) -> Iterable[AuditFrame]:
    # The latest claim of a number counts: a task claims only chunks that were not recorded, so the
    # earlier task's rows about it did not take effect. A late frame of that task changes nothing.
    claim = max(frame.stamp.claim for frame in written)
    parts: dict[tuple[str, int], AuditFrame] = {}
    editions: dict[str, int] = defaultdict(int)
    for frame in written:
        if frame.stamp.claim == claim:
            editions[frame.path] = max(editions[frame.path], frame.stamp.edition)
    for frame in written:
        if frame.stamp.claim == claim and frame.stamp.edition == editions[frame.path]:
            # A copy that the server did not recognise has the same rows.
            parts.setdefault((frame.path, frame.stamp.part), frame)
    return parts.values()
