"""The Spark source: the rows of any format that Spark can read, as messages.

A feed: a query on the run's own Spark stores its rows in the vertex's buffer, and the vertex reads
them from there. The query's progress is kept in the state folder, so that a run continues where the
last one ended. A micro-batch that is rerun after a crash stores the same messages under the same
ids, and the server drops the copies. ``rows`` converts rows to messages, and
``store_on_worker`` is what the query's tasks run.

A query that fails is restarted after a wait from where it was, and the reason is kept for display.
A query that ends by itself has read everything.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import threading
import time
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pyarrow as pa
import pyarrow.compute as pc
from py4j.protocol import Py4JError
from pyspark import InheritableThread, TaskContext

from ebbflow.connectors.plans import SparkSourceSettings
from ebbflow.connectors.spark.rows import as_messages, open_source_table
from ebbflow.connectors.spark.vertex_session import (
    clone_session,
    root_cause,
    silence_pyspark_loggers,
)
from ebbflow.domain.durations import Backoff
from ebbflow.domain.errors import EbbflowError, MessageTooLarge
from ebbflow.domain.outcome import DeadLetter
from ebbflow.engine import frames
from ebbflow.engine.dead_letter import mark_dead
from ebbflow.nats.link import Link, worker_link
from ebbflow.nats.login import Addresses
from ebbflow.nats.publish import WaitForRoom
from ebbflow.streams.feed import Buffers, FeedContext
from ebbflow.streams.names import Names

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.query import StreamingQuery

SCHEMA = "stored bigint"
_UNREAD = "unread"
_IN_FLIGHT = 8
_LONGEST_ID = 200


@dataclass(frozen=True, slots=True)
class Storing:
    """The target for a task's rows. ``query`` names a read that is not a stream."""

    server: Addresses
    pipeline: str
    vertex: str
    partitions: int
    largest: int
    query: str | None = None


def store_on_worker(
    batches: Iterator[pa.RecordBatch], storing: Storing
) -> Iterator[pa.RecordBatch]:
    """Called by Spark with the rows of one task; yields how many it has stored."""
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
        self._own_columns: Collection[str] = ()
        self.rows = 0

    def store(self, batch: pa.RecordBatch) -> None:
        """Stores rows; returns when all of them are confirmed."""
        first, self.rows = self.rows, self.rows + batch.num_rows
        self._own_columns = {"id", "metadata", *batch.schema.names} - {_UNREAD}
        self._link.run(self._put_all(self._messages(batch, first), first))

    def _messages(self, batch: pa.RecordBatch, first: int) -> pa.RecordBatch:
        count = batch.num_rows
        columns = {name: batch.column(name) for name in batch.schema.names}
        values = pc.fill_null(columns.pop("value").cast(pa.binary()), b"")
        unread = columns.pop(_UNREAD, pa.nulls(count))
        now = pa.scalar(datetime.now(UTC), frames.TIME)
        columns["first_seen"] = pa.repeat(now, count)
        columns["event_time"] = _event_times(columns.get("event_time"), now, unread)
        dead = self._dead(values, unread)
        if dead:
            values = pc.binary_slice(values, 0, self._storing.largest)
            columns["metadata"] = [
                mark_dead(dead[row]) if row in dead else None for row in range(count)
            ]
        columns["id"] = self._ids(columns.pop("id", pa.nulls(count)), values, first)
        return frames.batch_of(columns | {"value": values}, count)

    def _dead(self, values: pa.BinaryArray, unread: pa.Array) -> dict[int, DeadLetter]:
        """Returns the rows that cannot be messages, with the reasons; usually none."""
        most = pc.max(pc.binary_length(values)).as_py() or 0
        if most <= self._storing.largest and unread.null_count == len(unread):
            return {}
        dead = {}
        pairs = zip(values.to_pylist(), unread.to_pylist(), strict=True)
        for row, (value, why) in enumerate(pairs):
            if (dead_letter := self._dead_letter(value, why)) is not None:
                dead[row] = dead_letter
        return dead

    def _dead_letter(self, value: bytes, why: dict[str, Any] | None) -> DeadLetter | None:
        size = len(value) if why is None else why["size"]
        cut = size if size > min(len(value), self._storing.largest) else None
        if why is not None:
            error = why["error"] or _not_json(value)
            return DeadLetter("unreadable row", error, size=cut, unread=True)
        if cut is not None:
            error = MessageTooLarge(size, self._storing.largest)
            return DeadLetter("message too large", f"MessageTooLarge: {error}", size=cut)
        return None

    def _ids(self, own_ids: pa.Array, values: pa.BinaryArray, first: int) -> pa.Array:
        """Returns the ids of rows, whose numbers in the task begin with ``first``."""
        if own_ids.null_count == len(own_ids):
            numbers = pa.array(range(first, first + len(own_ids)), pa.int64()).cast(pa.string())
            place = f"{self._storing.vertex}-{self._number}"
            return pc.binary_join_element_wise(place, numbers, "-")
        pairs = zip(own_ids.to_pylist(), values.to_pylist(), strict=True)
        ids = [self._id(one, value, row) for row, (one, value) in enumerate(pairs, first)]
        return pa.array(ids, pa.string())

    def _id(self, own_id: str | None, value: bytes, row: int) -> str:
        """Returns the user's id with a hash of the content, else the row's place in the query."""
        vertex = self._storing.vertex
        if own_id is None:
            return f"{vertex}-{self._number}-{row}"
        digest = hashlib.blake2b(own_id.encode() + b"\0" + value, digest_size=5).hexdigest()
        return f"{vertex}-{own_id[:_LONGEST_ID]}-{digest}"

    async def _put_all(self, rows: pa.RecordBatch, first: int) -> None:
        room = asyncio.Semaphore(_IN_FLIGHT)

        async def put(frame: pa.RecordBatch, start: int) -> None:
            async with room:
                msg_id = f"{self._place}:{start}:{_content(frame, self._own_columns)}"
                await self._buffers.put(frame, msg_id, room=WaitForRoom.FOREVER)

        try:
            async with asyncio.TaskGroup() as group:
                for frame in frames.split(rows):
                    group.create_task(put(frame, first))
                    first += frame.num_rows
        except ExceptionGroup as failures:
            raise failures.exceptions[0] from None


def _event_times(own: pa.Array | None, now: pa.Scalar, unread: pa.Array) -> pa.Array:
    """Returns the rows' own times, else now; null for bad rows, so that they move no watermark."""
    times = pa.nulls(len(unread), frames.TIME) if own is None else own.cast(frames.TIME)
    times = pc.fill_null(times, now)
    if unread.null_count == len(unread):
        return times
    return pc.if_else(pc.is_null(unread), times, pa.scalar(None, frames.TIME))


def _not_json(value: bytes) -> str:
    """Returns what is wrong with a JSON record that Spark could not parse at all."""
    try:
        found = json.loads(value)
    except ValueError as error:
        return f"it is not JSON: {error}"
    if not isinstance(found, dict):
        return "it is not a JSON object"
    return "something in it does not match the schema"


def _place(query: str | None) -> tuple[str, str]:
    """Returns a name for the task, the same when it is replayed, and a short one for ids."""
    task = TaskContext.get()
    assert task is not None
    number = "0"
    if query is None:
        query = task.getLocalProperty("sql.streaming.queryId")
        number = task.getLocalProperty("streaming.sql.batchId") or ""
    if not query or not number:
        # Any other id would store everything twice after a crash.
        raise EbbflowError("Spark does not say which query and batch this task belongs to")
    partition = task.partitionId()
    return f"{query}:{number}:{partition}", f"{number}-{partition}"


def _content(frame: pa.RecordBatch, own: Collection[str]) -> str:
    """Returns a hash of the query's own columns; added ones, such as times, differ each time."""
    digest = hashlib.blake2b(digest_size=16)
    for name in sorted(own):
        for piece in _bytes_of(frame.column(name)):
            digest.update(piece)
    return digest.hexdigest()


def _bytes_of(column: pa.Array) -> Iterator[bytes | pa.Buffer | memoryview]:
    """Yields bytes that identify the column's content, without unrelated memory next to it."""
    if column.null_count == len(column):
        yield b"null"
    elif pa.types.is_binary(column.type) or pa.types.is_string(column.type):
        # The lengths encode the boundaries, and distinguish null from an empty value.
        yield pc.fill_null(pc.binary_length(column), -1).buffers()[1]
        yield frames.join_bytes(pc.fill_null(column, b"" if column.type == pa.binary() else ""))
    else:
        yield repr(column.to_pylist()).encode("utf-8", "surrogatepass")


_WAITS = Backoff("500ms", factor=2.0, cap="30s")
# A query that has run this long before it failed restarts with the shortest wait.
_STEADY = 30.0
_LOOK = 0.25
_GRACE = 5.0
# Without a trigger a query polls for new rows all the time; every 100 ms is often enough.
_SETTINGS = {"spark.sql.streaming.pollingDelay": ("10ms", "100ms")}


class SparkFeed:
    """One source vertex and the thread that runs its query."""

    on_spark = True

    def __init__(self, settings: SparkSourceSettings, context: FeedContext) -> None:
        self._settings = settings
        self._context = context
        self._stopping = threading.Event()
        self.exhausted = False
        """True when the query has ended by itself."""
        self.failure: str | None = None
        """The last failure of the query; ``None`` once it works again."""
        self._thread = InheritableThread(target=self._run, name=f"source-{context.vertex}")
        self._thread.daemon = True

    def start(self) -> None:
        """Starts reading; ``SetupError`` if the table or an expression does not work."""
        silence_pyspark_loggers()
        spark = clone_session(self._context.spark, _SETTINGS)
        table = open_source_table(spark, self._settings, self._context.vertex)
        self._rows = as_messages(table, self._settings, self._context.vertex)
        self._context.memory.mkdir(parents=True, exist_ok=True)
        self._thread.start()

    def stop(self) -> None:
        """Stops reading; the next run reads a micro-batch that is not stored again."""
        self._stopping.set()
        with contextlib.suppress(Py4JError, OSError):  # nothing runs in a JVM that has died
            self._context.spark.sparkContext.cancelJobGroup(self._group)
        self._thread.join()

    @property
    def _group(self) -> str:
        return f"ebbflow/{self._context.pipeline}/{self._context.vertex}/read"

    def _run(self) -> None:
        failures = 0
        while not self._stopping.is_set():
            began = time.monotonic()
            try:
                if self._rows.isStreaming:
                    self._stream()
                else:
                    self._read()
                self.failure, self.exhausted = None, not self._stopping.is_set()
                return
            except Exception as error:
                if self._stopping.is_set():
                    return
                cause = root_cause(error)
                text = self._settings.format.without_secrets(cause.text)
                self.failure = f"{cause.kind}: {text}"
                failures = 1 if time.monotonic() - began > _STEADY else failures + 1
                self._stopping.wait(_WAITS.seconds(failures))

    def _stream(self) -> None:
        writer = self._storing_rows(None).writeStream.format("noop")
        writer = writer.option("checkpointLocation", self._file("checkpoint").as_uri())
        settings = self._settings
        if settings.available_now or self._context.drain:
            writer = writer.trigger(availableNow=True)
        elif settings.every is not None:
            writer = writer.trigger(processingTime=f"{settings.every:.3f} seconds")
        query = writer.start()
        try:
            self._watch(query)
            self._finish(query)
        finally:
            query.stop()

    def _watch(self, query: StreamingQuery) -> None:
        """Returns when the query has ended or the feed is stopping; raises the query's error."""
        while query.isActive and not self._stopping.wait(_LOOK):
            if self.failure is not None and query.lastProgress is not None:
                self.failure = None
        if not query.isActive:
            query.awaitTermination(1)

    def _finish(self, query: StreamingQuery) -> None:
        """Gives a micro-batch time to end: a cancelled one is partly stored and then read again."""
        deadline = time.monotonic() + _GRACE
        while query.isActive and query.status["isTriggerActive"] and time.monotonic() < deadline:
            time.sleep(_LOOK / 5)

    def _read(self) -> None:
        """Reads everything once, unless an earlier run has done so."""
        complete = self._file("complete")
        if complete.exists():
            self._context.log(
                f"{self._context.vertex} was read by an earlier run; --fresh reads again"
            )
            return
        group, title = self._group, f"{self._context.vertex}, read once"
        self._context.spark.sparkContext.setJobGroup(group, title, interruptOnCancel=True)
        self._storing_rows(self._query_id()).collect()
        complete.touch()

    def _storing_rows(self, query: str | None) -> DataFrame:
        context = self._context
        storing = Storing(
            context.link.server,
            context.pipeline,
            context.vertex,
            context.partitions,
            context.largest,
            query,
        )
        return self._rows.mapInArrow(partial(store_on_worker, storing=storing), SCHEMA)

    def _query_id(self) -> str:
        """Returns the same id until everything is read, so that nothing is stored twice."""
        file = self._file("query")
        if not file.exists():
            file.write_text(uuid4().hex, encoding="utf-8")
        return file.read_text(encoding="utf-8")

    def _file(self, name: str) -> Path:
        return (self._context.memory / name).resolve()
