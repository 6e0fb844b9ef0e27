"""Following a stream while nodes are killed, halted or lag: every frame once, in order."""

from __future__ import annotations

import contextlib
import threading
import time

import pytest

from ebbflow.engine import frames
from ebbflow.engine.position import Mark
from ebbflow.nats import api
from ebbflow.nats.publish import BUFFER, publish
from ebbflow.streams import catalogue
from ebbflow.streams.reader import FrameReader
from tests.waiting import until

pytestmark = [pytest.mark.slow, pytest.mark.long]


class Writer:
    """Writes a frame with one row every 10 ms, on its own thread."""

    def __init__(self, link, subject):
        self._link = link
        self._subject = subject
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.written = 0

    def _run(self):
        while not self._stop.wait(0.01):
            self.write()

    def write(self):
        frame = frames.batch_of({"id": [str(self.written)], "value": [b"x"]}, 1)
        msg_id = f"frame-{self.written}"
        sending = publish(
            self._link.client, self._subject, frames.encode(frame), msg_id=msg_id, retry=BUFFER
        )
        self._link.run(sending)
        self.written += 1

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._stop.set()
        self._thread.join()


class Follower:
    """Reads frames with a client that is connected to one node."""

    def __init__(self, link, stream, subject, start=None):
        self.rows = []
        self.gap = 0.0
        self._last = time.monotonic()
        self.reader = FrameReader(link, stream, subject, start or Mark(), threading.Event())

    def take(self):
        for batch in self.reader.take(10_000):
            self.rows += batch.column("id").to_pylist()
            now = time.monotonic()
            self.gap, self._last = max(self.gap, now - self._last), now
        return len(self.rows)

    def wait_for_more(self, rows):
        seen = self.take()
        until(lambda: self.take() >= seen + rows)

    def consumer_node(self, cluster):
        name = until(lambda: self._consumer_on(cluster))
        return next(node for node in cluster.all if node.name == name)

    def _consumer_on(self, cluster):
        # A server may not know the consumer yet, or the reader may have replaced it meanwhile.
        with contextlib.suppress(api.ApiError):
            call = f"CONSUMER.INFO.{self.reader.stream}.{self.reader._follower.consumer.name}"
            info = cluster.link.run(api.call(cluster.link.client, call))
            return info["cluster"]["leader"]


@pytest.fixture
def subject(names):
    return names.buffer_subject("v", 0)


@pytest.fixture
def stream(cluster, names):
    return cluster.make(catalogue.buffer_config(names, "v", 0, 100_000, replicas=3))


@pytest.fixture
def follow(cluster, stream, subject):
    """Follow the stream with a client of one node and a consumer on another."""
    opened = []

    def start(node, consumer_on=None):
        context = cluster.linked(node)
        opened.append((context, None))
        link = context.__enter__()
        while True:
            follower = Follower(link, stream, subject)
            if consumer_on in (None, follower.consumer_node(cluster)):
                break
            follower.reader.close()
        opened[-1] = (context, follower)
        return follower

    yield start
    for context, follower in opened:
        if follower is not None:
            follower.reader.close()
        context.__exit__(None, None, None)


@pytest.mark.guarantee("a-cluster-may-lose-a-node")
@pytest.mark.parametrize(
    "lost", ["the node of the consumer", "the node of the client", "the leader with the consumer"]
)
def test_a_reader_continues_when_a_node_is_killed(cluster, stream, subject, follow, lost):
    leader, (one, other) = cluster.leader_of(stream), cluster.followers_of(stream)
    client, consumer = {
        "the node of the consumer": (one, other),
        "the node of the client": (other, one),
        "the leader with the consumer": (one, leader),
    }[lost]
    victim = leader if "leader" in lost else other
    follower = follow(client, consumer)
    with Writer(cluster.link, subject) as writer:
        follower.wait_for_more(50)
        cluster.kill(victim)
        follower.wait_for_more(100)
        victim.start()
        follower.wait_for_more(100)
    until(lambda: follower.take() == writer.written)

    print(f"lost {lost}: longest gap between frames {follower.gap:.2f} s")
    assert follower.rows == [str(number) for number in range(writer.written)]
    assert follower.gap < 15


def test_a_reader_continues_on_another_node_when_the_node_of_its_consumer_is_halted(
    cluster, stream, subject, follow
):
    one, other = cluster.followers_of(stream)
    follower = follow(one, other)
    with Writer(cluster.link, subject) as writer:
        follower.wait_for_more(50)
        with cluster.halted(other):
            follower.wait_for_more(100)
        follower.wait_for_more(100)
    until(lambda: follower.take() == writer.written)

    print(f"longest gap between frames {follower.gap:.2f} s")
    assert follower.rows == [str(number) for number in range(writer.written)]


@pytest.mark.guarantee("a-cluster-may-lose-a-node")
def test_a_reader_on_a_lagging_node_reads_every_frame_once(cluster, stream, subject, follow):
    """Its client and its consumer are on a node that does not have the frames yet."""
    node = cluster.followers_of(stream)[0]
    with cluster.linked(cluster.leader_of(stream)) as link:
        writer = Writer(link, subject)
        follower = follow(node, node)
        for _ in range(5):
            with cluster.halted(node):
                for _ in range(300):
                    writer.write()
            behind = Mark(writer.written - 1)
            late = Follower(follower.reader._link, stream, subject, behind)
            until(lambda late=late: late.take() == 1)
            late.reader.close()
            assert late.rows == [str(writer.written - 1)]
    until(lambda: follower.take() == writer.written)

    assert follower.rows == [str(number) for number in range(writer.written)]


def test_step_downs_do_not_disturb_the_order(cluster, stream, subject, follow):
    follower = follow(cluster.leader_of(stream))
    with Writer(cluster.link, subject) as writer:
        for _ in range(8):
            follower.wait_for_more(20)
            cluster.step_down(stream)
        follower.wait_for_more(20)
    until(lambda: follower.take() == writer.written)

    print(f"longest gap between frames {follower.gap:.2f} s")
    assert follower.rows == [str(number) for number in range(writer.written)]
