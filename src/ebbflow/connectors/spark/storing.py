"""Storing the rows of a query in the buffers of its vertex: what its tasks do, on workers.

A frame's id is made of the query, the micro-batch, the task, the place of its first row and a hash
of its content. So a task that is run again stores nothing twice, and one that came to other rows
loses none. A full buffer holds the task up until there is room.

What Spark could not read and what no message can hold is stored as well, marked as dead on arrival.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark import TaskContext

from ebbflow.buffers.feed import Buffers
from ebbflow.buffers.names import Names
from ebbflow.core import frames
from ebbflow.core.dead_letter import mark_dead
from ebbflow.errors import EbbflowError, MessageTooLarge
from ebbflow.nats.address import Addresses
from ebbflow.nats.link import Link, worker_link
from ebbflow.outcome import DeadLetter

SCHEMA = "stored bigint"
_UNREAD = "unread"
_IN_FLIGHT = 8
_LONGEST_ID = 200


@dataclass(frozen=True, slots=True)
class Storing:
    """Where a task stores its rows. ``query`` names a read that is no stream."""

    server: Addresses
    pipeline: str
    vertex: str
    partitions: int
    largest: int
    query: str | None = None


def store_on_worker(
    batches: Iterator[pa.RecordBatch], storing: Storing
) -> Iterator[pa.RecordBatch]:
    """Called by Spark with the rows of one task; tells how many it has stored."""
    task = _Task(storing)
    for batch in batches:
        task.store(batch)
    yield pa.RecordBatch.from_pydict({"stored": pa.array([task.rows], pa.int64())})


class _Task:
    def __init__(self, storing: Storing) -> None:
        self._storing = storing
        self._link: Link = worker_link(storing.server)
        self._names = Names(storing.pipeline)
        self._buffers = Buffers(self._link, self._names, storing.vertex, storing.partitions)
        self._place, self._number = _place(storing.query)
        self._given: Collection[str] = ()
        self.rows = 0

    def store(self, batch: pa.RecordBatch) -> None:
        """Store rows; returns when all of them are confirmed."""
        first, self.rows = self.rows, self.rows + batch.num_rows
        self._given = {"id", "metadata", *batch.schema.names} - {_UNREAD}
        self._link.run(self._put_all(self._messages(batch, first), first))

    def _messages(self, batch: pa.RecordBatch, first: int) -> pa.RecordBatch:
        count = batch.num_rows
        columns = {name: batch.column(name) for name in batch.schema.names}
        values = pc.fill_null(columns.pop("value").cast(pa.binary()), b"").to_pylist()
        unread = columns.pop(_UNREAD).to_pylist() if _UNREAD in columns else [None] * count
        now = pa.scalar(datetime.now(UTC), frames.TIME)
        columns["first_seen"] = pa.repeat(now, count)
        columns["event_time"] = _event_times(columns.get("event_time"), now, unread)
        dead = self._dead(values, unread)
        if dead:
            values = [value[: self._storing.largest] for value in values]
            columns["metadata"] = [
                mark_dead(dead[row]) if row in dead else None for row in range(count)
            ]
        given = columns.pop("id").to_pylist() if "id" in columns else [None] * count
        columns["id"] = [
            self._id(one, value, row)
            for row, (one, value) in enumerate(zip(given, values, strict=True), first)
        ]
        return frames.batch_of(columns | {"value": values}, count)

    def _dead(self, values: list[bytes], unread: list[Any]) -> dict[int, DeadLetter]:
        """The rows that are no messages, and why."""
        found = {}
        for row, (value, why) in enumerate(zip(values, unread, strict=True)):
            size = len(value) if why is None else why["size"]
            cut = size if size > min(len(value), self._storing.largest) else None
            if why is not None:
                error = why["error"] or _not_json(value)
                found[row] = DeadLetter("unreadable row", error, size=cut, unread=True)
            elif cut is not None:
                error = MessageTooLarge(size, self._storing.largest)
                found[row] = DeadLetter("message too large", f"MessageTooLarge: {error}", size=cut)
        return found

    def _id(self, given: str | None, value: bytes, row: int) -> str:
        """As the user says, told apart by content; or where in the query it is."""
        vertex = self._storing.vertex
        if given is None:
            return f"{vertex}-{self._number}-{row}"
        digest = hashlib.blake2b(given.encode() + b"\0" + value, digest_size=5).hexdigest()
        return f"{vertex}-{given[:_LONGEST_ID]}-{digest}"

    async def _put_all(self, rows: pa.RecordBatch, first: int) -> None:
        gate = asyncio.Semaphore(_IN_FLIGHT)

        async def put(frame: pa.RecordBatch, start: int) -> None:
            async with gate:
                msg_id = f"{self._place}:{start}:{_content(frame, self._given)}"
                await self._buffers.put_when_room(frame, msg_id)

        try:
            async with asyncio.TaskGroup() as group:
                for frame in frames.split(rows):
                    group.create_task(put(frame, first))
                    first += frame.num_rows
        except ExceptionGroup as failures:
            raise failures.exceptions[0] from None


def _event_times(given: pa.Array | None, now: pa.Scalar, unread: list[Any]) -> pa.Array:
    """As given, else now; of what could not be read nothing is known, nor does it move time on."""
    known = pa.array([why is None for why in unread], pa.bool_())
    times = pa.nulls(len(unread), frames.TIME) if given is None else given.cast(frames.TIME)
    return pc.if_else(known, pc.fill_null(times, now), pa.scalar(None, frames.TIME))


def _not_json(value: bytes) -> str:
    """What is wrong with a record of JSON of which Spark could read nothing."""
    try:
        found = json.loads(value)
    except ValueError as error:
        return f"it is no JSON: {error}"
    if not isinstance(found, dict):
        return "it is no JSON object"
    return "something in it is not as the schema says"


def _place(query: str | None) -> tuple[str, str]:
    """A name for the task that it has again when it is replayed, and a short one for ids."""
    task = TaskContext.get()
    assert task is not None
    number = "0"
    if query is None:
        query = task.getLocalProperty("sql.streaming.queryId")
        number = task.getLocalProperty("streaming.sql.batchId") or ""
    if not query or not number:
        # Any other id would store everything twice after a crash.
        raise EbbflowError("Spark does not tell which query and batch this task is of")
    partition = task.partitionId()
    return f"{query}:{number}:{partition}", f"{number}-{partition}"


def _content(frame: pa.RecordBatch, given: Collection[str]) -> str:
    """A hash of what the query gave; what was added, as the time, is another each time."""
    digest = hashlib.blake2b(digest_size=16)
    for name in sorted(given):
        digest.update(repr(frame.column(name).to_pylist()).encode("utf-8", "surrogatepass"))
    return digest.hexdigest()
