"""The source on a plain subject: what it receives is stored, and what is lost is reported."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

import pytest

from ebbflow.connectors.nats.source import NatsFeed, NatsSettings
from ebbflow.domain.errors import SetupError
from ebbflow.engine import frames
from ebbflow.engine.frames import Rows
from ebbflow.nats import api
from ebbflow.nats.login import Addresses
from ebbflow.nats.stored import read_subject
from ebbflow.streams import catalogue
from ebbflow.streams.feed import FeedContext
from tests.nats.outside import Outside
from tests.nats.securing import nats_server
from tests.waiting import until


class Place:
    """Where feeds work: a vertex with one partition, and what was reported."""

    def __init__(self, link, names) -> None:
        self.link, self.names = link, names
        self.reported: list[str] = []

    def context(self, largest=1_000_000) -> FeedContext:
        return FeedContext(
            pipeline=self.names.pipeline,
            vertex="in",
            partitions=1,
            largest=largest,
            link=self.link,
            spark=None,
            log=self.reported.append,
            memory=Path("unused"),
            drain=False,
        )

    def stored(self):
        """The rows in the buffer, in their order."""
        stream, subject = self.names.buffer("in", 0), self.names.buffer_subject("in", 0)
        found = self.link.run(read_subject(self.link.client, stream, subject))
        batches = [frames.decode(one.payload) for one in found]
        return [datum for batch in batches for datum in Rows(batch).data()]

    def values(self):
        return [int(datum.value) for datum in self.stored()]

    def make_room(self):
        stream, subject = self.names.buffer("in", 0), self.names.buffer_subject("in", 0)
        self.link.run(api.purge_subject(self.link.client, stream, subject, 1_000_000))


@pytest.fixture
def place(link, names, ensure) -> Place:
    ensure(catalogue.buffer_config(names, "in", 0, 100))
    return Place(link, names)


@pytest.fixture
def start(place):
    with ExitStack() as stack:

        def begin(server, subject, queue=None, **options):
            feed = NatsFeed(NatsSettings(server, subject, queue), place.context(**options))
            feed.start()
            stack.callback(feed.stop)
            return feed

        yield begin


def send(outside, subject, *values, **options):
    async def publish():
        for value in values:
            await outside.link.client.publish(subject, value, **options)
        await outside.link.client.flush()

    outside.link.run(publish())


def numbers(count, first=0):
    return [b"%d" % n for n in range(first, first + count)]


@pytest.mark.guarantee("nats-source-is-bounded")
def test_published_messages_are_stored_in_order_with_subject_headers_and_keys(
    outside, place, start
):
    feed = start(outside.server, "one.>")
    headers = {"A": "b", "Ebbflow-Keys": '["k"]'}

    send(outside, "one.a", *numbers(2_500), headers=headers)

    until(lambda: len(place.values()) == 2_500)
    assert place.values() == list(range(2_500))
    first = place.stored()[0]
    assert (list(first.keys), first.headers) == (["k"], {"A": "b", "Nats-Subject": "one.a"})
    assert first.event_time is not None
    assert len({datum.id for datum in place.stored()}) == 2_500
    assert feed.failure is None


def test_the_source_sends_no_reply_to_a_request(outside, place, start):
    start(outside.server, "two.a")
    received = []

    async def record(message):
        received.append(message)

    link = outside.link
    subscription = link.run(link.client.subscribe("answers", cb=record))
    send(outside, "two.a", b"1", reply="answers")

    until(lambda: place.values() == [1])
    link.flush()
    link.run(subscription.unsubscribe())
    assert received == []


def test_each_message_of_a_queue_group_goes_to_one_source(outside, place, start):
    start(outside.server, "three.a", "workers")
    start(outside.server, "three.a", "workers")

    send(outside, "three.a", *numbers(1_000))

    until(lambda: len(place.values()) >= 1_000)
    assert sorted(place.values()) == list(range(1_000))


@pytest.mark.guarantee("nats-source-is-bounded")
def test_messages_received_before_a_stop_are_stored(outside, place, start):
    feed = start(outside.server, "four.a")
    send(outside, "four.a", *numbers(5_000))

    feed.stop()

    assert place.values() == list(range(5_000))
    send(outside, "four.a", b"1")
    assert len(place.stored()) == 5_000


@pytest.mark.guarantee("nats-source-is-bounded")
def test_memory_is_bounded_and_dropped_messages_are_counted_and_reported(
    outside, link, names, ensure, place, start, monkeypatch
):
    monkeypatch.setattr("ebbflow.connectors.nats.source.MOST_WAITING", 100_000)
    ensure(catalogue.buffer_config(names, "in", 0, 1))
    feed = start(outside.server, "five.a")
    send(outside, "five.a", b"0")
    until(lambda: place.values() == [0])

    send(outside, "five.a", *numbers(1_000, 1))

    until(lambda: feed.failure is not None)
    until(lambda: feed._dropped + sum(len(came.parcel) for came in feed._waiting) == 1_000)
    assert feed._bytes <= 100_000
    dropped = feed._dropped
    assert feed.failure == f"the buffer is full; {dropped:,} messages were dropped"
    assert place.reported == ["in: messages cannot be stored at the moment; 1 were dropped"]

    seen = []
    while len(seen) < 1_000 - dropped:  # what waits is stored as soon as there is room
        if found := place.values():
            seen += [value for value in found if value]
            place.make_room()
    assert seen == list(range(1, 1_001 - dropped))
    until(lambda: feed.failure is None)


def test_a_message_too_large_to_store_is_dropped_and_reported(outside, place, start):
    start(outside.server, "six.a", largest=1_000)

    send(outside, "six.a", b"x" * 2_000)
    send(outside, "six.a", b"x", headers={"A": "x" * 2_000})
    send(outside, "six.a", b"7")

    until(lambda: place.values() == [7])
    assert place.reported == ["in: 1 messages were too large to store and are dropped"]


@pytest.mark.guarantee("nats-source-is-bounded")
def test_a_lost_connection_is_reported_and_restored(tmp_path, place, start):
    with Outside.running(tmp_path) as outside:
        port = int(outside.url.rpartition(":")[2])
        feed = start(outside.server, "seven.a")
        assert feed.failure is None
    until(lambda: feed.failure)
    assert feed.failure == f"there is no connection to NATS at nats://127.0.0.1:{port}"
    with Outside.running(tmp_path, port) as outside:
        until(lambda: feed.failure is None)
        until(lambda: send(outside, "seven.a", b"1") or place.values())
    lost = "in: the connection was lost for a while; messages published meanwhile are lost"
    assert place.reported == [lost]


def test_a_forbidden_subject_is_reported(tmp_path, start):
    users = """authorization { users: [
      { user: me, password: m, permissions: { subscribe: ["_INBOX.>", "open.>"] } } ] }"""
    with nats_server(tmp_path, users) as port:
        server = Addresses.of(f"nats://me:m@127.0.0.1:{port}")
        with pytest.raises(SetupError, match=r"does not let this login subscribe to shut\.a\."):
            start(server, "shut.a")


def test_an_unreachable_server_is_reported(start):
    with pytest.raises(SetupError, match=r"No NATS server answers at nats://127\.0\.0\.1:1"):
        start(Addresses.of("nats://127.0.0.1:1"), "a")
