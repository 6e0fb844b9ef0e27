"""The SQS source: leases, acks, groups and outages, on a server that speaks SQS' protocol."""

from __future__ import annotations

from contextlib import ExitStack, suppress
from datetime import UTC, datetime, timedelta

import pytest

pytest.importorskip("boto3")

from ebbflow.connectors.sqs.source import SqsSource, SqsSourceSettings
from ebbflow.connectors.sqs.sqs_client import SqsAccess
from ebbflow.domain.errors import SetupError, Unavailable
from ebbflow.domain.user_source import redelivers
from tests.waiting import let_time_pass, until


@pytest.fixture
def opened(sqs):
    with ExitStack() as stack:

        def opened(queue, **options):
            access = SqsAccess("us-east-1", queue, endpoint=sqs.url)
            source = SqsSource(SqsSourceSettings(access, **{"wait_time_seconds": 0} | options))
            source.open()
            stack.callback(source.close)
            return source

        yield opened


def read(source, count, limit=100, seconds=30.0):
    """At least ``count`` messages, in the order in which they are read."""
    found = []

    def take():
        found.extend(source.read(limit, timedelta(seconds=0.05)))
        return len(found) >= count

    until(take, seconds)
    return found


def offsets(messages):
    return [message.offset for message in messages]


def values(messages):
    return [message.value.decode() for message in messages]


def test_messages_are_hidden_while_in_flight_and_deleted_when_settled(sqs, opened):
    queue = sqs.queue()
    sqs.send(queue, *map(str, range(25)))
    source = opened(queue)
    before = datetime.now(UTC) - timedelta(minutes=1)
    messages = read(source, 25)
    assert sorted(map(int, values(messages))) == list(range(25))
    assert all(message.event_time > before for message in messages)
    assert sqs.depth(queue) == (0, 25)
    assert not source.exhausted
    assert not redelivers(source)  # Ebbflow keeps what is nacked

    source.ack(offsets(messages[:5]))
    source.ack(offsets(messages[:5]))  # an ack may be repeated
    assert sqs.depth(queue) == (0, 20)
    source.ack(offsets(messages[5:]))
    assert sqs.depth(queue) == (0, 0)
    assert source.exhausted
    assert source.pending() == 0


@pytest.mark.guarantee("sqs-loses-no-message")
def test_leases_are_renewed_while_messages_are_in_flight(sqs, opened):
    queue = sqs.queue()
    sqs.send(queue, *map(str, range(12)))
    source = opened(queue, visibility_timeout=2)
    messages = read(source, 12)
    let_time_pass(5)
    assert sqs.depth(queue) == (0, 12)
    source.ack(offsets(messages))
    assert sqs.depth(queue) == (0, 0)


@pytest.mark.guarantee("sqs-loses-no-message")
def test_messages_of_a_dead_process_are_redelivered_when_their_lease_expires(sqs, opened):
    queue = sqs.queue()
    sqs.send(queue, "1", "2")
    killed = opened(queue, visibility_timeout=1)
    first = read(killed, 2)
    killed._closing.set()  # neither reads nor renews leases any more
    killed._leases.stop()
    again = read(opened(queue), 2)
    assert sorted(offsets(again)) == sorted(offsets(first))


def test_a_closed_source_releases_its_messages_at_once(sqs, opened):
    queue = sqs.queue()
    sqs.send(queue, "1", "2", "3")
    source = opened(queue, visibility_timeout=600)
    read(source, 3, limit=1)
    source.close()
    assert sqs.depth(queue) == (3, 0)


def test_messages_of_a_group_arrive_in_order_with_the_group_as_key(sqs, opened):
    queue = sqs.queue(fifo=True)
    for number in range(6):
        for group in "ab":
            sqs.send(queue, f"{group}{number}", MessageGroupId=group)
    source = opened(queue, max_number_of_messages=3)
    seen = {"a": [], "b": []}
    while sum(map(len, seen.values())) < 12:
        for message in read(source, 1):
            seen[message.keys[0]].append(message.value.decode())
            source.ack([message.offset])
    assert seen == {group: [f"{group}{number}" for number in range(6)] for group in "ab"}


def test_sqs_attributes_become_headers_and_metadata(sqs, opened):
    queue = sqs.queue()
    given = {"shop": {"DataType": "String", "StringValue": "é"}}
    given |= {"raw": {"DataType": "Binary", "BinaryValue": b"\xff"}}
    sqs.send(queue, "x", MessageAttributes=given)
    asked = {"attribute_names": ("ApproximateReceiveCount",), "message_attribute_names": ("All",)}
    (message,) = read(opened(queue, **asked), 1)
    assert message.headers == {"shop": "é", "ApproximateReceiveCount": "1"}
    assert message.metadata == {"sqs": {"shop": "é".encode(), "raw": b"\xff"}}


@pytest.mark.guarantee("sqs-loses-no-message")
def test_an_outage_is_reported_and_messages_in_flight_can_be_acked_afterwards(sqs, opened):
    queue = sqs.queue()
    sqs.send(queue, *map(str, range(3)))
    source = opened(queue)
    messages = read(source, 3)
    sqs.relay.cut()
    try:
        with pytest.raises(Unavailable, match=f"SQS queue {queue} in us-east-1: "):
            read(source, 1)
        with pytest.raises(Unavailable):
            source.ack(offsets(messages[:1]))
        source.close()
    finally:
        sqs.relay.mend()
    successor = opened(queue)
    successor.ack(offsets(messages))
    assert sqs.depth(queue) == (0, 0)


def test_a_missing_queue_is_reported_when_the_source_opens(opened):
    with pytest.raises(SetupError) as raised:
        opened("nowhere")
    assert raised.value.what == (
        "There is no SQS queue nowhere in us-east-1 that this login can see."
    )


def test_what_others_write_into_our_attributes_stops_nothing(sqs, opened):
    queue = sqs.queue()
    strange = {
        "ebbflow.encoding": "base64",
        "ebbflow.keys": "[" * 5_000,
        "ebbflow.headers": "{",
    }
    given = {name: {"DataType": "String", "StringValue": text} for name, text in strange.items()}
    sqs.send(queue, "no base64", MessageAttributes=given)
    sqs.send(queue, "later")
    found = read(opened(queue), 2)
    assert sorted(values(found)) == ["later", "no base64"]


def test_an_error_that_nobody_expects_is_raised_by_the_next_read(sqs, opened, monkeypatch):
    queue = sqs.queue()
    source = opened(queue)
    receive = source._queue.receive

    def fail(limit):
        raise ValueError("what is this?")

    monkeypatch.setattr(source._queue, "receive", fail)
    with pytest.raises(ValueError, match="what is this"):
        read(source, 1)
    monkeypatch.setattr(source._queue, "receive", receive)
    sqs.send(queue, "x")
    assert values(read_when_possible(source)) == ["x"]


def read_when_possible(source):
    """The next message; what failed before may be raised again meanwhile."""
    found = []

    def take():
        with suppress(ValueError):
            found.extend(source.read(1, timedelta(seconds=0.05)))
        return found

    until(take)
    return found
