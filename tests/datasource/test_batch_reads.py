"""``spark.read.format("jetstream")``: a range of a stream as a DataFrame."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import pytest
from pyspark.errors import PySparkException

from ebbflow.domain.errors import DataLoss, DataSourceError
from tests.datasource.conftest import Stream
from tests.datasource.planned import planned


def load(spark: Any, stream: Stream, **options: Any) -> Any:
    return spark.read.format("jetstream").options(stream=stream.name, **options).load()


def failure(call: Any) -> str:
    with pytest.raises(PySparkException) as error:
        call()
    return str(error.value)


# --- with Spark -----------------------------------------------------------------------------------


def test_a_stream_is_read_as_a_dataframe_with_five_columns(spark, stream):
    stream.publish(b"\x00one", on="a", headers={"k": "v"})
    stream.publish("two", on="b")
    frame = load(spark, stream)
    assert frame.schema.simpleString() == (
        "struct<subject:string,sequence:bigint,time:timestamp,headers:map<string,string>,"
        "data:binary>"
    )
    first, second = sorted(frame.collect(), key=lambda row: row.sequence)
    assert (first.subject, first.sequence) == (f"{stream.name}.a", 1)
    assert (first.headers, bytes(first.data)) == ({"k": "v"}, b"\x00one")
    assert abs(first.time - datetime.now()) < timedelta(minutes=1)
    assert (second.headers, bytes(second.data)) == ({}, b"two")


def test_several_tasks_read_everything_once_within_the_range_fixed_at_load(spark, stream):
    stream.fill(40)
    frame = load(spark, stream, partitions=3)
    assert frame.rdd.getNumPartitions() == 3
    stream.fill(5)
    assert sorted(row.sequence for row in frame.collect()) == list(range(1, 41))


def test_an_empty_stream_is_an_empty_dataframe(spark, stream):
    assert load(spark, stream).collect() == []


def test_load_reports_a_misspelt_option_with_the_nearest_name(spark, stream):
    message = failure(lambda: load(spark, stream, strem="S"))
    assert "There is no option 'strem'; did you mean 'stream'?" in message


def test_an_unreachable_server_is_named_without_its_password(spark, stream):
    message = failure(load(spark, stream, url="nats://me:secret@127.0.0.1:1").collect)
    assert "No NATS server answers at nats://127.0.0.1:1" in message
    assert "Start it, or correct the option url or EBBFLOW_NATS_URL." in message
    assert "secret" not in message


# --- without Spark: its calls are made directly--------------------------------------------------


def test_a_range_is_chosen_by_sequence_and_subject(stream):
    for number in range(1, 11):
        stream.publish(number, on="even" if number % 2 == 0 else "odd")
    stream.delete(6)
    even = f"{stream.name}.even"
    assert planned(stream, startingSequence=4, endingSequence=7) == [[4, 5, 7]]
    assert planned(stream, subject=even, startingSequence=3, partitions=2) == [[4], [8, 10]]
    assert planned(stream, subject=f"{stream.name}.*", endingSequence="latest")[0][-1] == 10
    assert planned(stream, startingSequence=11) == []


def test_a_range_has_no_more_partitions_than_sequences(stream):
    stream.fill(4)
    assert planned(stream, partitions=50) == [[1], [2], [3], [4]]


def test_a_read_can_begin_at_a_time(stream):
    stream.publish(1, 2)
    second = stream.state["last_ts"]
    stream.publish(3)
    assert planned(stream, startingTime=second) == [[2, 3]]
    assert planned(stream, startingTime="2020-01-01T00:00:00Z") == [[1, 2, 3]]
    assert planned(stream, startingTime="2200-01-01T00:00:00+01:00") == []


def test_a_removed_first_message_is_a_loss_unless_losses_are_tolerated(stream):
    stream.fill(10)
    stream.purge(before=5)
    assert planned(stream) == [[5, 6, 7, 8, 9, 10]]
    assert planned(stream, startingSequence=2, failOnDataLoss="false") == planned(stream)
    with pytest.raises(DataLoss, match="messages from 2 to 4 are no longer in the stream"):
        planned(stream, startingSequence=2)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (
            {"startingSequence": 12},
            "Option startingSequence is 12, and {} ends at 10. "
            "Write earliest, latest or a number up to that.",
        ),
        (
            {"endingSequence": 11},
            "Option endingSequence is 11, and {} ends at 10. Write latest or a number up to that.",
        ),
    ],
)
def test_a_range_beyond_the_end_of_the_stream_is_rejected(stream, options, text):
    stream.fill(10)
    with pytest.raises(DataSourceError) as error:
        planned(stream, **options)
    assert str(error.value) == text.format(stream.name)
