"""Publishing while leaders step down, are killed and come back: nothing twice, nothing lost.

The first case is the one that came with ADR-22 (nats.go, 2022); upstream it is skipped today.
"""

from __future__ import annotations

import signal
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import pytest

from ebbflow.domain.errors import NoStreamResponse, PublishError, PublishTimeout
from ebbflow.nats.stored import read_subject
from ebbflow.publishing import Outgoing, Publisher
from ebbflow.streams import catalogue
from tests.cluster.steady import EVERY, Steady
from tests.waiting import let_time_pass, until

pytestmark = [pytest.mark.slow, pytest.mark.long]

PATIENT = {"retry_attempts": -1, "ack_wait": 30}


@pytest.fixture
def subject(names):
    return names.buffer_subject("v", 0)


@pytest.fixture
def stream(cluster, names):
    return cluster.make(catalogue.buffer_config(names, "v", 0, 100_000, replicas=3))


@pytest.mark.guarantee("a-cluster-may-lose-a-node")
def test_step_downs_twice_a_second_lose_nothing_and_double_nothing(cluster, stream, subject):
    with Steady(cluster.url, subject) as steady:
        for _ in range(10):
            let_time_pass(0.5)
            cluster.step_down(stream)
        steady.go_on(20)

    stored = steady.stored(cluster, stream)
    assert steady.failed == {}
    assert stored == Counter(dict.fromkeys(steady.acked, 1))


def kill_with_one_on_its_way(cluster, leader):
    """What is on its way to a halted leader meets with silence, and then it is gone."""
    with cluster.halted(leader):
        let_time_pass(10 * EVERY)
        cluster.kill(leader)


@pytest.mark.guarantee("a-cluster-may-lose-a-node")
def test_a_killed_leader_is_waited_for(cluster, stream, subject):
    """The client is connected to it and has to go elsewhere as well."""
    leader = cluster.leader_of(stream)
    with Steady(cluster.url_of(leader), subject, **PATIENT) as steady:
        kill_with_one_on_its_way(cluster, leader)
        steady.go_on(100)
        leader.start()
        steady.go_on(100)

    stored = steady.stored(cluster, stream)
    assert steady.failed == {}
    assert stored == Counter(dict.fromkeys(steady.acked, 1))
    assert steady.attempts > 1


def test_the_defaults_do_not_outlast_an_election_but_lose_nothing_that_is_acked(
    cluster, stream, subject
):
    """As ADR-22 has it: three attempts within 5 s. What failed may be stored if it says so."""
    leader, follower = cluster.leader_of(stream), cluster.followers_of(stream)[0]
    hasty = Steady(cluster.url_of(follower), subject, "hasty")
    patient = Steady(cluster.url_of(follower), subject, "patient", **PATIENT)
    with hasty, patient:
        kill_with_one_on_its_way(cluster, leader)
        hasty.go_on(50)
        patient.go_on(50)

    stored = hasty.stored(cluster, stream)
    assert {type(error) for error in hasty.failed.values()} <= {NoStreamResponse, PublishTimeout}
    assert hasty.failed
    assert set(stored.values()) == {1}
    assert hasty.acked.keys() <= stored.keys()
    in_doubt = {name for name, error in hasty.failed.items() if "got no answer" in error.detail}
    assert stored.keys() - hasty.acked.keys() <= in_doubt

    stored = patient.stored(cluster, stream)
    assert patient.failed == {}
    assert stored == Counter(dict.fromkeys(patient.acked, 1))


@pytest.mark.guarantee("a-cluster-may-lose-a-node")
@pytest.mark.parametrize("asked", [signal.SIGTERM, signal.SIGUSR2], ids=["to end", "to leave"])
def test_a_leader_that_leaves_in_good_order_is_waited_for(cluster, stream, subject, asked):
    """SIGUSR2 is the lame duck mode: it hands over first and ends when its clients have left."""
    leader = cluster.leader_of(stream)
    with Steady(cluster.url_of(leader), subject, **PATIENT) as steady:
        leader.send(asked)
        until(lambda: not leader.running)
        steady.go_on(50)

    stored = steady.stored(cluster, stream)
    assert steady.failed == {}
    assert stored == Counter(dict.fromkeys(steady.acked, 1))
    assert steady.gap < 4


@pytest.mark.guarantee("a-cluster-may-lose-a-node")
def test_many_at_once_are_all_known_of_when_the_leader_is_killed(cluster, names):
    config = catalogue.buffer_config(names, "v", 0, 100_000, replicas=3)
    subjects = [names.buffer_subject("v", 0), names.buffer_subject("v", 1)]
    stream = cluster.make(config | {"subjects": subjects})
    leader, follower = cluster.leader_of(stream), cluster.followers_of(stream)[0]

    def messages(subject, ready):
        for number in range(3_000):
            if number == 1_000:
                ready.wait()
            yield Outgoing(subject, b"x" * 100, msg_id=f"{subject}-{number}")

    def publish(subject, ready, options):
        with Publisher(cluster.url_of(follower), **options) as publisher:
            try:
                return publisher.publish_many(messages(subject, ready), window=100), None
            except PublishError as error:
                return error.acks, error

    began = time.monotonic()
    both = threading.Barrier(2, lambda: cluster.kill(leader))
    with ThreadPoolExecutor() as pool:
        patient = pool.submit(publish, subjects[0], both, PATIENT)
        hasty = pool.submit(publish, subjects[1], both, {"ack_wait": 2})
        acks, error = patient.result(120)
        known, failure = hasty.result(120)

    print(f"{len(acks)} stored in {time.monotonic() - began:.1f} s, of the other {len(known)} sent")
    assert error is None
    stored = cluster.link.run(read_subject(cluster.link.client, stream, subjects[0]))
    assert sorted(ack.seq for ack in acks) == [message.seq for message in stored]
    assert len({message.headers["Nats-Msg-Id"] for message in stored}) == len(stored) == 3_000

    assert isinstance(failure, NoStreamResponse | PublishTimeout)
    assert 800 <= len(known) <= 1_100
    stored = cluster.link.run(read_subject(cluster.link.client, stream, subjects[1]))
    assert {ack.seq for ack in known if ack} <= {message.seq for message in stored}
    assert len({message.headers["Nats-Msg-Id"] for message in stored}) == len(stored)


def test_a_copy_that_finds_the_first_one_in_process_waits_for_it(cluster, stream, subject):
    """With a majority halted a message is neither stored nor refused; a second copy says so."""
    leader, followers = cluster.leader_of(stream), cluster.followers_of(stream)
    with Publisher(cluster.url_of(leader), attempt_timeout="0.2s") as publisher:
        with ThreadPoolExecutor() as pool, cluster.halted(*followers):
            call = pool.submit(publisher.publish, subject, b"x")
            with pytest.raises(PublishTimeout, match=r"\d found a copy in process"):
                publisher.publish(subject, b"y", msg_id="y", ack_wait=1)
            assert not call.done()
            followers_go_on = time.monotonic()
        ack = call.result(120)
        again = publisher.publish(subject, b"y", msg_id="y", **PATIENT)

    print(f"stored {time.monotonic() - followers_go_on:.2f} s after the followers went on")
    assert ack.attempts > 3
    assert {ack.seq, again.seq} == {1, 2}
    assert cluster.info(stream)["state"]["messages"] == 2
