"""Publishing while leaders step down, are killed and restarted loses and duplicates nothing.

The first case is from ADR-22 (nats.go, 2022); upstream it is skipped today.
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
def test_step_downs_twice_a_second_lose_and_duplicate_nothing(cluster, stream, subject):
    with Steady(cluster.url, subject) as steady:
        for _ in range(10):
            let_time_pass(0.5)
            cluster.step_down(stream)
        steady.wait_for_more(20)

    stored = steady.stored(cluster, stream)
    assert steady.failed == {}
    assert stored == Counter(dict.fromkeys(steady.acked, 1))


def kill_with_a_message_in_flight(cluster, leader):
    """A message in flight to the halted leader gets no answer, and then the leader is killed."""
    with cluster.halted(leader):
        let_time_pass(10 * EVERY)
        cluster.kill(leader)


@pytest.mark.guarantee("a-cluster-may-lose-a-node")
def test_publishing_survives_a_killed_leader(cluster, stream, subject):
    """The client is connected to the leader, and has to reconnect as well."""
    leader = cluster.leader_of(stream)
    with Steady(cluster.url_of(leader), subject, **PATIENT) as steady:
        kill_with_a_message_in_flight(cluster, leader)
        steady.wait_for_more(100)
        leader.start()
        steady.wait_for_more(100)

    stored = steady.stored(cluster, stream)
    assert steady.failed == {}
    assert stored == Counter(dict.fromkeys(steady.acked, 1))
    assert steady.attempts > 1


def test_the_default_retries_may_fail_in_an_election_but_lose_nothing_acked(
    cluster, stream, subject
):
    """As in ADR-22: three attempts within 5 s. A failed one may be stored if the error says so."""
    leader, follower = cluster.leader_of(stream), cluster.followers_of(stream)[0]
    hasty = Steady(cluster.url_of(follower), subject, "hasty")
    patient = Steady(cluster.url_of(follower), subject, "patient", **PATIENT)
    with hasty, patient:
        kill_with_a_message_in_flight(cluster, leader)
        hasty.wait_for_more(50)
        patient.wait_for_more(50)

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
@pytest.mark.parametrize(
    "shutdown_signal", [signal.SIGTERM, signal.SIGUSR2], ids=["to end", "to leave"]
)
def test_publishing_survives_a_graceful_shutdown_of_the_leader(
    cluster, stream, subject, shutdown_signal
):
    """SIGUSR2 is the lame duck mode: it hands over first and ends when its clients have left."""
    leader = cluster.leader_of(stream)
    with Steady(cluster.url_of(leader), subject, **PATIENT) as steady:
        leader.send(shutdown_signal)
        until(lambda: not leader.running)
        steady.wait_for_more(50)

    stored = steady.stored(cluster, stream)
    assert steady.failed == {}
    assert stored == Counter(dict.fromkeys(steady.acked, 1))
    assert steady.gap < 4


@pytest.mark.guarantee("a-cluster-may-lose-a-node")
def test_publish_many_knows_every_outcome_when_the_leader_is_killed(cluster, names):
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


def test_a_copy_of_a_message_in_process_waits_for_the_first_one(cluster, stream, subject):
    """With a majority halted, a message is neither stored nor rejected; a second copy says so."""
    leader, followers = cluster.leader_of(stream), cluster.followers_of(stream)
    with Publisher(cluster.url_of(leader), attempt_timeout="0.2s") as publisher:
        with ThreadPoolExecutor() as pool, cluster.halted(*followers):
            call = pool.submit(publisher.publish, subject, b"x")
            with pytest.raises(PublishTimeout, match=r"\d found a copy in process"):
                publisher.publish(subject, b"y", msg_id="y", ack_wait=1)
            assert not call.done()
            followers_continued = time.monotonic()
        ack = call.result(120)
        again = publisher.publish(subject, b"y", msg_id="y", **PATIENT)

    print(f"stored {time.monotonic() - followers_continued:.2f} s after the followers continued")
    assert ack.attempts > 3
    assert {ack.seq, again.seq} == {1, 2}
    assert cluster.info(stream)["state"]["messages"] == 2
