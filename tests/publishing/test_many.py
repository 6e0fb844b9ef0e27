"""Many messages at once: bounded, in order, and with an outcome for each when something fails."""

from __future__ import annotations

import asyncio
import pickle
import re
import threading

import pytest

from ebbflow.domain.errors import BufferFull, MessageTooLarge, NoStreamResponse, PublishTimeout
from ebbflow.publishing import AsyncPublisher, Outgoing, Publisher


def numbered(subject, count):
    return [Outgoing(subject, b"%d" % n) for n in range(count)]


def test_messages_are_stored_and_acked_in_their_order(publisher, subject, stream):
    stream()
    acks = publisher.publish_many(((subject, b"x") for _ in range(1_000)), window=50)

    assert [ack.seq for ack in acks] == list(range(1, 1_001))
    assert not any(ack.duplicate for ack in acks)


def test_an_empty_list_of_messages_returns_no_acks(publisher):
    assert publisher.publish_many([]) == []


async def _from_a_list(messages):
    return messages


async def _from_a_generator(messages):
    async def generate():
        for message in messages:
            await asyncio.sleep(0)
            yield message

    return generate()


@pytest.mark.parametrize("source", [_from_a_list, _from_a_generator])
def test_the_async_publisher_takes_lists_and_async_generators(url, subject, stream, source):
    stream()

    async def send():
        async with AsyncPublisher(url) as publisher:
            return await publisher.publish_many(await source(numbered(subject, 300)), window=7)

    assert [ack.seq for ack in asyncio.run(send())] == list(range(1, 301))


def test_no_more_messages_than_the_window_are_in_flight(publisher, subject, silent):
    received = silent()
    with pytest.raises(PublishTimeout) as failed:
        publisher.publish_many(numbered(subject, 100), window=10, ack_wait=0.3)

    assert sorted(int(message.data) for message in received) == list(range(10))
    assert failed.value.acks == (None,) * 10


def test_a_message_is_sent_before_the_iterable_yields_the_next(publisher, subject, stream):
    """An iterable that waits holds up neither what it has already yielded nor the connection."""
    stream()
    checked = []

    def waiting():
        for n in range(3):
            yield (subject, b"x")
            while stream.messages <= n:
                threading.Event().wait(0.01)
            checked.append(n)

    assert len(publisher.publish_many(waiting())) == 3
    assert checked == [0, 1, 2]


def test_an_error_shows_which_messages_are_stored(publisher, subject, stream):
    stream(max_msgs=30, discard="new")
    given = iter(numbered(subject, 10_000))
    with pytest.raises(BufferFull) as failed:
        publisher.publish_many(given, window=8)

    acks = failed.value.acks
    assert [ack.seq for ack in acks[:30]] == list(range(1, 31))
    assert set(acks[30:]) == {None}
    assert len(acks) <= 30 + 8
    assert failed.value.__notes__ == [f"It was message 30; 30 of {len(acks)} sent are stored."]
    assert len(list(given)) > 9_900
    assert pickle.loads(pickle.dumps(failed.value)).acks == acks


def test_failed_messages_can_be_published_again_and_are_stored_once(publisher, subject, stream):
    messages = numbered(subject, 10)
    with pytest.raises(NoStreamResponse):
        publisher.publish_many(messages, retry_attempts=0)
    stream()

    first = publisher.publish_many(messages[:6])
    again = publisher.publish_many(messages)

    assert [ack.seq for ack in again] == list(range(1, 11))
    assert [ack.duplicate for ack in again] == [True] * 6 + [False] * 4
    assert [ack.seq for ack in first] == [ack.seq for ack in again[:6]]
    assert stream.messages == 10


def _invalid(subject):
    yield from [(subject, b"1"), (subject, b"2"), (subject, "three")]


def _not_a_message(subject):
    yield from [(subject, b"1"), (subject, b"2"), subject]


def _breaking(subject):
    yield from [(subject, b"1"), (subject, b"2")]
    raise KeyError("the file is broken")


@pytest.mark.parametrize(
    ("source", "kind", "expected"),
    [
        (_invalid, ValueError, "data must be bytes, not str"),
        (_not_a_message, ValueError, "a message is an Outgoing or a pair"),
        (_breaking, KeyError, "the file is broken"),
    ],
)
def test_messages_before_an_invalid_one_are_stored(
    publisher, subject, stream, source, kind, expected
):
    stream()
    with pytest.raises(kind, match=expected) as failed:
        publisher.publish_many(source(subject))

    assert failed.value.__notes__ == ["It was message 2; those before it are stored."]
    assert stream.messages == 2


def test_a_message_over_the_limit_is_rejected_and_the_connection_stays_open(
    url, link, subject, stream
):
    stream()
    limit = link.client.max_payload
    headers = {"Nats-Msg-Id": "id", "a": "ü"}
    size = len("NATS/1.0\r\n" + "Nats-Msg-Id: id\r\n" + "a: ü\r\n" + "\r\n") + 1
    with Publisher(url, ack_wait=20) as publisher:
        fits = Outgoing(subject, b"x" * (limit - size), headers)
        assert publisher.publish_many([fits])[0].seq == 1
        text = f"message of {limit + 1:,} bytes is over the limit of {limit:,} bytes"
        with pytest.raises(MessageTooLarge, match=re.escape(text)):
            publisher.publish_many([Outgoing(subject, fits.data + b"x", headers)])
        assert publisher.publish(subject, b"x").seq == 2


@pytest.mark.parametrize("window", [0, -1, 1.5, True, None])
def test_a_window_must_hold_at_least_one_message(publisher, window):
    text = f"window must be a whole number from 1, not {window!r}"
    with pytest.raises(ValueError, match=f"^{re.escape(text)}$"):
        publisher.publish_many([], window=window)


def test_a_message_is_retried_while_the_iterable_waits_for_the_next(publisher, subject, stream):
    def waiting():
        yield (subject, b"x")  # the stream does not exist yet
        stream()
        while stream.messages < 1:
            threading.Event().wait(0.01)

    acks = publisher.publish_many(waiting(), retry_attempts=-1, retry_wait=0.05)
    assert [ack.seq for ack in acks] == [1]
