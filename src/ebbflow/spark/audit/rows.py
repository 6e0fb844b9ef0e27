"""Audit rows on a worker: frames of a batch, read from the stream and given to Spark or a file.

Both ways are Spark tasks. A Parquet file on a disk that the worker shares with the driver is
written by Arrow in the task itself: that takes a sixth of the time that Spark takes to write the
same rows one by one.
"""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from ebbflow.engine.audit import (
    FEW_VALUES,
    PLAIN_TABLE,
    TABLE,
    ToldFrame,
    ToldRows,
    read_audit,
    to_table,
)
from ebbflow.nats.link import Link, worker_link
from ebbflow.nats.login import Addresses
from ebbflow.nats.pull import Deliveries
from ebbflow.nats.stored import read_after
from ebbflow.streams.audit import AuditBatch
from ebbflow.streams.names import Names

_GROUP = 500_000
# Ids have long beginnings in common. The other columns hold few values, and Arrow writes those as
# what they are; statistics of ids that come in any order would let no reader leave anything out.
_FORMAT = {
    "compression": "snappy",
    "use_dictionary": [name for name in TABLE.names if name != "id"],
    "column_encoding": {"id": "DELTA_BYTE_ARRAY"},
    "write_statistics": ["ended", "vertex"],
    "store_schema": False,
}


@dataclass(frozen=True, slots=True)
class BatchRows:
    """The rows of a batch, for a worker to read."""

    server: Addresses
    pipeline: str
    batch: AuditBatch

    def read(self) -> Iterator[pa.RecordBatch]:
        """Yields the rows as those of the table, many frames at a time."""
        link, group = worker_link(self.server), list[ToldRows]()
        frames = {frame.seq: frame for frame in self.batch.frames}
        for pieces in _read_pieces(link, Names(self.pipeline), frames):
            group += pieces
            if sum(piece.told.rows for piece in group) >= _GROUP:
                yield to_table(group, self.pipeline, self.batch.name)
                group = []
        if group:
            yield to_table(group, self.pipeline, self.batch.name)


def _read_pieces(
    link: Link, names: Names, frames: dict[int, ToldFrame]
) -> Iterator[Sequence[ToldRows]]:
    """Yields the frames that are meant, many at a time."""
    batches = read_after(link.client, names.audit, "", min(frames) - 1)
    left = len(frames)
    try:
        while left:
            batch = link.run(_next(batches))
            pieces = [
                ToldRows(*frames[seq][1:3], read_audit(batch.parcel.payload(row)))
                for row, seq in enumerate(batch.seqs)
                if seq in frames
            ]
            left -= len(pieces)
            yield pieces
    finally:
        link.run(_close(batches))


async def _next(batches: AsyncIterator[Deliveries]) -> Deliveries:
    return await anext(batches)


async def _close(batches: AsyncGenerator[Deliveries]) -> None:
    await batches.aclose()


def write_files(rows: BatchRows, path: str) -> dict[str, str]:
    """Writes a Parquet file for each day on a worker; returns them by their days, on disk."""
    files: dict[str, str] = {}
    with ExitStack() as stack:
        writers: dict[str, pq.ParquetWriter] = {}
        for batch in rows.read():
            for day, part in _split_by_day(batch):
                if day not in writers:
                    files[day] = f"{path}~{day}.part"
                    writers[day] = stack.enter_context(_open_writer(files[day]))
                writers[day].write_batch(part, row_group_size=part.num_rows)
    for file in files.values():
        _sync_file(file)
    return files


def _split_by_day(batch: pa.RecordBatch) -> Iterator[tuple[str, pa.RecordBatch]]:
    """Yields the rows of each day, in UTC, that rows ended on."""
    days = pc.floor_temporal(batch.column("ended"), unit="day")
    ends = pc.min_max(days).as_py()
    if ends["min"] == ends["max"]:
        yield f"{ends['min']:%Y-%m-%d}", batch
        return
    for day in pc.unique(days).to_pylist():
        yield f"{day:%Y-%m-%d}", batch.filter(pc.equal(days, pa.scalar(day, days.type)))


def merge_files(paths: Sequence[str], target: str) -> int:
    """Writes the rows of files into one, in large groups; returns how many, when they are on disk.

    ``FileNotFoundError`` if one is gone.
    """
    count, group = 0, list[pa.RecordBatch]()
    with _open_writer(target) as writer:
        for batch in _read_files(paths):
            group.append(batch)
            if sum(piece.num_rows for piece in group) >= _GROUP:
                count += _write_group(writer, group)
        count += _write_group(writer, group)
    _sync_file(target)
    return count


def _read_files(paths: Sequence[str]) -> Iterator[pa.RecordBatch]:
    for path in paths:
        with pq.ParquetFile(path, read_dictionary=[*FEW_VALUES]) as file:
            yield from file.iter_batches(_GROUP)


def _write_group(writer: pq.ParquetWriter, group: list[pa.RecordBatch]) -> int:
    if not group:
        return 0
    table = pa.Table.from_batches(group).unify_dictionaries().cast(TABLE)
    writer.write_table(table, row_group_size=table.num_rows)
    group.clear()
    return int(table.num_rows)


def _open_writer(path: str) -> pq.ParquetWriter:
    return pq.ParquetWriter(path, TABLE, **_FORMAT)


def _sync_file(path: str) -> None:
    with open(path, "rb") as file:
        os.fsync(file.fileno())


def give_rows(_: Iterator[pa.RecordBatch], rows: BatchRows) -> Iterator[pa.RecordBatch]:
    """Yields the rows to Spark, on a worker; Spark writes them."""
    for batch in rows.read():
        yield batch.cast(PLAIN_TABLE)


def plain_ddl() -> str:
    """Returns the columns of the table as Spark names their types."""
    kinds = {pa.string(): "string", pa.int32(): "int", pa.bool_(): "boolean"}
    return ", ".join(f"{f.name} {kinds.get(f.type, 'timestamp')}" for f in PLAIN_TABLE)
