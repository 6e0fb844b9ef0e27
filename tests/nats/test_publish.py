"""Publishing until a message is confirmed, and clear errors when it is not."""

from __future__ import annotations

import time

import pytest

from ebbflow.domain.errors import (
    BufferFull,
    NoStreamResponse,
    PermanentPublishError,
    PublishTimeout,
)
from ebbflow.nats import api
from ebbflow.nats.publish import PublishRetry, WaitForRoom, publish
from ebbflow.streams import catalogue


def send(link, subject, **options):
    return link.run(publish(link.client, subject, b"x", **options))


def test_messages_with_the_same_id_are_stored_once(link, names, ensure):
    ensure(catalogue.buffer_config(names, "v", 0, 10))
    subject = names.buffer_subject("v", 0)

    first, second = (send(link, subject, msg_id="one") for _ in range(2))

    assert (first.seq, first.duplicate) == (1, False)
    assert (second.seq, second.duplicate) == (1, True)


def test_a_missing_stream_is_an_error_once_the_attempts_are_used_up(link, names):
    began = time.monotonic()
    with pytest.raises(NoStreamResponse) as failed:
        send(link, names.buffer_subject("nobody", 0), retry=PublishRetry(wait=0.1, attempts=2))

    assert failed.value.attempts == 3
    assert 0.2 <= time.monotonic() - began < 20


def test_the_deadline_ends_endless_attempts(link, names):
    retry = PublishRetry(wait=0.1, attempts=-1, ack_wait=0.45)
    began = time.monotonic()
    with pytest.raises(PublishTimeout):
        send(link, names.buffer_subject("nobody", 0), retry=retry)

    assert 0.4 <= time.monotonic() - began < 20


def test_a_full_buffer_raises_its_own_error_or_is_waited_for(link, names, ensure):
    ensure(catalogue.buffer_config(names, "v", 0, 1))
    subject = names.buffer_subject("v", 0)
    send(link, subject)
    with pytest.raises(BufferFull):
        send(link, subject)

    waiting = link.submit(
        publish(
            link.client,
            subject,
            b"y",
            retry=PublishRetry(wait=0.02, ack_wait=5),
            room=WaitForRoom.DEADLINE,
        )
    )
    assert not waiting.done()
    link.run(api.purge_subject(link.client, names.buffer("v", 0), subject, 1))
    assert waiting.result(120).seq == 2


def test_a_permanent_rejection_is_not_retried(link, names, ensure):
    ensure(catalogue.buffer_config(names, "v", 0, 10))
    headers = {"Nats-Expected-Stream": "another"}
    with pytest.raises(PermanentPublishError) as refused:
        send(link, names.buffer_subject("v", 0), headers=headers)

    assert (refused.value.attempts, refused.value.code) == (1, 10060)
