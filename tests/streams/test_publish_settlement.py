"""Publishing a settlement with the bounds of a spec: room is waited for, nothing else is.

A replay looks first which letters and redeliveries are stored already.
"""

from __future__ import annotations

import concurrent.futures
import time
from dataclasses import replace
from datetime import UTC, datetime

import pytest

from ebbflow.domain.durations import Backoff
from ebbflow.domain.errors import MessageTooLarge, NoStreamResponse, PublishTimeout
from ebbflow.domain.outcome import Counts, DeadLetter, Redeliver
from ebbflow.engine import frames
from ebbflow.engine.answers import answer_headers
from ebbflow.engine.checks import Rules
from ebbflow.engine.frames import Rows
from ebbflow.engine.position import Mark
from ebbflow.engine.publications import Chunk, Place, Publication, Stage
from ebbflow.engine.settlement import Settlement, settle
from ebbflow.engine.verdict import Verdict
from ebbflow.nats import api
from ebbflow.nats.publish import BUFFER, Tally
from ebbflow.nats.stored import read_subject
from ebbflow.streams import catalogue
from ebbflow.streams.catalogue import bucket_config
from ebbflow.streams.publish_settlement import publish_settlement, without_stored
from tests.waiting import until

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
        publish(settlement_of("a"), tally).result(30)
    assert (tally.attempts, tally.no_responders, tally.full) == (4, 4, 0)


@pytest.mark.guarantee("back-pressure-loses-nothing")
def test_room_is_waited_for_however_little_time_there_is_to_publish(
    link, names, publish, buffer_of_one
):
    tally = Tally()
    publish(settlement_of("first"), tally).result(30)
    waiting = publish(settlement_of("second"), tally)
    with pytest.raises(concurrent.futures.TimeoutError):
        waiting.result(3 * HASTY.ack_wait)

    subject = names.buffer_subject("out", 0)
    link.run(api.purge_subject(link.client, names.buffer("out", 0), subject, 1))

    assert waiting.result(30) == []
    assert tally.full > 3
    assert tally.attempts == tally.full + 2


def test_what_may_be_discarded_does_not_wait(publish, buffer_of_one):
    tally = Tally()
    publish(settlement_of("first"), tally).result(30)

    (gone,) = publish(settlement_of("second", discards=True), tally).result(30)

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
    assert waiting.result(30) == []
    assert link.run(api.read_state(link.client, f"KV_{name}")).messages == 4
    assert tally.full > 3


def test_answers_that_no_stream_takes_end_with_an_error(publish, names):
    with pytest.raises((NoStreamResponse, PublishTimeout)):
        publish(answers_of(names.answers, b"a", b"b"), Tally()).result(30)


def test_what_no_message_can_hold_is_refused_before_anything_is_sent(link, publish, bucket):
    name = bucket()
    with pytest.raises(MessageTooLarge):
        publish(answers_of(name, b"a", b"b" * link.client.max_payload), Tally()).result(30)
    assert link.run(api.read_state(link.client, f"KV_{name}")).messages == 0
    assert link.client.is_connected


@pytest.fixture
def streams_of_v(names, ensure):
    """With a window that is over at once, as after a long outage."""
    for config in (catalogue.redelivery_config(names, "v", 0), catalogue.dead_letter_config(names)):
        ensure(config | {"duplicate_window": 100_000_000})


def settlement(delay: int):
    """Two dead letters, a message that comes again at once, and one that comes later."""
    count = 5
    ids = [f"m{number}" for number in range(count)]
    rows = Rows(frames.batch_of({"id": ids, "value": [b"x"] * count}, count))
    verdict = Verdict(rows, Rules("v", Backoff(interval=1_000, steps=2), 10**6))
    verdict.decisions.finish(0, DeadLetter("no"))
    verdict.decisions.finish(1, DeadLetter("no"))
    verdict.decisions.finish(2, Redeliver(0, "now", 0))
    verdict.decisions.finish(3, Redeliver(delay, "later", 0))
    place = Place("v", 0, [], 10**6)
    return settle(Chunk("life:v:0:0-5:0-0", rows), verdict, place, datetime.now(UTC))


def stored(link, names, stream, subject):
    return [one.payload for one in link.run(read_subject(link.client, stream, subject))]


def everything(link, names):
    again = stored(link, names, names.redelivery("v", 0), ">")
    dead = stored(link, names, names.dead_letters, names.dead_letter_subject("v"))
    return len(again), len(dead)


@pytest.mark.guarantee("at-least-once")
@pytest.mark.parametrize("due", [False, True], ids=["waiting", "come due"])
def test_letters_and_redeliveries_are_not_written_again_by_a_replay(link, names, streams_of_v, due):
    delay = 100 if due else 60_000
    link.run(publish_settlement(link.client, names, settlement(delay)))
    subject = names.due_subject("v", 0)
    redelivery = names.redelivery("v", 0)
    until(lambda: not due or len(stored(link, names, redelivery, subject)) == 2)
    assert everything(link, names) == (2, 2)
    time.sleep(0.3)  # the server's window, and its timer

    replay = link.run(without_stored(link.client, names, settlement(delay), Mark(0)))
    assert replay.publications == []
    assert replay.counts == settlement(delay).counts
    link.run(publish_settlement(link.client, names, replay))
    assert everything(link, names) == (2, 2)


def test_the_server_alone_would_store_them_twice(link, names, streams_of_v):
    for _ in range(2):
        link.run(publish_settlement(link.client, names, settlement(60_000)))
        time.sleep(0.3)
    again, dead = everything(link, names)
    assert (again, dead) == (3, 4), "what waits on its own subject is replaced"


def test_what_is_missing_is_written_by_the_replay(link, names, streams_of_v):
    whole = settlement(60_000)
    lost = whole.publications.pop(1), whole.publications.pop()
    assert {one.stage for one in lost} == {Stage.REDELIVER, Stage.DEAD_LETTER}
    link.run(publish_settlement(link.client, names, whole))
    time.sleep(0.3)

    replay = link.run(without_stored(link.client, names, settlement(60_000), Mark(0)))
    assert {one.msg_id for one in replay.publications} == {one.msg_id for one in lost}


def test_what_was_read_before_the_chunk_is_no_copy(link, names, streams_of_v):
    """A message that is redelivered for the second time is in the stream for the first one."""
    link.run(publish_settlement(link.client, names, settlement(60_000)))
    state = link.run(api.read_info(link.client, names.redelivery("v", 0)))
    after = Mark(state["last_seq"])
    replay = link.run(without_stored(link.client, names, settlement(60_000), after))
    assert [one.stage for one in replay.publications] == [Stage.REDELIVER] * 2


def test_nothing_is_looked_up_for_a_chunk_that_is_settled_for_the_first_time(link, names):
    first = settlement(0)
    assert link.run(without_stored(link.client, names, first, None)) is first


def test_many_waiting_messages_are_all_looked_at(link, names, streams_of_v):
    subject = names.due_subject("v", 0)
    for number in range(2_500):
        link.submit(link.client.publish(subject, b"%d" % number))
    link.flush()
    link.run(publish_settlement(link.client, names, settlement(60_000)))
    time.sleep(0.3)
    replay = link.run(without_stored(link.client, names, settlement(60_000), Mark(0)))
    assert replay.publications == []


@pytest.mark.guarantee("failures-stay-with-their-message")
@pytest.mark.parametrize("fact", ["metadata", "headers", "keys"])
def test_the_server_takes_the_letter_of_a_message_with_more_facts_than_headers_can_hold(
    link, names, streams_of_v, fact
):
    large = "x" * 200_000
    facts = {"metadata": [("g", [("k", large.encode())])], "headers": [("h", large)]}
    rows = Rows(
        frames.batch_of({"id": ["m"], "value": [b"x"], fact: [facts.get(fact, [large])]}, 1)
    )
    verdict = Verdict(rows, Rules("v", Backoff(interval=1_000, steps=2), 10**6))
    verdict.decisions.finish(0, DeadLetter("no"))
    place = Place("v", 0, [], 10**6)
    plan = settle(Chunk("life:v:0:0-1:0-0", rows), verdict, place, datetime.now(UTC))
    link.run(publish_settlement(link.client, names, plan))
    assert everything(link, names) == (0, 1)
