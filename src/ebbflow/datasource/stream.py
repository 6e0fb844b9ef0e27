"""Reading a stream in micro-batches, each of which can be read again exactly as it was.

The checkpoint alone says where a query is. Nothing is acknowledged: Spark tells that a batch is
done only when it plans the next one.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterator, Sequence
from typing import Any, TypeVar

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from ebbflow.datasource import ranges
from ebbflow.datasource.leader import Leader
from ebbflow.datasource.offsets import Offset, Range, first_behind
from ebbflow.datasource.options import ReadOptions
from ebbflow.datasource.planning import beginning, connect, end_of_batch
from ebbflow.nats.address import Addresses
from ebbflow.nats.link import Link

T = TypeVar("T")


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
        """Where the query begins if there is no checkpoint."""
        if self._initial is None:
            # Spark asks twice for the first batch, and has to hear the same.
            self._initial = self._ask(self._begin)
        return self._initial.stored()

    async def _begin(self, leader: Leader) -> Offset:
        now = await leader.facts()
        began = await beginning(leader, self._options, now)
        return Offset(now.stream, now.created, began, began)

    def getDefaultReadLimit(self) -> ReadLimit:
        """As the options say."""
        most = self._options.most
        return ReadAllAvailable() if most is None else ReadMaxRows(most)

    def prepareForTriggerAvailableNow(self) -> None:
        """What comes later than now is not read by this run."""
        self._target = self._ask(Leader.facts).last

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """Where the next batch ends; the start itself if there is nothing new."""
        end = self._ask(lambda leader: self._advance(leader, Offset.of(start), limit))
        return end.stored()

    async def _advance(self, leader: Leader, start: Offset, limit: ReadLimit) -> Offset:
        now = await leader.facts()
        start.check(now)
        self._latest = start.moved(now.last)
        last = now.last if self._target is None else min(now.last, self._target)
        after = max(start.sequence, now.first - 1)
        if last <= after or not isinstance(limit, ReadMaxRows):
            return start.moved(max(last, start.sequence))
        return start.moved(await end_of_batch(leader, after, last, limit.max_rows))

    def reportLatestOffset(self) -> dict[str, Any] | None:
        """The end of the stream when it was last looked at."""
        return None if self._latest is None else self._latest.stored()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """The messages of a batch, in so many parts."""
        wanted = self._ask(lambda leader: self._planned(leader, Offset.of(start), Offset.of(end)))
        return [InputPartition(part) for part in wanted.split(self._options.partitions)]

    async def _planned(self, leader: Leader, start: Offset, end: Offset) -> Range:
        now = await leader.facts()
        end.check(now)
        return Range(
            stream=end.stream,
            created=end.created,
            subject=self._options.subject,
            after=first_behind(start, end),
            until=end.sequence,
            fail_on_loss=self._options.fail_on_loss,
        ).available(now)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The messages of one part of a batch."""
        return ranges.read(self._server, partition.value)

    def stop(self) -> None:
        """Let the connection go."""
        link, self._link = self._link, None
        if link is not None:
            link.close()

    def _ask(self, question: Callable[[Leader], Coroutine[Any, Any, T]]) -> T:
        """Ask the leader on the connection of this query, made on the first question."""
        if self._link is None:
            self._link = connect(self._server)
        leader = Leader(self._link.client, self._options.stream, self._options.subject)
        return self._link.run(question(leader))
