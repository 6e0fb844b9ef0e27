"""``spark.readStream.format("jetstream")``: micro-batches that can be replayed exactly."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql.streaming.datasource import ReadAllAvailable

from ebbflow.domain.errors import DataLoss, DataSourceError
from tests.datasource.conftest import Stream, run_to_end
from tests.datasource.planned import Run

# --- with Spark -----------------------------------------------------------------------------------


class Query:
    """A query with a checkpoint; each run reads the messages that are new."""

    def __init__(self, spark: Any, stream: Stream, checkpoint: Path) -> None:
        self.spark = spark
        self.stream = stream
        self.checkpoint = checkpoint
        self.batches: dict[int, list[list[int]]] = {}
        """The sequences of each batch, every time that it was processed."""

    def start(self, fail_in: int | None = None, **options: Any) -> Any:
        """Start a run; with ``fail_in`` it fails in that batch, after the messages were read."""

        def process(frame: Any, batch: int) -> None:
            numbers = sorted(row.sequence for row in frame.collect())
            self.batches.setdefault(batch, []).append(numbers)
            if batch == fail_in:
                raise RuntimeError("the query is made to fail")

        trigger = options.pop("trigger", {"availableNow": True})
        reader = self.spark.readStream.format("jetstream").options(stream=self.stream.name)
        writer = reader.options(**options).load().writeStream.foreachBatch(process)
        return writer.option("checkpointLocation", str(self.checkpoint)).trigger(**trigger).start()

    def run(self, **options: Any) -> list[int]:
        """Run until all current messages are read; returns all sequences read so far."""
        run_to_end(partial(self.start, **options))
        return [number for again in self.batches.values() for n in again for number in n]

    def failure(self, **options: Any) -> str:
        with pytest.raises(StreamingQueryException) as error:
            self.run(**options)
        return str(error.value)


@pytest.fixture
def query(spark: Any, stream: Stream, tmp_path: Path) -> Query:
    return Query(spark, stream, tmp_path / "checkpoint")


@pytest.mark.guarantee("data-source-reads-all")
def test_a_failed_batch_is_replayed_exactly(query, stream):
    stream.fill(10)
    assert "made to fail" in query.failure(fail_in=1, maxMessagesPerBatch=4)
    stream.fill(10)
    stream.delete(9)
    # Neither later messages nor another batch size change the batch that had begun.
    query.run(maxMessagesPerBatch=7, partitions=3)
    assert query.batches == {
        0: [[1, 2, 3, 4]],
        1: [[5, 6, 7, 8], [5, 6, 7, 8]],
        2: [[10, 11, 12, 13, 14, 15, 16]],
        3: [[17, 18, 19, 20]],
    }


def test_messages_removed_before_a_first_batch_is_replayed_are_a_loss(query, stream):
    stream.fill(10)
    query.failure(fail_in=0)
    stream.purge(before=8)
    message = query.failure()
    assert f"{stream.name}: messages from 1 to 7 are no longer in the stream" in message
    assert "Set failOnDataLoss to false to continue with the messages that are left." in message


def test_new_messages_are_read_as_they_arrive_and_the_lag_is_reported(query, stream):
    stream.fill(5)
    running = query.start(startingSequence="latest", trigger={"processingTime": "0 seconds"})
    try:
        running.processAllAvailable()
        for _ in range(2):
            stream.fill(3)
            running.processAllAvailable()
        (source,) = running.lastProgress["sources"]
    finally:
        running.stop()
    assert [n for (numbers,) in query.batches.values() for n in numbers] == list(range(6, 12))
    latest, end = (json.loads(source[name])["sequence"] for name in ("latestOffset", "endOffset"))
    assert (latest, end) == (11, 11)


# --- without Spark: its calls are made directly--------------------------------------------------


def test_the_initial_offset_of_a_query_stays_the_same(stream):
    stream.fill(5)
    with Run(stream, startingSequence="latest") as run:
        start = run.driver.initialOffset()
        stream.fill(3)
        assert run.driver.initialOffset() == start
        assert list(run.batches()) == [[6, 7, 8]]


@pytest.mark.guarantee("data-source-reads-all")
def test_a_first_batch_that_began_at_latest_is_replayed_from_the_same_place(stream):
    stream.fill(5)
    with Run(stream, startingSequence="latest") as first:
        start = first.driver.initialOffset()
        stream.fill(3)
        end = first.latest(start)
    stream.fill(3)
    with Run(stream, startingSequence="latest") as second:
        # Spark stores the end of a first batch, and asks for its start again.
        assert second.read(second.driver.initialOffset(), end) == [[6, 7, 8]]
        assert list(second.batches(end)) == [[9, 10, 11]]


def test_messages_published_during_an_available_now_run_are_left_to_the_next_one(stream):
    stream.fill(6)
    with Run(stream, available_now=True, maxMessagesPerBatch=4) as run:
        stream.fill(3)
        assert list(run.batches()) == [[1, 2, 3, 4], [5, 6]]


def test_batches_respect_the_limit_whatever_gaps_the_stream_has(stream):
    for number in range(1, 41):
        stream.publish(number, on="even" if number % 2 == 0 else "odd")
    stream.delete(*range(10, 31, 2))
    with Run(stream, subject=f"{stream.name}.even", maxMessagesPerBatch=4) as run:
        found = list(run.batches())
    assert [n for batch in found for n in batch] == [2, 4, 6, 8, 32, 34, 36, 38, 40]
    assert max(map(len, found)) <= 4
    assert len(found) <= 4
    assert stream.has_no_consumers_left()


def test_a_trigger_for_all_available_messages_ignores_the_limit(stream):
    stream.fill(10)
    with Run(stream, maxMessagesPerBatch=4) as run:
        start = run.driver.initialOffset()
        assert run.read(start, run.latest(start, ReadAllAvailable())) == [list(range(1, 11))]


def test_messages_of_other_subjects_advance_the_offset(stream):
    stream.fill(3, on="other")
    with Run(stream, subject=f"{stream.name}.mine") as run:
        start = run.driver.initialOffset()
        end = run.latest(start)
        assert end["sequence"] == 3
        assert run.read(start, end) == [[]]


@pytest.mark.guarantee("data-source-reads-all")
def test_messages_removed_since_the_checkpoint_are_a_loss(stream):
    stream.fill(10)
    with Run(stream) as run:
        read = run.latest(run.driver.initialOffset())
        stream.fill(10)
        stream.purge(before=16)
        with pytest.raises(DataLoss, match="messages from 11 to 15 are no longer in the stream"):
            list(run.batches(read))
    with Run(stream, failOnDataLoss="false", maxMessagesPerBatch=3) as run:
        assert list(run.batches(read)) == [[16, 17, 18], [19, 20]]


def test_messages_already_read_may_be_removed(stream):
    stream.fill(10)
    with Run(stream) as run:
        read = run.latest(run.driver.initialOffset())
        stream.purge(before=11)
        assert run.latest(read) == read
        stream.fill(2)
        assert list(run.batches(read)) == [[11, 12]]


@pytest.mark.guarantee("data-source-reads-all")
@pytest.mark.parametrize("messages", [4, 20])
def test_a_recreated_stream_is_rejected_whatever_its_length(stream, messages):
    stream.fill(10)
    with Run(stream) as run:
        read = run.latest(run.driver.initialOffset())
        stream.remove()
        stream.make()
        stream.fill(messages)
        with pytest.raises(DataSourceError) as error:
            run.latest(read)
    assert f"{stream.name} was deleted and made again" in str(error.value)
    assert str(error.value).endswith("Start the query with a new checkpointLocation.")


def test_a_checkpoint_belongs_to_one_stream(stream, make):
    other = make()
    with Run(stream) as run:
        start = run.driver.initialOffset()
    with Run(other) as run, pytest.raises(DataSourceError) as error:
        run.latest(start)
    assert f"The checkpoint is about the stream {stream.name}, not {other.name}." in str(
        error.value
    )
