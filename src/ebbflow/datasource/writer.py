"""Publishes the rows of a DataFrame, and retries each row until it is stored.

A message has the same id whenever the same row is written again, by a task that is retried or by a
micro-batch that is replayed after a crash. The id contains a hash of the content, so that a replay
with a different result is stored and not dropped as a copy.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any
from uuid import uuid4

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)

from ebbflow.datasource.options import WriteOptions
from ebbflow.domain.errors import DataSourceError
from ebbflow.nats.login import Addresses
from ebbflow.nats.publish import MSG_ID, Outgoing
from ebbflow.publishing import Publisher


@dataclass(frozen=True)
class Written(WriterCommitMessage):
    """The result of a task for the driver. Published messages need no commit."""

    messages: int


class BatchWriter(DataSourceArrowWriter):
    """Publishes a DataFrame. There is one object per write, so all tasks share its id."""

    def __init__(self, server: Addresses, options: WriteOptions) -> None:
        self._server = server
        self._options = options
        self._write = uuid4().hex

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        """Publishes the rows of one task."""
        return publish_rows(self._server, self._options, self._write, iterator)


class StreamWriter(DataSourceStreamArrowWriter):
    """Publishes micro-batches. Created for each one, so ids use the checkpoint's query id."""

    def __init__(self, server: Addresses, options: WriteOptions) -> None:
        self._server = server
        self._options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        """Publishes the rows of one task of one micro-batch."""
        task = _current_task()
        query = task.getLocalProperty("sql.streaming.queryId")
        batch = task.getLocalProperty("streaming.sql.batchId")
        if query is None or batch is None:
            # With any other id, everything would be stored twice after a crash.
            raise DataSourceError("Spark does not say which query and batch this task belongs to.")
        return publish_rows(self._server, self._options, f"{query}-{batch}", iterator)


def publish_rows(
    server: Addresses, options: WriteOptions, write: str, batches: Iterator[pa.RecordBatch]
) -> Written:
    """Publishes the rows of the current task. The ids of its messages begin with ``write``."""
    partition = _current_task().partitionId()
    row = 0
    with Publisher(
        server.urls, login=server.login, inbox_prefix=server.inbox, **asdict(options.publish)
    ) as publisher:
        for batch in batches:
            messages = to_messages(batch, options.subject, f"{write}-{partition}", row)
            # One call per batch, so that confirmations do not pile up.
            publisher.publish_many(messages, window=options.window)
            row += batch.num_rows
    return Written(row)


def to_messages(
    batch: pa.RecordBatch, subject: str | None, task: str, first: int
) -> Iterator[Outgoing]:
    """Yields the messages of a batch whose first row is row ``first`` of its task."""
    data = batch.column("data").cast(pa.binary()).to_pylist()
    others = [_values(batch, name) for name in ("subject", "headers", "msg_id")]
    for row, (content, own, headers, msg_id) in enumerate(zip(data, *others, strict=True), first):
        try:
            yield to_message(f"{task}-{row}", content, own or subject, dict(headers or ()), msg_id)
        except ValueError as error:
            partition = _current_task().partitionId()
            raise DataSourceError(
                f"Row {row} of partition {partition} cannot be published: {error}.",
                "Correct it and write again; rows before it are stored.",
            ) from None


def to_message(
    place: str,
    data: bytes | None,
    subject: str | None,
    headers: Mapping[str, str],
    msg_id: str | None,
) -> Outgoing:
    """Returns the message of one row.

    Its id is ``msg_id``, or the id in its headers, or else made from its place and content.
    """
    if data is None or subject is None:
        raise ValueError(f"{'data' if data is None else 'subject'} is null")
    if msg_id is None and MSG_ID not in headers:
        msg_id = f"{place}-{_digest(data, subject, headers)}"
    return Outgoing(subject, data, headers, msg_id)


def _digest(data: bytes, subject: str, headers: Mapping[str, str]) -> str:
    content = hashlib.blake2b(repr((subject, sorted(headers.items()))).encode(), digest_size=16)
    content.update(data)
    return content.hexdigest()


def _values(batch: pa.RecordBatch, name: str) -> list[Any]:
    if name not in batch.schema.names:
        return [None] * batch.num_rows
    values: list[Any] = batch.column(name).to_pylist()
    return values


def _current_task() -> TaskContext:
    task = TaskContext.get()
    assert task is not None
    return task
