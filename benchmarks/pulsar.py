"""Pulsar to Pulsar on a real broker: a topic, upper case, another topic.

The broker is the standalone one that tests use, in a separate folder. Every run has its own
topics without partitions, and ends with a check of all that was written.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks import contest, peers
from benchmarks.broker import Ground, spark_processes
from benchmarks.contest import Contestant, Round, watched
from benchmarks.ours import EBBFLOW, lay_out, planned, running
from benchmarks.outside import NotOnce
from benchmarks.work import numbered, upper
from ebbflow import MonoVertex, connectors

if TYPE_CHECKING:
    from tests.connectors.pulsar.broker import PulsarBroker

MONO, LOOP = f"{EBBFLOW} MonoVertex", "bare pulsar-client loop"
_EVERY = 0.1


class NoPulsar(Exception):
    """Why there is no Pulsar on this machine."""


@contextmanager
def pulsar_server() -> Iterator[PulsarBroker]:
    """Yields a broker, for as long as the context lasts; ``NoPulsar`` if none is available."""
    try:
        from tests.connectors.kafka.jars import NoBroker
        from tests.connectors.pulsar.broker import PulsarBroker
    except ImportError as error:
        raise NoPulsar(str(error)) from error
    with tempfile.TemporaryDirectory(prefix="ebbflow-pulsar-") as folder:
        try:
            broker = PulsarBroker(Path(folder)).start()
        except NoBroker as error:
            raise NoPulsar(str(error)) from error
        try:
            yield broker
        finally:
            broker.stop()


class Topics:
    """The topics of one run: one with numbered texts, and one to fill."""

    def __init__(self, broker: PulsarBroker, messages: int, size: int, seed: int) -> None:
        self._broker = broker
        self._messages = messages
        self._texts = partial(numbered, messages, size, seed)
        self.source, self.out = broker.topic(), broker.topic()
        broker.fill(self.source, self._texts())

    def stored(self) -> int:
        """Returns how many messages the second topic has received."""
        stats = self._broker.ask("GET", f"persistent/public/default/{self.out}/stats")
        return int(stats["msgInCounter"])

    def check(self) -> float:
        """Returns the seconds between the first and the last message, by their times.

        ``NotOnce`` if a message has not arrived once, in upper case.
        """
        found = self._broker.messages(self.out, self._messages)
        wanted = {text.upper() for text in self._texts()}
        if {message.data() for message in found} != wanted or len(found) != len(wanted):
            raise NotOnce(f"{len(found):,} messages for {len(wanted):,}")
        times: list[int] = [message.publish_timestamp() for message in found]
        return (max(times) - min(times)) / 1000


@dataclass
class Loop:
    """A bare loop on the same client."""

    broker: PulsarBroker
    pace: int
    name = LOOP
    mode = "unary"
    job = contest.PULSAR

    def run(self, ground: Ground, messages: int, size: int) -> Round:
        """By the times of the first and the last message."""
        topics = Topics(self.broker, messages, size, ground.seed)
        words = ["-m", "benchmarks.workers.pulsar_loop", self.broker.address]
        with peers.process_of([sys.executable, *words, topics.source, topics.out]) as process:
            found = watched(lambda: [process], topics.stored, messages, _EVERY)
        return found.round(messages, topics.check())


@dataclass
class Ours:
    """A MonoVertex."""

    broker: PulsarBroker
    pace: int
    name = MONO
    mode = "unary"
    job = contest.PULSAR

    def run(self, ground: Ground, messages: int, size: int) -> Round:
        """By the times of the first and the last message."""
        topics = Topics(self.broker, messages, size, ground.seed)
        at = partial(connectors.Pulsar, server_addr=self.broker.address)
        mono = MonoVertex("bench").source(at(topic=topics.source))
        plans = planned(ground, mono.map(upper).sink(at(topic=topics.out)))
        lay_out(ground, plans)
        with running(ground, plans):
            found = watched(spark_processes, topics.stored, messages, _EVERY)
        return found.round(messages, topics.check())


def contestants(broker: PulsarBroker) -> Iterator[Contestant]:
    """All contestants."""
    yield Ours(broker, 15_000)
    yield Loop(broker, 15_000)
