"""The calls that Spark makes to the data source, without Spark: plan here, read with a copy."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from typing import Any

from pyspark.sql.datasource import CaseInsensitiveDict, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit

from ebbflow.datasource import JetStreamDataSource
from ebbflow.datasource.jetstream import READ
from ebbflow.datasource.readers import StreamReader
from tests.datasource.conftest import Stream
from tests.nats.securing import address

Offset = dict[str, Any]


def source(stream: Stream, **options: Any) -> JetStreamDataSource:
    """A data source as Spark creates it: case-insensitive names, values as text, and pickled."""
    options_given = {"stream": stream.name, "url": address(stream.link.server)} | options
    texts = CaseInsensitiveDict({name: str(value) for name, value in options_given.items()})
    made: JetStreamDataSource = pickle.loads(pickle.dumps(JetStreamDataSource(texts)))
    return made


def planned(stream: Stream, **options: Any) -> list[list[int]]:
    """The sequences that each task of a batch reads."""
    reader = source(stream, **options).reader(READ)
    worker = pickle.loads(pickle.dumps(reader))
    return [sequences(worker, partition) for partition in reader.partitions()]


def sequences(reader: Any, partition: InputPartition) -> list[int]:
    shipped = pickle.loads(pickle.dumps(partition))
    return [n for batch in reader.read(shipped) for n in batch.column("sequence").to_pylist()]


class Run:
    """One run of a streaming query: a reader on the driver, and a copy of it on a worker."""

    def __init__(self, stream: Stream, available_now: bool = False, **options: Any) -> None:
        self.driver: StreamReader = source(stream, **options).streamReader(READ)
        self.worker: StreamReader = pickle.loads(pickle.dumps(self.driver))
        if available_now:
            self.driver.prepareForTriggerAvailableNow()

    def __enter__(self) -> Run:
        return self

    def __exit__(self, *_: object) -> None:
        self.driver.stop()

    def read(self, start: Offset, end: Offset) -> list[list[int]]:
        """The sequences that each task of a batch reads."""
        return [sequences(self.worker, part) for part in self.driver.partitions(start, end)]

    def latest(self, start: Offset, limit: ReadLimit | None = None) -> Offset:
        return self.driver.latestOffset(start, limit or self.driver.getDefaultReadLimit())

    def batches(self, start: Offset | None = None) -> Iterator[list[int]]:
        """The sequences of each batch, until there is nothing new."""
        start = start or self.driver.initialOffset()
        while (end := self.latest(start)) != start:
            yield [n for part in self.read(start, end) for n in part]
            start = end
