"""What a replay finds stored, on a server that has forgotten all ids."""

from __future__ import annotations

import time
from datetime import UTC, datetime

import pytest

from ebbflow.domain.durations import Backoff
from ebbflow.domain.outcome import DeadLetter, Redeliver
from ebbflow.engine import frames
from ebbflow.engine.frames import Rows
from ebbflow.engine.position import Mark
from ebbflow.engine.publications import Chunk, Place, Stage
from ebbflow.engine.settlement import settle
from ebbflow.engine.verdict import Rules, Verdict
from ebbflow.nats import api
from ebbflow.nats.stored import read_subject
from ebbflow.streams import streams
from ebbflow.streams.carry_out import publish_all
from ebbflow.streams.replayed import without_stored
from tests.waiting import until


@pytest.fixture
def streams_of_v(names, ensure):
    """With a window that is over at once, as after a long outage."""
    for config in (streams.redelivery_config(names, "v", 0), streams.dead_letter_config(names)):
        ensure(config | {"duplicate_window": 100_000_000})


def settlement(delay: int):
    """Two dead letters, a message that comes again at once, and one that comes later."""
    count = 5
    ids = [f"m{number}" for number in range(count)]
    rows = Rows(frames.batch_of({"id": ids, "value": [b"x"] * count}, count))
    verdict = Verdict(rows, Rules("v", Backoff(interval=1_000, steps=2), 10**6))
    verdict.decisions.dead_letter(0, DeadLetter("no"))
    verdict.decisions.dead_letter(1, DeadLetter("no"))
    verdict.decisions.redeliver(2, Redeliver(0, "now", 0))
    verdict.decisions.redeliver(3, Redeliver(delay, "later", 0))
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
    link.run(publish_all(link.client, names, settlement(delay)))
    subject = names.due_subject("v", 0)
    if due:
        until(lambda: len(stored(link, names, names.redelivery("v", 0), subject)) >= 2)
    assert everything(link, names) == (2, 2)
    time.sleep(0.3)  # the server's window, and its timer

    replay = link.run(without_stored(link.client, names, settlement(delay), Mark(0)))
    assert replay.publications == []
    assert replay.counts == settlement(delay).counts
    link.run(publish_all(link.client, names, replay))
    assert everything(link, names) == (2, 2)


def test_the_server_alone_would_store_them_twice(link, names, streams_of_v):
    for _ in range(2):
        link.run(publish_all(link.client, names, settlement(60_000)))
        time.sleep(0.3)
    again, dead = everything(link, names)
    assert (again, dead) == (3, 4), "what waits on its own subject is replaced"


def test_what_is_missing_is_written_by_the_replay(link, names, streams_of_v):
    whole = settlement(60_000)
    lost = whole.publications.pop(1), whole.publications.pop()
    assert {one.stage for one in lost} == {Stage.REDELIVER, Stage.DEAD_LETTER}
    link.run(publish_all(link.client, names, whole))
    time.sleep(0.3)

    replay = link.run(without_stored(link.client, names, settlement(60_000), Mark(0)))
    assert {one.msg_id for one in replay.publications} == {one.msg_id for one in lost}


def test_what_was_read_before_the_chunk_is_no_copy(link, names, streams_of_v):
    """A message that is redelivered for the second time is in the stream for the first one."""
    link.run(publish_all(link.client, names, settlement(60_000)))
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
    link.run(publish_all(link.client, names, settlement(60_000)))
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
    verdict.decisions.dead_letter(0, DeadLetter("no"))
    place = Place("v", 0, [], 10**6)
    plan = settle(Chunk("life:v:0:0-1:0-0", rows), verdict, place, datetime.now(UTC))
    link.run(publish_all(link.client, names, plan))
    assert everything(link, names) == (0, 1)
