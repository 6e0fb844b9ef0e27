"""Kafka to Kafka on a real broker: a topic, upper case, another topic; and both ends alone.

The broker is the one that tests use, in a separate folder. Every run has its own topics with
one partition, and ends with a check of all that was written.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil

from benchmarks import bento, contest, peers
from benchmarks.broker import Ground, spark_processes
from benchmarks.contest import Contestant, Round, watched
from benchmarks.ours import EBBFLOW, lay_out, planned, running
from benchmarks.outside import NotOnce, check_arrived
from benchmarks.sinks import Settings, SinkAlone
from benchmarks.sources import Pulled
from benchmarks.work import numbered, upper
from benchmarks.workers import kafka_loop
from ebbflow import MonoVertex
from ebbflow.connectors import Kafka

if TYPE_CHECKING:
    from tests.connectors.kafka.broker import Broker

MONO, LOOP, READS = f"{EBBFLOW} MonoVertex", "bare confluent-kafka loop", "reads and commits only"
BENTO = f"{bento.NAME} {bento.VERSION}"
_EVERY = 0.05


class NoKafka(Exception):
    """Why there is no Kafka on this machine."""


@contextmanager
def kafka_broker() -> Iterator[Broker]:
    """Yields a broker, for as long as the context lasts; ``NoKafka`` if none is available."""
    try:
        from tests.connectors.kafka.broker import Broker
        from tests.connectors.kafka.jars import NoBroker
    except ImportError as error:
        raise NoKafka(str(error)) from error
    with tempfile.TemporaryDirectory(prefix="ebbflow-kafka-") as folder:
        try:
            broker = Broker(Path(folder)).start()
        except NoBroker as error:
            raise NoKafka(str(error)) from error
        try:
            yield broker
        finally:
            broker.stop()


class Topics:
    """The topics of one run: one with numbered texts, and one to fill."""

    def __init__(self, broker: Broker, messages: int, size: int, seed: int) -> None:
        self._broker = broker
        self._texts = partial(numbered, messages, size, seed)
        self.address = broker.address
        self.source, self.out = broker.topic(), broker.topic(message_timestamp_type="LogAppendTime")
        broker.fill(self.source, self._texts())
        self._reader = broker.member("looking")

    def stored(self) -> int:
        """Returns how many records the second topic has."""
        return self._end(self.out)

    def committed(self, group: str) -> int:
        """Returns the position of a group in the first topic."""
        lag = self._broker.lag(group, self.source)
        return self._end(self.source) - lag[0]

    def _end(self, topic: str) -> int:
        from confluent_kafka import KafkaError, KafkaException, TopicPartition

        try:
            end: int = self._reader.get_watermark_offsets(TopicPartition(topic, 0), timeout=10)[1]
        except KafkaException as error:
            # A new topic is not known everywhere at once.
            if error.args[0].code() != KafkaError._UNKNOWN_PARTITION:
                raise
            return 0
        return end

    def check(self) -> float:
        """Returns the seconds between the first and the last record, by the broker's times.

        ``NotOnce`` if a message has not arrived once, in upper case.
        """
        records = self._broker.records(self.out)
        self._reader.close()
        check_arrived([record.value() for record in records], self._texts(), once=True)
        times: list[int] = [record.timestamp()[1] for record in records]
        return (max(times) - min(times)) / 1000


@dataclass
class Peer:
    """A separate program."""

    name: str
    broker: Broker
    start: Callable[[Topics], AbstractContextManager[psutil.Process]]
    pace: int
    mode = "unary"
    job = contest.KAFKA

    def run(self, ground: Ground, messages: int, size: int) -> Round:
        """By the broker's own times of the first and the last record."""
        topics = Topics(self.broker, messages, size, ground.seed)
        with self.start(topics) as process:
            found = watched(lambda: [process], topics.stored, messages, _EVERY)
        return found.round(messages, topics.check())


@dataclass
class Loop:
    """The bare loop that reads and commits, nothing else."""

    broker: Broker
    pace: int
    name = LOOP
    mode = READS
    job = contest.KAFKA

    def run(self, ground: Ground, messages: int, size: int) -> Round:
        """By what the broker knows of its group."""
        topics = Topics(self.broker, messages, size, ground.seed)
        with _loop(topics, "read") as process:
            committed = partial(topics.committed, kafka_loop.GROUP)
            return watched(lambda: [process], committed, messages, _EVERY).round(messages)


@dataclass
class Ours:
    """A MonoVertex."""

    broker: Broker
    pace: int
    name = MONO
    mode = "unary"
    job = contest.KAFKA

    def run(self, ground: Ground, messages: int, size: int) -> Round:
        """By the broker's own times of the first and the last record."""
        topics = Topics(self.broker, messages, size, ground.seed)
        source = Kafka(brokers=[topics.address], topic=topics.source)
        sink = Kafka(brokers=[topics.address], topic=topics.out)
        mono = MonoVertex("bench").source(source).map(upper).sink(sink)
        plans = planned(ground, mono)
        lay_out(ground, plans)
        with running(ground, plans):
            found = watched(spark_processes, topics.stored, messages, _EVERY)
        return found.round(messages, topics.check())


def contestants(broker: Broker, left_out: list[str]) -> Iterator[Contestant]:
    """All contestants that are available; why others are not goes to ``left_out``."""
    yield Ours(broker, 60_000)
    yield Peer(LOOP, broker, partial(_loop, job="publish"), 150_000)
    if bento.is_there(left_out):
        yield Peer(BENTO, broker, _bento, 60_000)
    yield Pulled("kafka", partial(_source, broker), 80_000)
    yield Loop(broker, 600_000)
    yield SinkAlone("kafka", partial(_sink, broker), 80_000)


def _loop(topics: Topics, job: str) -> AbstractContextManager[psutil.Process]:
    words = ["-m", "benchmarks.workers.kafka_loop", topics.address, topics.source, topics.out, job]
    return peers.process_of([sys.executable, *words])


def _bento(topics: Topics) -> AbstractContextManager[psutil.Process]:
    batching = {"batching": {"count": 1_000, "period": "10ms"}}
    shared: dict[str, Any] = {"seed_brokers": [topics.address]}
    source = {"topics": [topics.source], "consumer_group": "bento", "checkpoint_limit": 20_000}
    sink = {"topic": topics.out, "max_in_flight": 64}
    return bento.bento({"kafka_franz": shared | source | batching}, {"kafka_franz": shared | sink})


@contextmanager
def _source(broker: Broker, ground: Ground, messages: int, size: int) -> Iterator[Kafka]:
    topics = Topics(broker, messages, size, ground.seed)
    yield Kafka(brokers=[topics.address], topic=topics.source)


@contextmanager
def _sink(broker: Broker, ground: Ground, messages: int) -> Iterator[Settings]:
    topic = broker.topic()
    yield {"sink": Kafka(brokers=[broker.address], topic=topic)}
    if (stored := sum(broker.ends(topic).values())) != messages:
        raise NotOnce(f"{stored:,} records for {messages:,} messages")
