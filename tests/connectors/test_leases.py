"""How a source on a queue service keeps its window, and lets acks through."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Iterator, Sequence
from datetime import timedelta

import pytest

from ebbflow.connectors import leases
from ebbflow.connectors.leases import LeasedMessage, LeasedSource, QueueService
from ebbflow.domain.user_source import SourceMessage
from tests.waiting import let_time_pass, until

LONG = timedelta(seconds=30)


class Endless(QueueService):
    """A queue that always has messages, and counts those that are not settled."""

    name, most, lease = "an endless queue", 10, 60.0

    def __init__(self) -> None:
        self.open_calls = self.leased = self.at_most = 0
        self.goes_on = threading.Event()
        self._change = threading.Lock()
        self._numbers = itertools.count()

    def open(self) -> None:
        self.goes_on.set()

    def close(self) -> None: ...

    def receive(self, limit: int) -> list[LeasedMessage]:
        if not self.goes_on.wait(0.01):
            return []
        let_time_pass(0.005)  # a round trip, during which others receive as well
        with self._change:
            numbers = list(itertools.islice(self._numbers, limit))
            self.leased += limit
            self.at_most = max(self.at_most, self.leased)
        return [LeasedMessage(str(n), SourceMessage(b"x", str(n).encode())) for n in numbers]

    def settle(self, handles: Sequence[str]) -> None:
        with self._change:
            self.leased -= len(handles)

    def hide(self, handles: Sequence[str], seconds: int) -> None: ...


@pytest.fixture
def queue(monkeypatch: pytest.MonkeyPatch) -> Endless:
    monkeypatch.setattr(leases, "MOST_LEASED", 45)
    return Endless()


@pytest.fixture
def source(queue: Endless) -> Iterator[LeasedSource]:
    source = LeasedSource(queue, 60)
    source.open()
    yield source
    source.close()


def test_threads_together_lease_no_more_than_the_window(queue, source):
    for _ in range(40):
        read = source.read(25, LONG)
        source.ack([message.offset for message in read])
    until(lambda: queue.leased == 45, 30)
    assert queue.at_most == 45


def test_a_read_that_finds_nothing_returns_at_once_while_acks_may_be_waiting(queue, source):
    in_flight = 0
    while in_flight < 45:
        in_flight += len(source.read(45, LONG))
    began = time.monotonic()
    assert source.read(45, LONG) == []
    assert time.monotonic() - began < LONG.total_seconds() / 2


def test_a_read_waits_for_messages_while_none_is_in_flight(queue, source):
    queue.goes_on.clear()
    while read := source.read(45, timedelta(milliseconds=100)):
        source.ack([message.offset for message in read])
    found: list[SourceMessage] = []
    reader = threading.Thread(target=lambda: found.extend(source.read(1, LONG)))
    reader.start()
    reader.join(0.2)
    assert reader.is_alive()
    queue.goes_on.set()
    reader.join(20)
    assert len(found) == 1
