"""Publishing a settlement with the bounds of a spec: room is waited for, nothing else is."""

from __future__ import annotations

import concurrent.futures
from dataclasses import replace

import pytest

from ebbflow.domain.errors import MessageTooLarge, NoStreamResponse, PublishTimeout
from ebbflow.domain.outcome import Counts
from ebbflow.engine.answers import answer_headers
from ebbflow.engine.publications import Publication, Stage
from ebbflow.engine.settlement import Settlement
from ebbflow.nats import api
from ebbflow.nats.publish import BUFFER, Tally
from ebbflow.streams import catalogue
from ebbflow.streams.catalogue import bucket_config
from ebbflow.streams.publish_settlement import publish_settlement

HASTY = replace(BUFFER, wait=0.01, attempts=3, ack_wait=1.0)


def settlement_of(*ids, discards=False):
    outputs = [Publication(Stage.OUTPUT, "out", 0, i, b"frame", discards=discards) for i in ids]
    return Settlement(outputs, Counts(read=len(ids), done=len(ids)), {})


def answers_of(bucket, *payloads):
    answers = [
        Publication(
            Stage.ANSWER, bucket, 0, f"k:{n}", payload, answer_headers("in-1"), key=f"r.{n}"
        )
        for n, payload in enumerate(payloads)
    ]
    return Settlement(answers, Counts(read=len(answers), done=len(answers)), {})


@pytest.fixture
def publish(link, names):
    """Begin to publish a settlement; what it meets with is counted in the tally."""

    def begin(settlement, tally):
        return link.submit(publish_settlement(link.client, names, settlement, HASTY, tally))

    return begin


@pytest.fixture
def buffer_of_one(link, names, ensure):
    ensure(catalogue.buffer_config(names, "out", 0, max_frames=1))


def test_a_bound_ends_the_attempts_when_there_is_no_stream(publish):
    tally = Tally()

    with pytest.raises(NoStreamResponse, match="after 4 attempts"):
        publish(settlement_of("a"), tally).result(5)
    assert (tally.attempts, tally.no_responders, tally.full) == (4, 4, 0)


@pytest.mark.guarantee("back-pressure-loses-nothing")
def test_room_is_waited_for_however_little_time_there_is_to_publish(
    link, names, publish, buffer_of_one
):
    tally = Tally()
    publish(settlement_of("first"), tally).result(5)
    waiting = publish(settlement_of("second"), tally)
    with pytest.raises(concurrent.futures.TimeoutError):
        waiting.result(3 * HASTY.ack_wait)

    subject = names.buffer_subject("out", 0)
    link.run(api.purge(link.client, names.buffer("out", 0), subject, 1))

    assert waiting.result(5) == []
    assert tally.full > 3
    assert tally.attempts == tally.full + 2


def test_what_may_be_discarded_does_not_wait(publish, buffer_of_one):
    tally = Tally()
    publish(settlement_of("first"), tally).result(5)

    (gone,) = publish(settlement_of("second", discards=True), tally).result(5)

    assert gone.msg_id == "second"
    assert (tally.attempts, tally.full) == (2, 1)


# --- a message for each row ----------------------------------------------------------------------


@pytest.fixture
def bucket(link, names, ensure):
    """A bucket with room for so many entries."""

    def make(entries=-1):
        ensure(bucket_config(names.answers, 60_000) | {"max_msgs": entries})
        return names.answers

    return make


def test_the_answers_of_a_chunk_are_stored_once_however_often_it_is_replayed(link, publish, bucket):
    payloads = [b"%d" % n for n in range(3_000)]
    settlement, tally = answers_of(bucket(), *payloads), Tally()
    for _ in range(2):
        assert publish(settlement, tally).result(30) == []
    assert (tally.attempts, tally.confirmed, tally.failures) == (6_000, 6_000, 0)
    state = link.run(api.read_state(link.client, f"KV_{bucket()}"))
    assert state == api.StreamState(3_000, 3_000)


@pytest.mark.guarantee("back-pressure-loses-nothing")
def test_answers_wait_for_room(link, publish, bucket):
    name, tally = bucket(entries=2), Tally()
    waiting = publish(answers_of(name, b"a", b"b", b"c", b"d"), tally)
    with pytest.raises(concurrent.futures.TimeoutError):
        waiting.result(3 * HASTY.ack_wait)
    assert not waiting.done()
    bucket(entries=4)
    assert waiting.result(5) == []
    assert link.run(api.read_state(link.client, f"KV_{name}")).messages == 4
    assert tally.full > 3


def test_answers_that_no_stream_takes_end_with_an_error(publish, names):
    with pytest.raises((NoStreamResponse, PublishTimeout)):
        publish(answers_of(names.answers, b"a", b"b"), Tally()).result(5)


def test_what_no_message_can_hold_is_refused_before_anything_is_sent(link, publish, bucket):
    name = bucket()
    with pytest.raises(MessageTooLarge):
        publish(answers_of(name, b"a", b"b" * link.client.max_payload), Tally()).result(5)
    assert link.run(api.read_state(link.client, f"KV_{name}")).messages == 0
    assert link.client.is_connected
