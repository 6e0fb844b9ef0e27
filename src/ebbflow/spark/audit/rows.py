"""Audit rows on a worker: frames of a batch, read from the stream and given to Spark or a file.

Both ways are Spark tasks. A Parquet file on a disk that the worker shares with the driver is
written by Arrow in the task itself: that takes a sixth of the time that Spark takes to write the
same rows one by one.
"""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.parquet as pq

from ebbflow.buffers.audit import AuditBatch
from ebbflow.buffers.names import Names
from ebbflow.core.audit import PLAIN_TABLE, TABLE, ToldFrame, ToldRows, read_audit, to_table
from ebbflow.nats.address import Addresses
from ebbflow.nats.behind import read_behind
from ebbflow.nats.link import Link, worker_link
from ebbflow.nats.pull import Deliveries

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
    batches = read_behind(link.client, names.audit, "", min(frames) - 1)
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


def write_file(rows: BatchRows, path: str) -> int:
    """Writes a Parquet file on a worker and returns how many rows it has; on disk when it does."""
    count = 0
    with pq.ParquetWriter(path, TABLE, **_FORMAT) as writer:
        for batch in rows.read():
            writer.write_batch(batch, row_group_size=batch.num_rows)
            count += batch.num_rows
    with open(path, "rb") as file:
        os.fsync(file.fileno())
    return count


def give_rows(_: Iterator[pa.RecordBatch], rows: BatchRows) -> Iterator[pa.RecordBatch]:
    """Yields the rows to Spark, on a worker; Spark writes them."""
    for batch in rows.read():
        yield batch.cast(PLAIN_TABLE)


def plain_ddl() -> str:
    """Returns the columns of the table as Spark names their types."""
    kinds = {pa.string(): "string", pa.int32(): "int", pa.bool_(): "boolean"}
    return ", ".join(f"{f.name} {kinds.get(f.type, 'timestamp')}" for f in PLAIN_TABLE)
