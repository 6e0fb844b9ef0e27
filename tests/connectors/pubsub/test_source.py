"""The Pub/Sub source: leases, acks, ordering keys and outages, on Google's server for tests."""

from __future__ import annotations

from contextlib import ExitStack
from datetime import timedelta

import pytest

pytest.importorskip("google.pubsub_v1")

from ebbflow.connectors.pubsub.pubsub_client import PubsubAccess
from ebbflow.connectors.pubsub.source import PubsubSource, PubsubSourceSettings
from ebbflow.domain.errors import SetupError, Unavailable
from ebbflow.domain.user_source import redelivers
from tests.connectors.pubsub.server import PROJECT
from tests.waiting import let_time_pass, until

pytestmark = pytest.mark.long


@pytest.fixture
def opened(pubsub):
    with ExitStack() as stack:

        def opened(name, lease=10.0):
            access = PubsubAccess(PROJECT, "subscription", name, pubsub.url)
            source = PubsubSource(PubsubSourceSettings(access, lease))
            stack.callback(source.close)
            source.open()
            return source

        yield opened


def read(source, count, seconds=60.0):
    """At least ``count`` messages, in the order in which they are read."""
    found = []

    def take():
        found.extend(source.read(100, timedelta(seconds=0.05)))
        return len(found) >= count

    until(take, seconds)
    return found


def offsets(messages):
    return [message.offset for message in messages]


def test_messages_are_leased_while_in_flight_and_acknowledged_when_settled(pubsub, opened):
    name = pubsub.make()
    pubsub.send(name, *map(str, range(25)))
    source = opened(name)
    messages = read(source, 25)
    assert sorted(int(message.value) for message in messages) == list(range(25))
    assert all(message.event_time.tzinfo for message in messages)
    assert not source.exhausted
    assert source.pending() is None
    assert not redelivers(source)  # Ebbflow keeps what is nacked

    source.ack(offsets(messages[:5]))
    source.ack(offsets(messages[:5]))  # an ack may be repeated
    source.close()  # releases the others at once
    assert len(pubsub.receive(name)) == 20


@pytest.mark.guarantee("pubsub-loses-no-message")
def test_leases_are_renewed_while_messages_are_in_flight(pubsub, opened):
    name = pubsub.make()
    pubsub.send(name, "1", "2")
    source = opened(name)
    messages = read(source, 2)
    let_time_pass(14)
    assert pubsub.receive(name) == []
    source.ack(offsets(messages))
    source.close()
    assert pubsub.receive(name) == []


@pytest.mark.guarantee("pubsub-loses-no-message")
def test_messages_of_a_dead_process_are_redelivered_when_their_lease_expires(pubsub, opened):
    name = pubsub.make()
    pubsub.send(name, "1", "2")
    killed = opened(name)
    first = read(killed, 2)
    killed._closing.set()  # neither reads nor renews leases any more
    killed._leases.stop()
    again = read(opened(name), 2)
    assert sorted(offsets(again)) == sorted(offsets(first))


def test_the_messages_of_an_ordering_key_arrive_in_order(pubsub, opened):
    name = pubsub.make(ordered=True)
    for number in range(5):
        for key in "ab":
            pubsub.publish(name, {"data": b"%d" % number, "ordering_key": key})
    source = opened(name)
    seen = {"a": [], "b": []}
    while sum(map(len, seen.values())) < 10:
        messages = read(source, 1)
        for message in messages:
            seen[message.keys[0]].append(int(message.value))
        source.ack(offsets(messages))
    assert seen == {"a": list(range(5)), "b": list(range(5))}


@pytest.mark.guarantee("pubsub-loses-no-message")
def test_an_outage_is_reported_and_messages_in_flight_can_be_acked_afterwards(pubsub, opened):
    name = pubsub.make()
    pubsub.send(name, "1", "2", "3")
    source = opened(name, lease=60.0)
    messages = read(source, 3)
    pubsub.relay.cut()
    try:
        with pytest.raises(Unavailable, match=f"Pub/Sub subscription {name} of shop: "):
            read(source, 1)
        with pytest.raises(Unavailable):
            source.ack(offsets(messages[:1]))
        source.close()
    finally:
        pubsub.relay.mend()
    successor = opened(name, lease=60.0)
    successor.ack(offsets(messages))
    successor.close()
    assert pubsub.receive(name) == []


def test_a_missing_subscription_is_reported_when_the_source_opens(opened):
    with pytest.raises(SetupError) as raised:
        opened("nowhere")
    assert raised.value.what == (
        "There is no Pub/Sub subscription nowhere of shop that this login can see."
    )
