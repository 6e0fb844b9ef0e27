"""Reading a stream as a batch: the range is fixed when it is planned, and read in parts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition

from ebbflow.datasource import ranges
from ebbflow.datasource.leader import Leader
from ebbflow.datasource.offsets import Range
from ebbflow.datasource.options import ReadOptions
from ebbflow.datasource.planning import beginning, connect, ending
from ebbflow.nats.address import Addresses


class BatchReader(DataSourceReader):
    """Made on the driver, where it plans; a copy reads on each worker."""

    def __init__(self, server: Addresses, options: ReadOptions) -> None:
        self._server = server
        self._options = options.for_batch()

    def partitions(self) -> Sequence[InputPartition]:
        """The range, in so many parts."""
        with closing(connect(self._server)) as link:
            leader = Leader(link.client, self._options.stream)
            wanted = link.run(self._planned(leader))
        return [InputPartition(part) for part in wanted.split(self._options.partitions)]

    async def _planned(self, leader: Leader) -> Range:
        now = await leader.facts()
        after = await beginning(leader, self._options, now)
        return Range(
            stream=now.stream,
            created=now.created,
            subject=self._options.subject,
            after=after,
            until=max(after, ending(self._options, now)),
            fail_on_loss=self._options.fail_on_loss,
        ).available(now)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The messages of one part."""
        # Spark makes up a partition without a value when there is none.
        return ranges.read(self._server, partition.value) if partition.value else iter(())
