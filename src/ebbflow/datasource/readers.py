"""Spark's readers of a stream: as one batch, and in micro-batches.

The range of a batch is fixed when it is planned, and is read in parts. A micro-batch can be
repeated exactly, because the checkpoint alone has the progress of a query. Nothing is acknowledged,
because Spark reports that a batch is done only when it plans the next one.

A worker reads every existing message of its range, or raises. Messages arrive in blocks of bounded
size. If a consumer, its server or the connection is lost, a new consumer continues after the last
message seen. A consumer reads from one replica, which may lag behind. So a range has ended when its
last message or a later one was seen, or when the leader says that the rest is empty, but not when a
consumer has no more messages.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
import time
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any, TypeVar

import nats.errors
import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from ebbflow.datasource.options import ReadOptions
from ebbflow.datasource.planning import (
    PATIENCE,
    PERMISSIONS,
    Facts,
    Leader,
    Offset,
    Range,
    find_beginning,
    find_end_of_batch,
    find_ending,
    find_start,
    open_data_link,
)
from ebbflow.domain.errors import AccessError, DataSourceError
from ebbflow.nats.link import Link
from ebbflow.nats.login import Addresses
from ebbflow.nats.pull import (
    NO_DELIVERIES,
    Deliveries,
    LightConsumer,
    PullConsumer,
    PullRequest,
    PullState,
)

T = TypeVar("T")


class BatchReader(DataSourceReader):
    """Plans on the driver; copies of it read on the workers."""

    def __init__(self, server: Addresses, options: ReadOptions) -> None:
        self._server = server
        self._options = options.for_batch()

    def partitions(self) -> Sequence[InputPartition]:
        """Plans the range, and splits it into parts."""
        with closing(open_data_link(self._server)) as link:
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
        # Spark passes a partition without a value if there are no partitions.
        return read_range(self._server, partition.value) if partition.value else iter(())


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Plans all batches of a query on the driver; copies of it read on the workers."""

    def __init__(self, server: Addresses, options: ReadOptions) -> None:
        self._server = server
        self._options = options.for_stream()
        self._link: Link | None = None
        self._initial: Offset | None = None
        self._latest: Offset | None = None
        self._target: int | None = None

    def initialOffset(self) -> dict[str, Any]:
        """Returns the offset where the query begins if there is no checkpoint."""
        if self._initial is None:
            # Spark asks twice for the first batch, and needs the same answer.
            self._initial = self._ask(self._begin)
        return self._initial.to_checkpoint()

    async def _begin(self, leader: Leader) -> Offset:
        now = await leader.read_facts()
        began = await find_beginning(leader, self._options, now)
        return Offset(now.stream, now.created, began, began)

    def getDefaultReadLimit(self) -> ReadLimit:
        """Returns the limit that the options set."""
        most = self._options.most
        return ReadAllAvailable() if most is None else ReadMaxRows(most)

    def prepareForTriggerAvailableNow(self) -> None:
        """Leaves messages that arrive after this call to another run."""
        self._target = self._ask(Leader.read_facts).last

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """Returns the end of the next batch, which is its start if there is nothing new."""
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
        """Returns the end of the stream as of the last query."""
        return None if self._latest is None else self._latest.to_checkpoint()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Plans the messages of a batch, and splits them into parts."""
        offsets = Offset.from_checkpoint(start), Offset.from_checkpoint(end)
        wanted = self._ask(lambda leader: self._plan(leader, *offsets))
        return [InputPartition(part) for part in wanted.split(self._options.partitions)]

    async def _plan(self, leader: Leader, start: Offset, end: Offset) -> Range:
        now = await leader.read_facts()
        end.check(now)
        return Range.of(self._options, now, find_start(start, end), end.sequence)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yields the messages of one part of a batch, on a worker."""
        return read_range(self._server, partition.value)

    def stop(self) -> None:
        """Closes the connection."""
        link, self._link = self._link, None
        if link is not None:
            link.close()

    def _ask(self, question: Callable[[Leader], Coroutine[Any, Any, T]]) -> T:
        """Asks the leader on the connection of this query, which is opened on first use."""
        if self._link is None:
            self._link = open_data_link(self._server)
        leader = Leader(self._link.client, self._options.stream, self._options.subject)
        return self._link.run(question(leader))


# --- a range, on a worker -----------------------------------------------------------------------

_READ_ARROW = pa.schema(
    [
        ("subject", pa.string()),
        ("sequence", pa.int64()),
        ("time", pa.timestamp("us", tz="UTC")),
        ("headers", pa.map_(pa.string(), pa.string())),
        ("data", pa.binary()),
    ]
)
# A lagging replica is read this many times before another replica may be chosen.
_LAG, _LOOKS = 0.05, 20
_CONTINUES = (PullState.DRY, PullState.FULL, PullState.TOO_LARGE)
"""The words after which the same consumer is used again; after any other it is dropped."""


@dataclass(frozen=True, slots=True)
class Blocks:
    """Limits of a block: messages, bytes, and the seconds of silence after which it is given up.

    The ``first`` request asks for few messages, because they may be past the end of the range.
    """

    first: int = 1_000
    largest: int = 16_000
    size: int = 8 * 1024 * 1024
    silence: float = 3.0


_USUAL = Blocks()


def read_range(
    server: Addresses, wanted: Range, blocks: Blocks = _USUAL
) -> Iterator[pa.RecordBatch]:
    """Yields the messages of a range in blocks."""
    link = open_data_link(server)
    reader = RangeReader(link, wanted, blocks)
    try:
        link.run(reader.open())
        while block := link.run(reader.read_block()):
            yield to_batch(block)
    finally:
        # At interpreter shutdown the link's thread has stopped, and calls would get no answer.
        if not sys.is_finalizing():
            with contextlib.suppress(TimeoutError):
                link.run(reader.close(), timeout=5)
            link.close()


def to_batch(messages: Deliveries) -> pa.RecordBatch:
    """Returns messages as a batch for Spark."""
    parcel = messages.parcel
    headers: list[list[tuple[str, str]]] = [[]] * len(parcel)
    for row in parcel.rows_with_headers():
        headers[row] = list((parcel.headers(row) or {}).items())
    arrays = [
        pa.array(parcel.subjects, pa.binary()).cast(pa.string()),
        pa.array(messages.seqs, pa.int64()),
        messages.times(),
        pa.array(headers, _READ_ARROW.field("headers").type),
        parcel.payloads(),
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=_READ_ARROW)


class RangeReader:
    """Reads one range. Everything happens on the link's loop."""

    def __init__(self, link: Link, wanted: Range, blocks: Blocks = _USUAL) -> None:
        self._client = link.client
        self._limits = blocks
        self._leader = Leader(link.client, wanted.stream, wanted.subject)
        self._wanted = wanted
        self._seen = wanted.after
        self._consumer: LightConsumer | None = None
        self._pull: PullConsumer | None = None
        self._blocks: list[Deliveries] = []
        self._most = blocks.first
        self._size = blocks.size

    async def open(self) -> None:
        """Checks that the range can still be read."""
        self._seen = self._wanted.available(await self._check_stream()).after

    async def close(self) -> None:
        """Stops reading and deletes the consumer."""
        pull, self._pull = self._pull, None
        consumer, self._consumer = self._consumer, None
        with contextlib.suppress(nats.errors.Error):
            if pull is not None:
                await pull.close()
            if consumer is not None:
                await consumer.forget(self._client)

    async def read_block(self) -> Deliveries:
        """Returns the next messages of the range; none at its end."""
        looks = 0
        deadline = time.monotonic() + PATIENCE
        while self._seen < self._wanted.until:
            messages, state = await self._fetch()
            if messages:
                deadline = time.monotonic() + PATIENCE
                if within := await self._cut_to_range(messages):
                    return within
            elif state is PullState.DRY and await self._is_exhausted():
                self._seen = self._wanted.until
            elif time.monotonic() > deadline:
                raise self._explain_stall()
            else:
                looks += 1
                if looks % _LOOKS == 0:
                    await self.close()
                await asyncio.sleep(_LAG)
        return NO_DELIVERIES

    async def _fetch(self) -> tuple[Deliveries, PullState]:
        """Returns the messages of one request, and why there are not more."""
        most = min(self._most, self._wanted.until - self._seen)
        self._most = min(2 * self._most, self._limits.largest)
        pull = self._pull or await self._open_pull()
        self._blocks.clear()
        try:
            request = PullRequest(batch=most, max_bytes=self._size, no_wait=True)
            status = await pull.fetch(request, silence=self._limits.silence)
        except AccessError as error:
            raise DataSourceError(error.what, PERMISSIONS) from None
        block = Deliveries.join(self._blocks) if self._blocks else NO_DELIVERIES
        if status.state not in _CONTINUES:
            await self.close()
        if status.state is PullState.TOO_LARGE and not block:
            self._size *= 2
        return block, status.state

    async def _open_pull(self) -> PullConsumer:
        """Creates a consumer of the messages after the last one seen."""
        seen = self._seen
        self._consumer, _ = await self._leader.consume_after(seen)
        self._pull = PullConsumer(
            self._client,
            self._wanted.stream,
            self._consumer.name,
            lambda deliveries: self._blocks.append(deliveries.after(seen)),
        )
        await self._pull.open()
        return self._pull

    async def _cut_to_range(self, messages: Deliveries) -> Deliveries:
        """Returns the messages inside the range; ``DataLoss`` if others may have been lost."""
        until, whole = self._wanted.until, self._seen
        self._seen = min(until, messages.seqs[-1])
        within = messages.up_to(until)
        for seq in within.seqs:
            if seq != whole + 1:
                break
            whole = seq
        if whole < self._seen and self._wanted.fail_on_loss:
            self._wanted.check_loss(await self._check_stream(), whole)
        return within

    async def _is_exhausted(self) -> bool:
        now = await self._check_stream()
        if now.last < self._wanted.until:
            return False  # this answer is older than the one that the range was planned with
        following = await self._leader.find_next_after(self._seen)
        if following is not None and following <= self._wanted.until:
            return False  # the consumer delivers it as soon as its replica has it
        self._wanted.check_loss(now, self._seen)
        return True

    async def _check_stream(self) -> Facts:
        now = await self._leader.read_facts()
        self._wanted.check(now)
        return now

    def _explain_stall(self) -> DataSourceError:
        return DataSourceError(
            f"{self._wanted.stream}: messages after {self._seen} up to {self._wanted.until} did "
            f"not arrive within {PATIENCE:.0f} s.",
            "Check the servers of the stream; the same range can be read again.",
        )
