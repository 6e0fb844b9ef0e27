"""Options are checked when a read or write is created; mistakes are reported in a sentence."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from pyspark.sql.datasource import CaseInsensitiveDict
from pyspark.sql.types import StringType, StructField, StructType

from ebbflow.datasource import JetStreamDataSource
from ebbflow.datasource.jetstream import READ
from ebbflow.datasource.options import READ_OPTIONS, WRITE_OPTIONS, ReadOptions, WriteOptions
from ebbflow.domain.errors import DataSourceError
from ebbflow.nats.locate import NATS_URL

URL = {"url": "nats://localhost:4222"}
DATA = StructType([StructField("data", StringType())])


@pytest.fixture(autouse=True)
def _no_server_in_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(NATS_URL, raising=False)


def source(**options: Any) -> JetStreamDataSource:
    """A data source as Spark creates it: case-insensitive names, values as text."""
    return JetStreamDataSource(CaseInsensitiveDict({n: str(v) for n, v in options.items()}))


def error_of(make: Any) -> str:
    with pytest.raises(DataSourceError) as error:
        make()
    return str(error.value)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({}, "Option stream is missing. Write the name of the stream."),
        (
            {"stream": "orders.*"},
            "Option stream is 'orders.*'. "
            "Write the name of a stream; a filter belongs in the option subject.",
        ),
        (
            {"subject": "a..b"},
            "Option subject is 'a..b'. "
            "Write names joined by dots, such as orders.new, orders.* or orders.>.",
        ),
        (
            {"startingSequence": "first"},
            "Option startingSequence is 'first'. Write earliest, latest or a whole number from 1.",
        ),
        (
            {"startingSequence": 0},
            "Option startingSequence is '0'. Write earliest, latest or a whole number from 1.",
        ),
        (
            {"endingSequence": "earliest"},
            "Option endingSequence is 'earliest'. Write latest or a whole number from 1.",
        ),
        (
            {"startingTime": "2026-01-31 12:00:00"},
            "Option startingTime is '2026-01-31 12:00:00'. "
            "Write a time with its zone, such as 2026-01-31T12:00:00Z.",
        ),
        (
            {"startingTime": "2026-01-31T12:00:00Z", "startingSequence": "latest"},
            "Options startingSequence and startingTime both say where to begin. "
            "Leave one of them out.",
        ),
        ({"partitions": "2.0"}, "Option partitions is '2.0'. Write a whole number from 1."),
        (
            {"maxMessagesPerBatch": "-1"},
            "Option maxMessagesPerBatch is '-1'. Write a whole number from 1.",
        ),
        ({"failOnDataLoss": "no"}, "Option failOnDataLoss is 'no'. Write true or false."),
        ({"ackWait": "5s"}, "Option ackWait is for writing. Leave it out."),
    ],
)
def test_an_invalid_read_option_is_rejected_by_load(options, text):
    options = {"stream": "S"} | options if options else {}
    assert error_of(source(**URL, **options).schema) == text


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (
            {"startingSequence": "latest"},
            "Option startingSequence is 'latest', and no message comes after it in a batch. "
            "Write 'earliest' or a number, or use readStream.",
        ),
        (
            {"maxMessagesPerBatch": "5"},
            "Option maxMessagesPerBatch is for streams; a batch reads everything. "
            "Leave it out, or set endingSequence.",
        ),
        (
            {"startingSequence": "7", "endingSequence": "6"},
            "Option startingSequence is 7, after endingSequence 6. "
            "Write a number up to endingSequence.",
        ),
    ],
)
def test_an_option_that_does_not_apply_to_batches_is_rejected(options, text):
    assert error_of(lambda: source(**URL, stream="S", **options).reader(READ)) == text


def test_a_streaming_read_has_no_ending_sequence():
    made = source(**URL, stream="S", endingSequence=9)
    assert error_of(lambda: made.streamReader(READ)) == (
        "Option endingSequence is for batches; a stream has no end. "
        "Leave it out, or use read in place of readStream."
    )


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (
            {"subject": "orders.*"},
            "Option subject is 'orders.*'. Write names joined by dots, without spaces, * or >.",
        ),
        (
            {"retryWait": "250"},
            "Option retryWait is '250'. Write a duration above 0, such as 250ms, 5s or 1m30s.",
        ),
        (
            {"ackWait": "0s"},
            "Option ackWait is '0s'. Write a duration above 0, such as 250ms, 5s or 1m30s.",
        ),
        (
            {"retryAttempts": "-2"},
            "Option retryAttempts is '-2'. "
            "Write a whole number from 0, or -1 to continue until ackWait is over.",
        ),
        ({"waitForRoom": "1"}, "Option waitForRoom is '1'. Write true or false."),
        ({"window": "0"}, "Option window is '0'. Write a whole number from 1."),
        ({"partitions": "2"}, "Option partitions is for reading. Leave it out."),
    ],
)
def test_an_invalid_write_option_is_rejected(options, text):
    made = source(**URL, **{"subject": "s"} | options)
    assert error_of(lambda: made.writer(DATA, False)) == text
    assert error_of(lambda: made.streamWriter(DATA, False)) == text


def test_an_unknown_option_is_rejected_with_the_nearest_name():
    assert error_of(lambda: source(**URL, strem="S")) == (
        "There is no option 'strem'; did you mean 'stream'?"
    )
    assert error_of(lambda: source(**URL, colour="blue")).startswith(
        "There is no option 'colour'; there are stream, url, subject, "
    )
    assert error_of(lambda: source(**URL, path="/orders")) == (
        "There is no path: streams have names. Call load(), save() and start() without."
    )


def test_options_that_spark_adds_are_accepted():
    source(**URL, checkpointLocation="/tmp/x", queryName="q", asyncProgressTrackingEnabled="true")


def test_option_names_and_values_are_case_insensitive():
    given = CaseInsensitiveDict({"STREAM": "S", "failondataloss": "FALSE"})
    assert ReadOptions.of(given).fail_on_loss is False


def test_a_missing_url_is_reported_with_what_to_set():
    assert error_of(lambda: source(stream="S")) == (
        "The address of NATS is not set. "
        "Set EBBFLOW_NATS_URL before register(spark) is called, or the option url."
    )


def test_an_invalid_url_is_rejected_without_repeating_its_password():
    assert error_of(lambda: source(url="http://me:secret@nats", stream="S")) == (
        "'nats' is not a NATS URL; write for example nats://localhost:4222. "
        "Correct the option url or EBBFLOW_NATS_URL."
    )


def test_the_url_option_overrides_the_environment(monkeypatch):
    monkeypatch.setenv(NATS_URL, "nats://one:4222,nats://two:4222")
    assert source()._server.urls == ("nats://one:4222", "nats://two:4222")
    assert source(**URL)._server.urls == ("nats://localhost:4222",)


def test_the_login_is_taken_from_the_environment(monkeypatch):
    monkeypatch.setenv("EBBFLOW_NATS_USER", "me")
    monkeypatch.setenv("EBBFLOW_NATS_PASSWORD", "secret")
    assert source(**URL)._server.login.password == "secret"


def test_options_are_parsed_as_written():
    read = ReadOptions.of(
        {
            "stream": "S",
            "subject": "a.*.>",
            "startingtime": "2026-01-31T12:00:00+01:00",
            "partitions": "3",
        }
    )
    assert read.start == datetime(2026, 1, 31, 11, tzinfo=UTC)
    assert (read.subject, read.partitions, read.end, read.most) == ("a.*.>", 3, None, None)
    write = WriteOptions.of({"retrywait": "50ms", "retryattempts": "3", "ackwait": "1m"})
    assert (write.publish.retry_wait, write.publish.retry_attempts) == (0.05, 3)
    assert write.publish.ack_wait == 60


def test_the_documented_defaults_are_the_actual_defaults():
    documented = {one.name: one.default.strip("`") for one in (*READ_OPTIONS, *WRITE_OPTIONS)}
    read, write = ReadOptions.of({"stream": "S"}), WriteOptions.of({})
    assert documented["startingSequence"] == read.start
    assert documented["partitions"] == str(read.partitions)
    assert documented["failOnDataLoss"] == str(read.fail_on_loss).lower()
    assert documented["retryWait"] == f"{write.publish.retry_wait * 1000:.0f}ms"
    assert documented["retryAttempts"] == str(write.publish.retry_attempts)
    assert documented["ackWait"] == f"{write.publish.ack_wait:.0f}s"
    assert documented["waitForRoom"] == str(write.publish.wait_for_room).lower()
    assert documented["window"] == str(write.window)
