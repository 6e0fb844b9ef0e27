"""Publishing a settlement within the limits of a spec: it waits for room and for nothing else.

A replay first looks up which dead letters and redeliveries are stored already.
"""

from __future__ import annotations

import concurrent.futures
import gc
from dataclasses import replace
from datetime import UTC, datetime
from random import Random

import pytest

from ebbflow.accounts.trail import TrailObserver
from ebbflow.domain.durations import Backoff
from ebbflow.domain.errors import NoStreamResponse, PermanentPublishError, PublishTimeout
from ebbflow.domain.outcome import Counts, DeadLetter, Redeliver
from ebbflow.engine import frames
from ebbflow.engine.answers import answer_headers
from ebbflow.engine.checks import Rules
from ebbflow.engine.dead_letter import Letter
from ebbflow.engine.frames import Rows
from ebbflow.engine.position import Mark
from ebbflow.engine.publications import Chunk, Place, Publication, Stage
from ebbflow.engine.routing import Edge
from ebbflow.engine.settlement import Settlement, settle
from ebbflow.engine.verdict import Verdict
from ebbflow.nats import api
from ebbflow.nats.publish import BUFFER, Tally
from ebbflow.nats.stored import read_subject
from ebbflow.streams import catalogue
from ebbflow.streams.catalogue import bucket_config
from ebbflow.streams.publish_settlement import publish_settlement, without_stored
from ebbflow.streams.trail_rows import read_trail
from tests.waiting import let_time_pass, until

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
    """Begins to publish a settlement; the tally counts what happens."""

    def begin(settlement, tally):
        return link.submit(publish_settlement(link.client, names, settlement, HASTY, tally))

    return begin


@pytest.fixture
def buffer_of_one(link, names, ensure):
    ensure(catalogue.buffer_config(names, "out", 0, max_frames=1))


def test_the_limit_of_attempts_applies_when_there_is_no_stream(publish):
    tally = Tally()

    with pytest.raises(NoStreamResponse, match="after 4 attempts"):
        publish(settlement_of("a"), tally).result(120)
    assert (tally.attempts, tally.no_responders, tally.full) == (4, 4, 0)


@pytest.mark.guarantee("back-pressure-loses-nothing")
def test_publishing_waits_for_room_however_short_its_time_limit_is(
    link, names, publish, buffer_of_one
):
    tally = Tally()
    publish(settlement_of("first"), tally).result(120)
    waiting = publish(settlement_of("second"), tally)
    with pytest.raises(concurrent.futures.TimeoutError):
        waiting.result(3 * HASTY.ack_wait)

    subject = names.buffer_subject("out", 0)
    link.run(api.purge_subject(link.client, names.buffer("out", 0), subject, 1))

    assert waiting.result(120) == []
    assert tally.full > 3
    assert tally.attempts == tally.full + 2


def test_an_output_that_may_be_discarded_does_not_wait_for_room(publish, buffer_of_one):
    tally = Tally()
    publish(settlement_of("first"), tally).result(120)

    (gone,) = publish(settlement_of("second", discards=True), tally).result(120)

    assert gone.msg_id == "second"
    assert (tally.attempts, tally.full) == (2, 1)


# --- a message for each row ----------------------------------------------------------------------


@pytest.fixture
def bucket(link, names, ensure):
    """A bucket with room for that many entries."""

    def make(entries=-1):
        ensure(bucket_config(names.answers, 60_000) | {"max_msgs": entries})
        return names.answers

    return make


def test_the_answers_of_a_chunk_are_stored_once_however_often_it_is_replayed(link, publish, bucket):
    payloads = [b"%d" % n for n in range(3_000)]
    settlement, tally = answers_of(bucket(), *payloads), Tally()
    for _ in range(2):
        assert publish(settlement, tally).result(120) == []
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
    assert waiting.result(120) == []
    assert link.run(api.read_state(link.client, f"KV_{name}")).messages == 4
    assert tally.full > 3


def test_answers_without_a_stream_end_with_an_error(publish, names):
    with pytest.raises((NoStreamResponse, PublishTimeout)):
        publish(answers_of(names.answers, b"a", b"b"), Tally()).result(120)


def test_an_answer_too_large_for_a_message_is_not_sent_and_the_others_are_stored(
    link, publish, bucket
):
    name = bucket()
    refused = publish(answers_of(name, b"a", b"b" * link.client.max_payload, b"c"), Tally())
    assert [one.key for one in refused.result(120)] == ["r.1"]
    assert link.run(api.read_state(link.client, f"KV_{name}")).messages == 2
    assert link.client.is_connected


# --- what the server refuses because of a message ------------------------------------------------


def limit(link, stream, **changes):
    config = link.run(api.call(link.client, f"STREAM.INFO.{stream}"))["config"]
    link.run(api.call(link.client, f"STREAM.UPDATE.{stream}", config | changes))


def settled_rows(count, large, edge, observers=()):
    values = [Random(n).randbytes(5_000 if n in large else 10) for n in range(count)]
    columns = {"id": [f"m{n}" for n in range(count)], "value": values, "keys": [["k"]] * count}
    rows = Rows(frames.batch_of(columns, count))
    verdict = Verdict(rows, Rules("v", Backoff("1s", steps=2), 10**6))
    verdict.forward_inputs()
    chunk = Chunk(f"life:v:0:0-{count}:0-0", rows)
    place = Place("v", 0, [edge], 10**6)
    return settle(chunk, verdict, place, datetime.now(UTC), observers=observers)


def ids_in(link, names):
    payloads = stored(link, names, names.buffer("out", 0), names.buffer_subject("out", 0))
    return [i for payload in payloads for i in frames.decode(payload).column("id").to_pylist()]


@pytest.mark.guarantee("failures-stay-with-their-message")
@pytest.mark.parametrize("keyed", [False, True])
def test_the_acceptable_rows_of_a_refused_frame_are_stored_once_and_in_order(
    link, names, publish, ensure, keyed
):
    ensure(catalogue.buffer_config(names, "out", 0, max_frames=1_000) | {"max_msg_size": 4_000})
    plan = settled_rows(100, {7, 70, 99}, Edge("out", keyed=keyed))
    for _ in range(2):
        unstored = publish(plan, Tally()).result(120)
        assert sorted(parent for one in unstored for parent in one.parents) == [7, 70, 99]
    kept = [f"m{n}" for n in range(100) if n not in (7, 70, 99)]
    assert ids_in(link, names) == kept
    counts = plan.counts_without(unstored)
    assert counts == Counts(read=100, written=97, done=97, dead_lettered=3)


def test_a_row_is_not_refused_because_of_neighbours_in_its_arrow_buffers(
    link, names, publish, ensure
):
    ensure(catalogue.buffer_config(names, "out", 0, max_frames=1_000) | {"max_msg_size": 3_000})
    rows = frames.batch_of({"id": [f"m{n}" for n in range(80)], "value": [b"x"] * 80}, 80)
    payload = frames.encode(rows.slice(50, 1))
    assert len(payload) > 3_000
    frame = Publication(Stage.OUTPUT, "out", 0, "k:out:hash", payload, parents=[50])
    (divided,) = publish(Settlement([frame], Counts(), {}), Tally()).result(120)
    assert list(divided.parents) == []
    assert ids_in(link, names) == ["m50"]


def test_no_trail_is_published_before_it_is_known_what_the_server_refuses(
    link, names, publish, ensure
):
    ensure(catalogue.buffer_config(names, "out", 0, max_frames=1_000) | {"max_msg_size": 4_000})
    ensure(catalogue.trail_config(names, 60_000))
    ensure(catalogue.dead_letter_config(names))
    plan = settled_rows(3, {1}, Edge("out"), observers=[TrailObserver()])
    unstored = publish(plan, Tally()).result(120)
    assert stored(link, names, names.trail, ">") == []
    publish(plan.amended(unstored, [TrailObserver()]), Tally()).result(120)
    (trail,) = stored(link, names, names.trail, ">")
    recorded = {row.id: (row.outcome, len(row.sent)) for row in read_trail(trail)}
    assert recorded == {"m0": ("done", 1), "m1": ("dead_lettered", 0), "m2": ("done", 1)}


def test_an_answer_too_large_for_the_bucket_is_refused_alone(link, publish, bucket):
    name = bucket()
    limit(link, f"KV_{name}", max_msg_size=1_000)
    unstored = publish(answers_of(name, b"a", b"b" * 2_000, b"c"), Tally()).result(120)
    assert [one.key for one in unstored] == ["r.1"]
    assert f"the stream KV_{name} refused it" in unstored[0].refusal
    assert link.run(api.read_state(link.client, f"KV_{name}")).messages == 2


@pytest.mark.parametrize("number", [1, 5], ids=["alone", "with others"])
def test_a_dead_letter_is_cut_until_its_stream_accepts_it(link, names, publish, ensure, number):
    ensure(catalogue.dead_letter_config(names) | {"max_msg_size": 3_000})
    ids = [f"m{n}" for n in range(number)]
    rows = Rows(frames.batch_of({"id": ids, "value": [b"x" * 9_000] * number}, number))
    verdict = Verdict(rows, Rules("v", Backoff("1s", steps=2), 10**6))
    for index in range(number):
        verdict.decisions.finish(index, DeadLetter("no", traceback="t" * 5_000))
    place = Place("v", 0, [], 10**6)
    plan = settle(Chunk("life:v:0:0-1:0-0", rows), verdict, place, datetime.now(UTC))
    for _ in range(2):
        assert publish(plan, Tally()).result(120) == []
    letters = [
        Letter.from_message(one.payload, one.headers)
        for one in link.run(read_subject(link.client, names.dead_letters, ">"))
    ]
    assert sorted(letter.id for letter in letters) == ids
    assert {(letter.reason, letter.size) for letter in letters} == {("no", 9_000)}


def test_a_stream_that_accepts_no_dead_letter_at_all_is_an_error(names, publish, ensure):
    ensure(catalogue.dead_letter_config(names) | {"max_msg_size": 50})
    letter = replace(settlement(0), publications=settlement(0).of_stage(Stage.DEAD_LETTER))
    with pytest.raises(PermanentPublishError, match="exceeds maximum"):
        publish(letter, Tally()).result(120)


def test_a_sealed_stream_is_not_the_fault_of_a_message(link, names, publish, ensure):
    ensure(catalogue.buffer_config(names, "out", 0, max_frames=1_000))
    limit(link, names.buffer("out", 0), sealed=True)
    with pytest.raises(PermanentPublishError, match="sealed"):
        publish(settled_rows(3, {}, Edge("out")), Tally()).result(120)


@pytest.fixture
def streams_of_v(names, ensure):
    """Streams whose duplicate window is over at once, as after a long outage."""
    for config in (catalogue.redelivery_config(names, "v", 0), catalogue.dead_letter_config(names)):
        ensure(config | {"duplicate_window": 100_000_000})


def settlement(delay: int):
    """Two dead letters, a message that is redelivered at once, and one that is later."""
    count = 5
    ids = [f"m{number}" for number in range(count)]
    rows = Rows(frames.batch_of({"id": ids, "value": [b"x"] * count}, count))
    verdict = Verdict(rows, Rules("v", Backoff("1s", steps=2), 10**6))
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
def test_a_replay_does_not_write_dead_letters_and_redeliveries_again(
    link, names, streams_of_v, due
):
    delay = 100 if due else 60_000
    link.run(publish_settlement(link.client, names, settlement(delay)))
    subject = names.due_subject("v", 0)
    redelivery = names.redelivery("v", 0)
    until(lambda: not due or len(stored(link, names, redelivery, subject)) == 2)
    assert everything(link, names) == (2, 2)
    let_time_pass(0.3)  # the server's window, and its timer

    replay = link.run(without_stored(link.client, names, settlement(delay), Mark(0)))
    assert replay.publications == []
    assert replay.counts == settlement(delay).counts
    link.run(publish_settlement(link.client, names, replay))
    assert everything(link, names) == (2, 2)


def test_without_the_lookup_dead_letters_and_redeliveries_are_stored_twice(
    link, names, streams_of_v
):
    for _ in range(2):
        link.run(publish_settlement(link.client, names, settlement(60_000)))
        let_time_pass(0.3)
    again, dead = everything(link, names)
    assert (again, dead) == (3, 4), "a message that waits on its own subject is replaced"


def test_a_replay_writes_missing_dead_letters_and_redeliveries(link, names, streams_of_v):
    whole = settlement(60_000)
    lost = whole.publications.pop(1), whole.publications.pop()
    assert {one.stage for one in lost} == {Stage.REDELIVER, Stage.DEAD_LETTER}
    link.run(publish_settlement(link.client, names, whole))
    let_time_pass(0.3)

    replay = link.run(without_stored(link.client, names, settlement(60_000), Mark(0)))
    assert {one.msg_id for one in replay.publications} == {one.msg_id for one in lost}


def test_a_redelivery_that_was_read_before_the_chunk_is_not_a_copy(link, names, streams_of_v):
    """A message that is redelivered for the second time is in the stream for the first one."""
    link.run(publish_settlement(link.client, names, settlement(60_000)))
    state = link.run(api.read_info(link.client, names.redelivery("v", 0)))
    after = Mark(state["last_seq"])
    replay = link.run(without_stored(link.client, names, settlement(60_000), after))
    assert [one.stage for one in replay.publications] == [Stage.REDELIVER] * 2


def test_nothing_is_looked_up_for_a_chunk_that_is_settled_for_the_first_time(link, names):
    first = settlement(0)
    assert link.run(without_stored(link.client, names, first, None)) is first


def test_the_lookup_finds_copies_behind_many_waiting_messages(link, names, streams_of_v):
    subject = names.due_subject("v", 0)
    for number in range(2_500):
        link.submit(link.client.publish(subject, b"%d" % number))
    link.flush()
    link.run(publish_settlement(link.client, names, settlement(60_000)))
    let_time_pass(0.3)
    replay = link.run(without_stored(link.client, names, settlement(60_000), Mark(0)))
    assert replay.publications == []


@pytest.mark.guarantee("failures-stay-with-their-message")
@pytest.mark.parametrize("fact", ["metadata", "headers", "keys"])
def test_the_server_accepts_the_dead_letter_of_a_message_too_large_for_headers(
    link, names, streams_of_v, fact
):
    large = "x" * 200_000
    facts = {"metadata": [("g", [("k", large.encode())])], "headers": [("h", large)]}
    rows = Rows(
        frames.batch_of({"id": ["m"], "value": [b"x"], fact: [facts.get(fact, [large])]}, 1)
    )
    verdict = Verdict(rows, Rules("v", Backoff("1s", steps=2), 10**6))
    verdict.decisions.finish(0, DeadLetter("no"))
    place = Place("v", 0, [], 10**6)
    plan = settle(Chunk("life:v:0:0-1:0-0", rows), verdict, place, datetime.now(UTC))
    link.run(publish_settlement(link.client, names, plan))
    assert everything(link, names) == (0, 1)


def test_a_published_chunk_is_freed_without_the_garbage_collector(publish, buffer_of_one):
    """Garbage collections took 150 ms when every chunk was left to one."""
    gc.collect()
    gc.disable()
    gc.set_debug(gc.DEBUG_SAVEALL)
    try:
        publish(settlement_of("a"), Tally()).result(120)
        gc.collect()
        left = [kept for kept in gc.garbage if isinstance(kept, Publication)]
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()
    assert left == []
