"""The stream of audit rows, and the record of how far the audit table is written.

Tasks publish frames to the stream; a writer on the driver puts the frames that count into the
table, batch by batch (``spark.audit``). The record says which chunks of each partition are written.
It is replaced twice for each batch: with the end of the batch before it is written, and when it has
been written. A writer that finds a batch begun writes exactly the same batch again, with the same
name. Frames are deleted only when the record says that they are in the table.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace

from ebbflow.domain.errors import Fenced
from ebbflow.nats import api
from ebbflow.nats.client import SecuredClient
from ebbflow.nats.link import Link
from ebbflow.nats.pull import Deliveries
from ebbflow.nats.stored import read_after
from ebbflow.streams.audit_rows import CHUNK, PATH, AuditFrame, AuditStamp, choose
from ebbflow.streams.names import Names
from ebbflow.streams.positions import Record, read_positions

MOST_FRAMES = 100_000
"""The most frames of a batch. At low rates a frame has one row, and a batch is a file."""

Numbers = dict[str, int]
"""The number of a chunk for each partition, by ``vertex.partition``."""


@dataclass(frozen=True, slots=True)
class AuditRecord:
    """How far the table is written: the number of ``batches``, and the chunks up to ``written``.

    ``begun`` is the end of a batch that may be written already, if there is one. The first
    ``merged`` batches are in files that cover several; ``merging`` is the end of the batches that
    may be in such files already.
    """

    batches: int = 0
    written: Numbers = field(default_factory=dict)
    begun: Numbers | None = None
    merged: int = 0
    merging: int | None = None

    def begin(self, end: Numbers) -> AuditRecord:
        """Returns the record to store before a batch is written."""
        return replace(self, begun=end)

    def finish(self) -> AuditRecord:
        """Returns the record to store when the batch that was begun is written."""
        assert self.begun is not None
        written = self.written | self.begun
        return replace(self, batches=self.batches + 1, written=written, begun=None)


@dataclass(frozen=True, slots=True)
class AuditBatch:
    """Frames that are written together. ``name`` is the same each time the batch is written."""

    name: str
    frames: tuple[AuditFrame, ...]


class AuditStream:
    """The audit rows of one pipeline that are not in its table. Coroutines run on the link."""

    def __init__(self, link: Link, names: Names, lineage: str) -> None:
        self._link = link
        self._names = names
        self._lineage = lineage
        self._stored = Record(link.client, names.positions, names.audit_key)
        self._record = AuditRecord()
        self._frames: list[AuditFrame] = []

    @property
    def life(self) -> str:
        """The prefix of the names of its batches."""
        return f"{self._names.pipeline}-{self._lineage}"

    async def read_size(self) -> tuple[int, int]:
        """Returns the number of bytes and frames in the stream."""
        info = await api.read_info(self._link.client, self._names.audit)
        return int(info["bytes"]), int(info["messages"])

    async def begin_batch(self) -> AuditBatch | None:
        """Returns the next batch, which is recorded as begun; ``None`` if there is nothing."""
        await self._load()
        # The positions first: the rows of chunks that they say are done are in the stream when it
        # is read after them. In the opposite order rows could be missing, and never be written.
        positions = await read_positions(self._link.client, self._names)
        ends = {f"{vertex}.{number}": own.chunks for (vertex, number), own in positions.items()}
        frames = self._frames = [f async for f in read_frames(self._link.client, self._names)]
        begun = self._record.begun
        chosen = _choose(frames, self._record.written, ends if begun is None else begun)
        if begun is None:
            if not chosen:
                await self._forget(frames)
                return None
            chosen = _cut(chosen, MOST_FRAMES)
            await self._store(self._record.begin(_ends_of(chosen)))
        name = f"{self.life}-{self._record.batches:08d}"
        return AuditBatch(name, tuple(chosen))

    async def begin_merge(self) -> tuple[int, int] | None:
        """Returns the batches to merge, recorded as begun; ``None`` if there are none.

        A writer that finds a merge begun repeats exactly that merge, whatever was written since.
        """
        await self._load()
        if self._record.merging is None:
            if self._record.merged == self._record.batches:
                return None
            await self._store(replace(self._record, merging=self._record.batches))
        assert self._record.merging is not None
        return self._record.merged, self._record.merging

    async def finish_merge(self) -> None:
        """Records that the batches are in files that cover them."""
        assert self._record.merging is not None
        await self._store(replace(self._record, merged=self._record.merging, merging=None))

    async def finish_batch(self) -> None:
        """Records the batch as written, and deletes its frames."""
        # Only after the table has it: until then the stream has the only copy.
        await self._store(self._record.finish())
        await self._forget(self._frames)

    async def read_unwritten(self) -> list[tuple[AuditFrame, bytes]]:
        """Returns the frames that count and are not in the table, with their payloads."""
        positions = await read_positions(self._link.client, self._names)
        ends = {f"{vertex}.{number}": own.chunks for (vertex, number), own in positions.items()}
        # The record last: a batch that is written meanwhile is left out, and is in the table.
        payloads: dict[AuditFrame, bytes] = {}
        async for batch in read_after(self._link.client, self._names.audit, "", 0):
            payloads |= {frame: bytes(batch.parcel.payload(row)) for row, frame in _frames(batch)}
        await self._load()
        chosen = _choose([*payloads], self._record.written, ends)
        return [(frame, payloads[frame]) for frame in chosen]

    async def _forget(self, frames: Sequence[AuditFrame]) -> None:
        """Deletes the frames that are in the table, or were written by a task that was lost."""
        written, ends, kept = self._record.written, dict[str, int](), set[str]()
        for frame in frames:
            task = f"{frame.vertex}.{frame.partition}"
            if frame.stamp.number > written.get(task, 0):
                kept.add(task)
            elif task not in kept:
                ends[task] = frame.seq
        for task, seq in ends.items():
            vertex, _, partition = task.rpartition(".")
            subject = self._names.audit_subject(vertex, partition)
            await api.purge_subject(self._link.client, self._names.audit, subject, seq)

    async def _load(self) -> None:
        stored = await self._stored.read()
        if stored is not None:
            facts = json.loads(stored)
            # In a record from before there were merges, what was written is in the table.
            self._record = AuditRecord(**{"merged": facts["batches"], **facts})

    async def _store(self, record: AuditRecord) -> None:
        """Replaces the record; ``Fenced`` when another run has replaced it."""
        if not await self._stored.replace(json.dumps(asdict(record)).encode()):
            raise Fenced("audit", 0)
        self._record = record


async def read_frames(client: SecuredClient, names: Names) -> AsyncIterator[AuditFrame]:
    """Yields the frames that the stream has now, in order, without their rows."""
    async for batch in read_after(client, names.audit, "", 0, headers_only=True):
        for _, frame in _frames(batch):
            yield frame


def _frames(batch: Deliveries) -> Iterator[tuple[int, AuditFrame]]:
    """Yields the index and the frame of each message of a batch."""
    for row, seq in enumerate(batch.seqs):
        headers = batch.parcel.headers(row) or {}
        *_, vertex, partition = batch.parcel.subjects[row].decode().split(".")
        stamp, path = AuditStamp.read(headers[CHUNK]), headers.get(PATH, "")
        yield row, AuditFrame(seq, vertex, int(partition), stamp, path)


def _choose(frames: Sequence[AuditFrame], after: Numbers, ends: Numbers) -> list[AuditFrame]:
    return choose(frames, _by_partition(after), _by_partition(ends))


def _by_partition(numbers: Numbers) -> dict[tuple[str, int], int]:
    pairs = ((*task.rpartition(".")[::2], number) for task, number in numbers.items())
    return {(vertex, int(partition)): number for vertex, partition, number in pairs}


def _cut(chosen: list[AuditFrame], most: int) -> list[AuditFrame]:
    """Returns the first frames, without chunks that are cut off in the middle."""
    open_chunks = {frame[1:3] + frame.stamp[:1] for frame in chosen[most:]}
    kept = [f for f in chosen[:most] if f[1:3] + f.stamp[:1] not in open_chunks]
    return kept or chosen


def _ends_of(chosen: Sequence[AuditFrame]) -> Numbers:
    ends: Numbers = {}
    for frame in chosen:
        task = f"{frame.vertex}.{frame.partition}"
        ends[task] = max(ends.get(task, 0), frame.stamp.number)
    return ends
