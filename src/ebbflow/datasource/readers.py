"""Spark's readers of a stream: as one batch, and in micro-batches.

The range of a batch is fixed when it is planned, and read in parts. A micro-batch can be read again
exactly as it was: the checkpoint alone says where a query is. Nothing is acknowledged, for Spark
tells that a batch is done only when it plans the next one.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import closing
from typing import Any, TypeVar

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from ebbflow.datasource import ranges
from ebbflow.datasource.options import ReadOptions
from ebbflow.datasource.planning import (
    Leader,
    Offset,
    Range,
    connect,
    find_beginning,
    find_end_of_batch,
    find_ending,
    find_start,
)
from ebbflow.nats.link import Link
from ebbflow.nats.login import Addresses

T = TypeVar("T")


class BatchReader(DataSourceReader):
    """Made on the driver, where it plans; a copy reads on each worker."""

    def __init__(self, server: Addresses, options: ReadOptions) -> None:
        self._server = server
        self._options = options.for_batch()

    def partitions(self) -> Sequence[InputPartition]:
        """Plans the range, in so many parts."""
        with closing(connect(self._server)) as link:
            leader = Leader(link.client, self._options.stream)
            wanted = link.run(self._plan(leader))
        return [InputPartition(part) for part in wanted.split(self._options.partitions)]

    async def _plan(self, leader: Leader) -> Range:
        now = await leader.read_facts()
        after = await find_beginning(leader, self._options, now)
        until = max(after, find_ending(self._options, now))
        return Range.of(self._options, now, after, until)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yields the messages of one part, on a worker."""
        # Spark makes up a partition without a value when there is none.
        return ranges.read(self._server, partition.value) if partition.value else iter(())


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """One on the driver plans all batches of a query; copies of it read on the workers."""

    def __init__(self, server: Addresses, options: ReadOptions) -> None:
        self._server = server
        self._options = options.for_stream()
        self._link: Link | None = None
        self._initial: Offset | None = None
        self._latest: Offset | None = None
        self._target: int | None = None

    def initialOffset(self) -> dict[str, Any]:
        """Returns where the query begins if there is no checkpoint."""
        if self._initial is None:
            # Spark asks twice for the first batch, and has to hear the same.
            self._initial = self._ask(self._begin)
        return self._initial.to_checkpoint()

    async def _begin(self, leader: Leader) -> Offset:
        now = await leader.read_facts()
        began = await find_beginning(leader, self._options, now)
        return Offset(now.stream, now.created, began, began)

    def getDefaultReadLimit(self) -> ReadLimit:
        """Returns what the options say."""
        most = self._options.most
        return ReadAllAvailable() if most is None else ReadMaxRows(most)

    def prepareForTriggerAvailableNow(self) -> None:
        """Leaves what comes later than now to another run."""
        self._target = self._ask(Leader.read_facts).last

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """Returns where the next batch ends; the start itself if there is nothing new."""
        end = self._ask(lambda leader: self._advance(leader, Offset.from_checkpoint(start), limit))
        return end.to_checkpoint()

    async def _advance(self, leader: Leader, start: Offset, limit: ReadLimit) -> Offset:
        now = await leader.read_facts()
        start.check(now)
        self._latest = start.at(now.last)
        last = now.last if self._target is None else min(now.last, self._target)
        after = max(start.sequence, now.first - 1)
        if last <= after or not isinstance(limit, ReadMaxRows):
            return start.at(max(last, start.sequence))
        return start.at(await find_end_of_batch(leader, after, last, limit.max_rows))

    def reportLatestOffset(self) -> dict[str, Any] | None:
        """Returns the end of the stream when it was last looked at."""
        return None if self._latest is None else self._latest.to_checkpoint()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Plans the messages of a batch, in so many parts."""
        offsets = Offset.from_checkpoint(start), Offset.from_checkpoint(end)
        wanted = self._ask(lambda leader: self._plan(leader, *offsets))
        return [InputPartition(part) for part in wanted.split(self._options.partitions)]

    async def _plan(self, leader: Leader, start: Offset, end: Offset) -> Range:
        now = await leader.read_facts()
        end.check(now)
        return Range.of(self._options, now, find_start(start, end), end.sequence)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yields the messages of one part of a batch, on a worker."""
        return ranges.read(self._server, partition.value)

    def stop(self) -> None:
        """Lets the connection go."""
        link, self._link = self._link, None
        if link is not None:
            link.close()

    def _ask(self, question: Callable[[Leader], Coroutine[Any, Any, T]]) -> T:
        """Asks the leader on the connection of this query, made on the first question."""
        if self._link is None:
            self._link = connect(self._server)
        leader = Leader(self._link.client, self._options.stream, self._options.subject)
        return self._link.run(question(leader))
