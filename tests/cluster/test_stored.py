"""A read is never older than its call, whichever node answers or is elected."""

from __future__ import annotations

import contextlib
import threading
import time
from dataclasses import replace

import nats.errors
import pytest

from ebbflow import Pipeline
from ebbflow.connectors import Blackhole, Generator
from ebbflow.domain.outcome import Counts
from ebbflow.engine.answers import answer_headers, answer_key
from ebbflow.engine.position import Held, Position
from ebbflow.nats import api
from ebbflow.nats.publish import BUFFER, publish
from ebbflow.nats.stored import read_last
from ebbflow.runtime import provision
from ebbflow.runtime.planning import make_plans
from ebbflow.streams import catalogue
from ebbflow.streams.answer_bucket import AnswerBucket
from ebbflow.streams.catalogue import bucket_config
from ebbflow.streams.positions import PositionStore, read_positions
from tests.cluster.lagging import READS, lagging
from tests.cluster.steady import Steady
from tests.waiting import let_time_pass

pytestmark = [pytest.mark.slow, pytest.mark.long]

LARGE = Position("large", held=Held(0, 0, 0, 0, "x" * 1_000_000)).to_json()


@pytest.mark.guarantee("a-cluster-may-lose-a-node")
def test_positions_read_through_a_lagging_follower_are_up_to_date(cluster, names):
    stream = cluster.make(catalogue.positions_config(names, replicas=3))
    with lagging(cluster, stream) as late:
        link = late.acting
        stores = [PositionStore(link.client, names, "v", number) for number in range(5)]
        positions = [link.run(store.claim()) for store in stores]

        def settle():
            for number, store in enumerate(stores):
                counts = positions[number].counts + Counts(read=1, done=1)
                positions[number] = replace(positions[number], counts=counts)
                link.run(store.write(positions[number]))

        for _ in late.rounds():
            backlog = f"$KV.{names.positions}.large.0"
            found = late.after(
                settle, lambda: read_positions(late.reading.client, names), backlog, LARGE
            )
            expected = {("v", number): one for number, one in enumerate(positions)}
            assert [one.items() >= expected.items() for one in found] == [True] * READS


@pytest.mark.guarantee("a-cluster-may-lose-a-node")
def test_draining_is_detected_correctly_through_a_lagging_follower(cluster, names):
    subject = names.buffer_subject("out", 0)
    pipeline = Pipeline(names.pipeline).source("in", Generator(messages=1))
    spec = pipeline.sink("out", Blackhole()).spec
    plans = make_plans(spec, cluster.link.server, 1_000_000, None)
    cluster.link.run(provision.provision(cluster.link, plans, replicas=3))
    bucket = f"KV_{names.positions}"
    cluster.hand_over(names.buffer("out", 0), cluster.leader_of(bucket))
    with lagging(cluster, bucket) as late:
        link = late.acting
        store = PositionStore(link.client, names, "in", 0)
        position = link.run(store.claim(plans[0].run.id))

        def exhaust(exhausted):
            link.run(store.write(replace(position, exhausted=exhausted)))

        def fill():
            link.run(publish(link.client, subject, b"x", retry=BUFFER))

        def empty():
            link.run(api.purge_subject(link.client, names.buffer("out", 0), subject, 1_000))

        def drained_after(act):
            backlog = f"$KV.{names.positions}.large.0"
            return late.after(act, lambda: provision.drained(late.reading, plans), backlog, LARGE)

        for _ in late.rounds():
            assert drained_after(lambda: exhaust(True)) == [True] * READS
            assert drained_after(fill) == [False] * READS
            assert drained_after(empty) == [True] * READS
            assert drained_after(lambda: exhaust(False)) == [False] * READS


@pytest.mark.guarantee("a-cluster-may-lose-a-node")
def test_answers_are_found_as_soon_as_they_are_stored(cluster, names):
    bucket = f"answers-{names.pipeline}"
    stream = cluster.make(bucket_config(bucket, 60_000, replicas=3))
    with lagging(cluster, stream) as late:
        client = late.acting.client

        def answer(request):
            for part in range(20):
                subject = f"$KV.{bucket}.{answer_key(request)}.out.{part}.0"
                headers = answer_headers(f"in/split.{part}")
                late.acting.run(publish(client, subject, b"%d" % part, headers, retry=BUFFER))

        for number in late.rounds():
            request = f"request {number}"
            subject = f"$KV.{bucket}.{answer_key(request)}.>"
            found = late.after(
                lambda request=request: answer(request),
                lambda subject=subject: read_last(late.reading.client, stream, subject),
                backlog=f"$KV.{bucket}.large",
            )
            payloads = [[one.payload for one in answers] for answers in found]
            assert payloads == [[b"%d" % part for part in range(20)]] * READS
        reading, answers = late.reading.run, AnswerBucket(late.reading.client, bucket)
        stored = [answer.payload for answer in reading(answers.get("request 0"))]
        assert stored == [b"%d" % part for part in range(20)]
        assert reading(answers.get("unknown")) == []


def test_the_state_of_a_stream_never_goes_back_while_leaders_change(cluster, names):
    """Without a leader any node answers with what it has; such answers are ignored."""
    stream = cluster.make(catalogue.buffer_config(names, "v", 0, 100_000, replicas=3))
    stop, states = threading.Event(), []
    leaderless = 0

    def look():
        nonlocal leaderless
        with cluster.linked(cluster.followers_of(stream)[0]) as link:
            while not stop.is_set():
                stored = len(steady.acked)
                state = link.run(api.read_state(link.client, stream))
                states.append((stored, state.last_seq))
                with contextlib.suppress(nats.errors.TimeoutError):
                    raw = link.run(link.client.request(f"$JS.API.STREAM.INFO.{stream}", b"", 0.3))
                    leaderless += b'"leader":' not in raw.data

    with Steady(cluster.url, names.buffer_subject("v", 0)) as steady:
        looker = threading.Thread(target=look)
        looker.start()
        for _ in range(8):
            steady.wait_for_more(20)
            cluster.step_down(stream)
        steady.wait_for_more(20)
        stop.set()
        looker.join()

    print(f"{len(states)} looks, {leaderless} plain ones answered without a leader")
    seqs = [seq for _, seq in states]
    assert seqs == sorted(seqs)
    assert all(seq >= stored for stored, seq in states)


@pytest.mark.long
@pytest.mark.guarantee("a-cluster-may-lose-a-node")
def test_reads_wait_for_a_leader_and_ignore_one_that_was_replaced(cluster, names):
    """A halted leader is replaced, and does not know it yet when it continues."""
    stream = cluster.make(catalogue.positions_config(names, replicas=3))
    leader, follower = cluster.leader_of(stream), cluster.followers_of(stream)[0]
    with cluster.linked(leader) as old, cluster.linked(follower) as other:
        old.run(PositionStore(old.client, names, "v", 0).claim())
        with cluster.halted(leader):
            began = time.monotonic()
            reading = other.submit(read_positions(other.client, names))
            position = other.run(PositionStore(other.client, names, "v", 0).claim())
            assert reading.result(120).keys() == {("v", 0)}
            print(f"read and written {time.monotonic() - began:.1f} s after the leader was halted")
            states = [old.submit(api.read_state(old.client, stream)) for _ in range(20)]
            found = old.submit(read_positions(old.client, names))
            let_time_pass(0.02)  # on their way into the node
        assert {state.result(120).last_seq for state in states} == {2}
        assert found.result(120) == {("v", 0): position}


def test_a_position_write_in_process_is_waited_for(cluster, names):
    """The second copy finds the first one in process; that is not a claim by another task."""
    stream = cluster.make(catalogue.positions_config(names, replicas=3))
    leader, followers = cluster.leader_of(stream), cluster.followers_of(stream)
    with cluster.linked(leader) as link:
        store = PositionStore(link.client, names, "v", 0)
        position = link.run(store.claim())
        with cluster.halted(*followers):
            writing = link.submit(store.write(replace(position, exhausted=True)))
            with pytest.raises(TimeoutError):
                writing.result(2.5)
        writing.result(120)
        link.run(store.write(position))

    assert cluster.link.run(read_positions(cluster.link.client, names)) == {("v", 0): position}
