"""Reading a range from a real server returns every existing message in it, or fails."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ebbflow.datasource import planning, readers
from ebbflow.datasource.planning import Leader, Range
from ebbflow.datasource.readers import Blocks
from ebbflow.domain.errors import DataLoss, DataSourceError, JetStreamUnavailable
from ebbflow.nats.link import Link
from ebbflow.nats.locate import open_link, start_embedded
from tests.datasource.conftest import Stream
from tests.processes import frozen


def whole(stream: Stream, **changes: Any) -> Range:
    """The range of everything in the stream now."""
    now = stream.link.run(Leader(stream.link.client, stream.name).read_facts())
    wanted = Range(now.stream, now.created, None, now.first - 1, now.last, fail_on_loss=True)
    return replace(wanted, **changes)


def sequences(stream: Stream, wanted: Range) -> list[int]:
    batches = readers.read_range(stream.link.server, wanted)
    return [one for batch in batches for one in batch.column("sequence").to_pylist()]


def test_every_message_is_read_once_and_in_order_across_many_blocks(stream):
    stream.fill(50_000)
    assert sequences(stream, whole(stream)) == list(range(1, 50_001))


def test_only_the_messages_of_the_range_are_read(stream):
    stream.fill(100)
    assert sequences(stream, whole(stream, after=20, until=35)) == list(range(21, 36))


def test_deleted_messages_are_skipped_wherever_they_were(stream):
    stream.fill(20)
    stream.delete(5, 6, 11, 19, 20)
    left = [n for n in range(1, 19) if n not in (5, 6, 11)]
    assert sequences(stream, whole(stream)) == left


def test_only_matching_subjects_are_read(stream):
    for name in ("a.1", "b.1", "a.2", "b.2", "a.1"):
        stream.publish("x", on=name)
    assert sequences(stream, whole(stream, subject=f"{stream.name}.a.*")) == [1, 3, 5]
    assert sequences(stream, whole(stream, subject=f"{stream.name}.b.2")) == [4]
    assert sequences(stream, whole(stream, subject=f"{stream.name}.c")) == []


def test_matching_messages_after_the_range_are_not_read(stream):
    for name in ("a", "b", "b", "a", "a"):
        stream.publish("x", on=name)
    assert sequences(stream, whole(stream, until=3, subject=f"{stream.name}.a")) == [1]


def test_the_columns_equal_what_was_published(stream):
    stream.publish(b"\x00\xff", on="bytes", headers={"k": "v", "Status": "404"})
    stream.publish("", on="nothing")
    (batch,) = readers.read_range(stream.link.server, whole(stream))
    first, second = batch.to_pylist()
    assert first["subject"] == f"{stream.name}.bytes"
    assert first["data"] == b"\x00\xff"
    assert dict(first["headers"]) == {"k": "v", "Status": "404"}
    assert (second["data"], second["headers"]) == (b"", [])
    # Spark's timestamps have no more than microseconds.
    assert first["time"].isoformat()[:26] == stream.state["first_ts"][:26]


def test_a_block_is_limited_by_bytes_and_a_larger_message_still_arrives(stream):
    stream.publish(*(b"x" * 3_000 for _ in range(9)), b"x" * 300_000, b"x")
    batches = list(readers.read_range(stream.link.server, whole(stream), Blocks(size=10_000)))
    assert [batch.num_rows for batch in batches][:3] == [3, 3, 3]
    assert [len(one) for batch in batches for one in batch.column("data").to_pylist()] == [
        *[3_000] * 9,
        300_000,
        1,
    ]


def test_a_range_ahead_of_the_answering_replica_is_waited_for(stream):
    """This happens where a replica lags behind the leader that reported the end of the range."""
    stream.fill(10)
    ahead = whole(stream, until=13)
    timer = threading.Timer(0.5, lambda: stream.fill(3))
    timer.start()
    try:
        assert sequences(stream, ahead) == list(range(1, 14))
    finally:
        timer.join()


@pytest.mark.guarantee("data-source-reads-all")
def test_a_range_whose_end_never_arrives_fails_rather_than_being_cut_short(stream, monkeypatch):
    monkeypatch.setattr(readers, "PATIENCE", 0.5)
    stream.fill(10)
    with pytest.raises(DataSourceError) as error:
        sequences(stream, whole(stream, until=13))
    assert str(error.value) == (
        f"{stream.name}: messages after 10 up to 13 did not arrive within 0 s. "
        "Check the servers of the stream; the same range can be read again."
    )


@pytest.fixture
def blocks(link: Link) -> Callable[[Range], Iterator[list[int]]]:
    """Reads the sequences of a range in blocks of ten, so that a test can act in between."""

    def read(wanted: Range) -> Iterator[list[int]]:
        for batch in readers.read_range(link.server, wanted, Blocks(10, 10)):
            yield batch.column("sequence").to_pylist()

    return read


def test_a_new_consumer_continues_where_a_deleted_one_stopped(stream, blocks):
    stream.fill(35)
    reading = blocks(whole(stream))
    found = next(reading)
    (consumer,) = stream.api(f"CONSUMER.NAMES.{stream.name}")["consumers"]
    stream.api(f"CONSUMER.DELETE.{stream.name}.{consumer}")
    for block in reading:
        found += block
    assert found == list(range(1, 36))


async def take_one(stream: Stream, consumer: str) -> None:
    other = await stream.link.client.jetstream().pull_subscribe_bind(consumer, stream.name)
    assert len(await other.fetch(1)) == 1
    await other.unsubscribe()


def test_a_message_lost_on_the_way_is_fetched_again(stream, blocks):
    stream.fill(35)
    reading = blocks(whole(stream))
    found = next(reading)
    (consumer,) = stream.api(f"CONSUMER.NAMES.{stream.name}")["consumers"]
    # Another client takes a message from this consumer, which is then missing here.
    stream.link.run(take_one(stream, consumer))
    for block in reading:
        found += block
    assert found == list(range(1, 36))


@pytest.mark.guarantee("data-source-reads-all")
def test_messages_removed_while_a_range_is_read_are_a_loss(stream, blocks):
    stream.fill(40)
    reading = blocks(whole(stream))
    assert next(reading) == list(range(1, 11))
    stream.purge(before=16)
    with pytest.raises(DataLoss, match="messages from 11 to 15 are no longer in the stream"):
        next(reading)


def test_removing_the_whole_rest_of_a_range_is_a_loss(stream, blocks):
    stream.fill(40)
    reading = blocks(whole(stream))
    next(reading)
    stream.purge(before=41)
    with pytest.raises(DataLoss, match="messages from 11 to 40 are no longer in the stream"):
        next(reading)


def test_a_tolerated_loss_is_skipped(stream, blocks):
    stream.fill(40)
    reading = blocks(whole(stream, fail_on_loss=False))
    next(reading)
    stream.purge(before=35)
    assert [one for block in reading for one in block] == list(range(35, 41))


def test_a_purge_of_messages_already_read_is_not_a_loss(stream, blocks):
    stream.fill(40)
    stream.delete(22)
    reading = blocks(whole(stream))
    found = next(reading) + next(reading)
    stream.purge(before=21)
    for block in reading:
        found += block
    assert found == [n for n in range(1, 41) if n != 22]


def test_a_stream_recreated_after_planning_is_rejected(stream):
    stream.fill(10)
    wanted = whole(stream)
    stream.remove()
    stream.make()
    stream.fill(20)
    with pytest.raises(DataSourceError, match=f"{stream.name} was deleted and made again"):
        sequences(stream, wanted)


def test_no_consumer_remains_when_reading_ends_early(stream, blocks):
    stream.fill(40)
    reading = blocks(whole(stream))
    next(reading)
    assert stream.consumers == 1
    reading.close()
    assert stream.has_no_consumers_left()


@pytest.mark.parametrize("config", [{"allow_direct": False}, {"retention": "interest"}])
def test_streams_without_direct_reads_or_with_interest_retention_can_be_read(make, config):
    stream = make(**config)
    durable = {"durable_name": "d", "ack_policy": "explicit"}
    request = {"stream_name": stream.name, "config": durable}
    stream.api(f"CONSUMER.DURABLE.CREATE.{stream.name}.d", request)
    stream.fill(30)
    assert sequences(stream, whole(stream)) == list(range(1, 31))
    assert stream.state["messages"] == 30


def test_a_work_queue_is_rejected(make):
    stream = make(retention="workqueue")
    with pytest.raises(DataSourceError) as error:
        whole(stream)
    assert str(error.value) == (
        f"{stream.name} is a work queue: its messages are for its own consumer only. "
        "Read a stream that keeps messages by limits; it may have this one as a source."
    )


def test_a_missing_stream_is_named(link):
    with pytest.raises(DataSourceError) as error:
        link.run(Leader(link.client, "ABSENT").read_facts())
    assert str(error.value) == ("There is no stream ABSENT. Make it, or correct the option stream.")


@pytest.fixture
def fragile(tmp_path: Path) -> Iterator[Stream]:
    """A stream on its own server, which is restarted when it is killed."""
    with start_embedded(tmp_path) as server, open_link(server) as link:
        yield Stream(link, "FRAGILE", storage="file")


@pytest.fixture
def pid(fragile: Stream, tmp_path: Path) -> int:
    return int((tmp_path / "nats" / "pid").read_text())


def test_a_server_that_does_not_answer_is_reported(fragile, pid, monkeypatch):
    monkeypatch.setattr(planning, "PATIENCE", 0.5)
    silent = pytest.raises(JetStreamUnavailable, match=r"STREAM.INFO.FRAGILE within 0.5 s")
    with frozen(pid), silent:
        fragile.link.run(Leader(fragile.link.client, "FRAGILE").read_facts())


def test_a_read_continues_after_its_server_was_killed_and_restarted(fragile, pid):
    fragile.fill(35)
    reading = readers.read_range(fragile.link.server, whole(fragile), Blocks(10, 10, silence=0.3))
    found = next(reading).column("sequence").to_pylist()
    os.kill(pid, signal.SIGKILL)
    for batch in reading:
        found += batch.column("sequence").to_pylist()
    assert found == list(range(1, 36))
