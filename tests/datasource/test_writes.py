"""``df.write`` and ``df.writeStream`` in the format ``jetstream``: each row is stored once."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql.datasource import CaseInsensitiveDict
from pyspark.sql.types import StructType

from ebbflow.datasource import JetStreamDataSource
from ebbflow.datasource.writer import to_message, to_messages
from ebbflow.domain.errors import DataSourceError
from ebbflow.nats.locate import NATS_URL
from tests.datasource.conftest import Stream, run_to_end


def save(frame: Any, mode: str = "append", **options: Any) -> None:
    frame.write.format("jetstream").mode(mode).options(**options).save()


def failure(call: Any, *arguments: Any, **options: Any) -> str:
    with pytest.raises(PySparkException) as error:
        call(*arguments, **options)
    return str(error.value)


# --- batches --------------------------------------------------------------------------------------


def test_rows_are_stored_with_their_subjects_headers_and_ids(spark, stream):
    frame = spark.createDataFrame(
        [
            (b"\x00\xff", f"{stream.name}.a", {"k": "v"}, "one"),
            (b"", None, None, None),
            (b"again", f"{stream.name}.b", {}, "one"),
        ],
        "data binary, subject string, headers map<string,string>, msg_id string",
    )
    save(frame.coalesce(1), subject=f"{stream.name}.default")
    (first, second) = stream.stored()
    assert first == (f"{stream.name}.a", b"\x00\xff", {"k": "v", "Nats-Msg-Id": "one"})
    assert second[:2] == (f"{stream.name}.default", b"")
    assert set(second[2]) == {"Nats-Msg-Id"}


def test_rows_that_were_read_can_be_written_and_a_second_write_stores_them_again(
    spark, stream, make
):
    stream.fill(30)
    copy = make()
    frame = spark.read.format("jetstream").options(stream=stream.name, partitions=3).load()
    for _ in range(2):
        save(frame.selectExpr("string(data) data", "headers"), subject=f"{copy.name}.x")
    assert Counter(data for _, data, _ in copy.stored()) == {b"%d" % n: 2 for n in range(30)}


TRIED_TWICE = '''
import sys
from pathlib import Path

import pyarrow as pa
from pyspark import TaskContext

from ebbflow.datasource import register
from ebbflow.spark.session import SessionPlan, start_session, stop_session

stream, folder = sys.argv[1:]


def spoiled(batches):
    """On the first attempt the last row cannot be published, after those before it were."""
    first = TaskContext.get().attemptNumber() == 0
    for batch in batches:
        numbers = batch.column("id").to_pylist()
        subjects = ["not a subject" if n == 59 and first else f"{stream}.s" for n in numbers]
        yield pa.record_batch({"data": [b"%d" % n for n in numbers], "subject": subjects})


plan = SessionPlan("tests", "local[2,2]", 2, Path(folder))
spark = start_session(plan)
register(spark)
frame = spark.range(60).coalesce(1).mapInArrow(spoiled, "data binary, subject string")
frame.write.format("jetstream").mode("append").save()
stop_session(spark, plan)
'''


@pytest.mark.guarantee("data-source-writes-once")
@pytest.mark.long
def test_a_retried_task_stores_nothing_twice(stream, url, tmp_path):
    # In its own process, because task retries are a setting of the session.
    script = tmp_path / "tried_twice.py"
    script.write_text(TRIED_TWICE)
    done = subprocess.run(
        [sys.executable, script, stream.name, tmp_path / "spark"],
        env={**os.environ, NATS_URL: url},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    assert [int(data) for _, data, _ in stream.stored()] == list(range(60))


def test_a_row_that_cannot_be_published_is_identified(spark, stream):
    frame = spark.range(3).selectExpr("if(id = 1, null, string(id)) data").coalesce(1)
    message = failure(save, frame, subject=f"{stream.name}.x")
    assert (
        "Row 1 of partition 0 cannot be published: data is null. "
        "Correct it and write again; rows before it are stored."
    ) in message


def test_a_subject_without_a_stream_is_reported_after_the_ack_wait(spark):
    frame = spark.range(1).selectExpr("string(id) data")
    message = failure(save, frame, subject="nobody.listens", ackWait="300ms", retryWait="100ms")
    assert re.search(
        r"nobody\.listens: no confirmation before the deadline after \d attempts", message
    )


def test_wrong_columns_and_overwriting_are_rejected_before_anything_is_written(spark, stream):
    frame = spark.range(3).selectExpr("string(id) data", "id as number")
    message = failure(save, frame, subject=f"{stream.name}.x")
    assert (
        "Column number cannot be published. Drop or rename it; there are data, subject, " in message
    )
    message = failure(save, frame.select("data"), mode="overwrite", subject=f"{stream.name}.x")
    assert 'A stream cannot be overwritten, only added to. Write mode("append").' in message
    assert stream.state["messages"] == 0


# --- streams --------------------------------------------------------------------------------------


class Copy:
    """A query that copies one stream to another; each run copies what is new."""

    def __init__(self, spark: Any, source: Stream, target: Stream, checkpoint: Path) -> None:
        self.spark = spark
        self.source = source
        self.target = target
        self.checkpoint = checkpoint

    def run(self, *columns: str, **options: Any) -> None:
        reader = self.spark.readStream.format("jetstream").options(stream=self.source.name)
        frame = reader.options(partitions=2, maxMessagesPerBatch=10).load()
        writer = frame.selectExpr(*columns or ("data",)).writeStream.format("jetstream")
        writer = writer.options(subject=f"{self.target.name}.x", **options)
        writer = writer.option("checkpointLocation", str(self.checkpoint))
        run_to_end(writer.trigger(availableNow=True).start)

    def forget_the_last_commit(self) -> None:
        """As if the query had died after the write of a batch and before its commit."""
        commits = self.checkpoint / "commits"
        last = max(int(file.name) for file in commits.iterdir() if file.name.isdigit())
        for file in (f"{last}", f".{last}.crc"):
            (commits / file).unlink()

    def numbers(self) -> list[int]:
        return sorted(int(data) for _, data, _ in self.target.stored())


@pytest.fixture
def copy(spark: Any, stream: Stream, make: Any, tmp_path: Path) -> Copy:
    return Copy(spark, stream, make(), tmp_path / "checkpoint")


@pytest.mark.guarantee("data-source-writes-once")
def test_a_replayed_batch_is_stored_once_and_rows_that_changed_are_added(copy, stream):
    stream.fill(15)
    copy.run()
    assert copy.numbers() == list(range(15))
    copy.forget_the_last_commit()
    copy.run()
    assert copy.numbers() == list(range(15))
    copy.forget_the_last_commit()
    copy.run("if(sequence > 12, string(sequence + 87), string(data)) data")
    assert copy.numbers() == [*range(15), 100, 101, 102]


# --- without Spark --------------------------------------------------------------------------------


def source(**options: str) -> JetStreamDataSource:
    return JetStreamDataSource(CaseInsensitiveDict({"url": "nats://localhost", **options}))


def error_of(call: Any, columns: str = "data string", overwrite: bool = False) -> str:
    with pytest.raises(DataSourceError) as error:
        call(StructType.fromDDL(columns), overwrite)
    return str(error.value)


def test_overwriting_is_rejected():
    writers = source(subject="s")
    message = "A stream cannot be overwritten, only added to. "
    assert error_of(writers.writer, overwrite=True) == message + 'Write mode("append").'
    assert error_of(writers.streamWriter, overwrite=True) == (
        message + 'Write outputMode("append") or outputMode("update").'
    )


@pytest.mark.parametrize(
    ("columns", "text"),
    [
        ("data int", "Column data is int, and has to be binary or string. Cast it."),
        (
            "data string, headers map<string,int>",
            "Column headers is map<string,int>, and has to be map<string,string>. Cast it.",
        ),
        ("data string, msg_id int", "Column msg_id is int, and has to be string. Cast it."),
        (
            "data string, subjct string",
            "Column subjct cannot be published. Drop or rename it; did you mean 'subject'?",
        ),
        (
            "subject string",
            "There is no column named data. Rename the column to publish to data.",
        ),
        (
            "data string",
            "No subject to publish to is set. Set the option subject, or add a column subject.",
        ),
    ],
)
def test_unsuitable_columns_are_rejected(columns, text):
    assert error_of(source().writer, columns) == error_of(source().streamWriter, columns) == text


@pytest.mark.guarantee("data-source-writes-once")
def test_equal_rows_have_equal_ids_and_all_others_differ():
    first = to_message("q-1-0-7", b"data", "s", {"k": "v"}, None).msg_id
    assert to_message("q-1-0-7", b"data", "s", {"k": "v"}, None).msg_id == first
    others = [
        to_message("q-1-0-8", b"data", "s", {"k": "v"}, None),
        to_message("q-2-0-7", b"data", "s", {"k": "v"}, None),
        to_message("q-1-0-7", b"other", "s", {"k": "v"}, None),
        to_message("q-1-0-7", b"data", "t", {"k": "v"}, None),
        to_message("q-1-0-7", b"data", "s", {"k": "w"}, None),
        to_message("q-1-0-7", b"data", "s", {}, None),
    ]
    assert len({first, *(one.msg_id for one in others)}) == 7


def test_an_id_chosen_by_the_user_is_kept():
    assert to_message("q", b"", "s", {}, "mine").msg_id == "mine"
    assert to_message("q", b"", "s", {"Nats-Msg-Id": "theirs"}, None).msg_id == "theirs"


def test_rows_are_numbered_across_all_batches_of_a_task():
    batch = pa.record_batch({"data": ["a", "b"]})
    ids = [one.msg_id or "" for one in to_messages(batch, "s", "write-3", 10_000)]
    assert [one.rpartition("-")[0] for one in ids] == ["write-3-10000", "write-3-10001"]
