"""The retries of ADR-22 through the public publishers, on a real server.

Cases of nats.go (L: test/js_test.go, N: jetstream/test/publish_test.go), and where ours differ:

| case | here | difference |
| --- | --- | --- |
| L1, N1 | test_a_missing_stream_is_an_error_after_three_attempts | none |
| L2, L5, N2 | test_a_missing_stream_is_an_error_of_the_first_of_many_messages | raised, not in a \
future; retried by default, as in the new client and not in the old one |
| L3, N7 | test_a_stream_that_appears_in_time_stores_the_message | none (window 1, as there) |
| L4, N8 | test_a_stream_that_appears_too_late_is_an_error | none |
| L6, N3 | test_options.py: below -1 is refused | upstream refuses -1, we do not |
| L7 | test_many.py: no_more_messages_than_the_window_are_in_flight | none |
| L8, N5 | no option for a stall: a full window waits; a window of 0 is refused | left out |
| L9 | test_faults.py: every_call_ends_when_the_server_stops | ends at its deadline |
| N4 | test_options.py: a wait of -1 is refused | ValueError |
| N6 | there is no reply subject to set | left out |
| N9 | test_no_retries_means_a_single_attempt | none |
| N10 | test_many.py: failed_messages_can_be_published_again_and_are_stored_once | no error \
handler |
| N11 | test_a_publish_without_a_confirmation_ends_at_the_deadline | none |
"""

from __future__ import annotations

import asyncio
import re
import threading
import time
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta

import pytest

from ebbflow.domain.errors import (
    BufferFull,
    NoStreamResponse,
    PermanentPublishError,
    PublishTimeout,
)
from ebbflow.nats import api
from ebbflow.publishing import AsyncPublisher, Publisher


@contextmanager
def later(seconds, action):
    """Run an action after that many seconds, and wait for it at the end."""
    timer = threading.Timer(seconds, action)
    timer.start()
    yield
    timer.join()


@contextmanager
def taking(least, most=4):
    """The block takes at least that many seconds, and not many more."""
    began = time.monotonic()
    yield
    assert least <= time.monotonic() - began < least + most


def test_a_missing_stream_is_an_error_after_three_attempts(publisher, subject):
    with taking(0.5), pytest.raises(NoStreamResponse) as failed:
        publisher.publish(subject, b"x", ack_wait=10)

    text = rf"{subject}: no response from stream after 3 attempts in 0\.[5-9]\d s"
    assert re.fullmatch(text, str(failed.value))


def test_a_missing_stream_is_an_error_of_the_first_of_many_messages(url, subject):
    async def send():
        async with AsyncPublisher(url, retry_wait=0.02) as publisher:
            await publisher.publish_many([(subject, b"x")])

    with taking(0.04), pytest.raises(NoStreamResponse) as failed:
        asyncio.run(send())

    assert (failed.value.subject, failed.value.attempts) == (subject, 3)


@pytest.mark.parametrize("many", [False, True])
def test_a_stream_that_appears_in_time_stores_the_message(publisher, subject, stream, many):
    options = {"retry_attempts": 10, "retry_wait": 0.1}
    with later(0.3, stream), taking(0.3):
        if many:
            [ack] = publisher.publish_many([(subject, b"x")], window=1, **options)
        else:
            ack = publisher.publish(subject, b"x", **options)

    assert (ack.stream, ack.seq, ack.duplicate) == (stream.name, 1, False)
    assert 4 <= ack.attempts <= 11


def test_a_stream_that_appears_too_late_is_an_error(publisher, subject, stream):
    with later(0.3, stream), pytest.raises(NoStreamResponse) as failed:
        publisher.publish(subject, b"x", retry_attempts=2, retry_wait=0.05)

    assert failed.value.attempts == 3


def test_no_retries_means_a_single_attempt(publisher, subject, silent):
    with taking(0), pytest.raises(NoStreamResponse, match="after 1 attempt in 0"):
        publisher.publish(subject, b"x", retry_attempts=0, retry_wait=30)

    received = silent()
    with taking(0.3), pytest.raises(PublishTimeout, match=r"1 attempt in .* s: 1 got no answer"):
        publisher.publish(subject, b"x", retry_attempts=0, attempt_timeout="0.05s", ack_wait=0.3)
    assert len(received) == 1


def test_a_publish_without_a_confirmation_ends_at_the_deadline(publisher, subject, stream):
    stream(no_ack=True)
    with taking(0.05), pytest.raises(PublishTimeout):
        publisher.publish(subject, b"x", ack_wait=0.05)

    assert publisher._inner._waiting == set()
    assert stream.messages == 1


def test_endless_attempts_end_at_the_deadline(publisher, subject):
    with taking(0.5), pytest.raises(PublishTimeout) as failed:
        publisher.publish(subject, b"x", retry_attempts=-1, retry_wait=0.2, ack_wait=0.5)

    assert re.fullmatch(
        rf"{subject}: no confirmation before the deadline after 3 attempts in 0\.\d\d s: "
        "3 found no stream",
        str(failed.value),
    )


def test_endless_attempts_end_at_a_deadline_given_as_a_time(publisher, subject):
    deadline = datetime.now(UTC) + timedelta(seconds=0.5)
    with pytest.raises(PublishTimeout, match="3 attempts"):
        publisher.publish(subject, b"x", retry_attempts=-1, retry_wait=0.2, deadline=deadline)

    assert timedelta(0) <= datetime.now(UTC) - deadline < timedelta(seconds=1)


def test_nothing_is_sent_after_the_deadline(publisher, subject, stream):
    stream()
    with pytest.raises(PublishTimeout, match=r"after 0 attempts in 0\.00 s"):
        publisher.publish(subject, b"x", deadline=datetime.now(UTC))

    assert stream.messages == 0


def test_the_wait_between_attempts_ends_at_the_deadline(publisher, subject):
    with taking(0.2), pytest.raises(PublishTimeout) as failed:
        publisher.publish(subject, b"x", retry_wait=30, ack_wait=0.2)

    assert failed.value.attempts == 1


def test_a_refusal_after_no_responders_is_final(publisher, subject, stream):
    headers = {"Nats-Expected-Stream": "another"}
    with later(0.15, stream), pytest.raises(PermanentPublishError) as refused:
        publisher.publish(subject, b"x", headers=headers, retry_attempts=-1, retry_wait=0.1)

    assert refused.value.code == 10060
    assert refused.value.attempts >= 3
    assert "refused by the server" in str(refused.value)


def test_silence_after_no_responders_ends_at_the_deadline(publisher, subject, silent):
    with later(0.1, silent), taking(0.8), pytest.raises(PublishTimeout) as failed:
        publisher.publish(subject, b"x", retry_wait=0.4, attempt_timeout="0.1s", ack_wait=0.8)

    assert failed.value.detail == "1 found no stream, 2 got no answer"


def test_no_responders_after_silence_leave_open_whether_the_message_is_stored(
    publisher, subject, silent
):
    silent()
    options = {"retry_wait": 0.05, "attempt_timeout": "0.3s"}
    with later(0.15, silent.stop), pytest.raises(NoStreamResponse) as failed:
        publisher.publish(subject, b"x", **options)

    assert failed.value.detail == "1 got no answer, so it may be stored all the same"


def test_an_unanswered_message_is_sent_again_with_the_same_id(publisher, subject, silent):
    received = silent()
    with pytest.raises(PublishTimeout, match="3 got no answer"):
        publisher.publish(subject, b"x", attempt_timeout="0.1s", ack_wait=0.6)

    assert len(received) == 3
    assert len({message.headers["Nats-Msg-Id"] for message in received}) == 1


def test_a_full_stream_is_reported_at_once_however_many_attempts_are_allowed(
    publisher, subject, stream
):
    stream(max_msgs=1, discard="new")
    publisher.publish(subject, b"x")
    with taking(0), pytest.raises(BufferFull) as full:
        publisher.publish(subject, b"y", retry_attempts=-1)

    assert re.fullmatch(
        rf"{subject}: buffer full after 1 attempt in 0\.\d\d s: maximum messages exceeded",
        str(full.value),
    )


def test_waiting_for_a_full_stream_uses_up_no_attempts(publisher, subject, stream, link):
    stream(max_msgs=1, discard="new")
    publisher.publish(subject, b"x")
    options = {"retry_attempts": 0, "retry_wait": 0.05, "wait_for_room": True}
    with taking(0.2), pytest.raises(PublishTimeout, match="found it full"):
        publisher.publish(subject, b"y", ack_wait=0.2, **options)

    def make_room():
        link.run(api.purge_subject(link.client, stream.name, subject, 1))

    with later(0.2, make_room):
        ack = publisher.publish(subject, b"y", **options)
    assert (ack.seq, ack.attempts > 2) == (2, True)


def test_an_answer_that_is_not_from_a_stream_is_rejected(publisher, subject, silent):
    for answer in (b"hello", b"[1]", b"{}"):
        silent(answer)
        with pytest.raises(PermanentPublishError, match="what answered is not a stream"):
            publisher.publish(subject, b"x")
        silent.stop()


def test_the_options_of_a_call_override_those_of_the_publisher(url, subject):
    with Publisher(url, retry_attempts=0, ack_wait=0.2) as publisher:
        with pytest.raises(NoStreamResponse, match="after 1 attempt "):
            publisher.publish(subject, b"x")
        with pytest.raises(PublishTimeout, match="after 1 attempt "):
            publisher.publish(subject, b"x", retry_attempts=1)
        soon = datetime.now(UTC) + timedelta(seconds=3)
        with pytest.raises(NoStreamResponse, match="after 2 attempts "):
            publisher.publish(subject, b"x", retry_attempts=1, deadline=soon)
