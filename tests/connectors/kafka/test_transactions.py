"""Writing exactly once: interrupted transactions, replays in different calls, takeovers.

A writer is a process that is killed with SIGKILL. It begins after the last call that returned, as
the engine does after a crash, and makes calls of random size.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from random import Random, randrange
from typing import Any

import pytest
from confluent_kafka import Producer, TopicPartition

from ebbflow.connectors.kafka.kafka_client import KafkaAccess, KafkaSinkSettings
from ebbflow.connectors.kafka.transactions import WRITTEN, TransactionalKafkaSink
from ebbflow.domain.message import Status
from ebbflow.engine import frames
from tests.connectors.kafka.broker import Broker

pytestmark = pytest.mark.slow

PLACE = {
    "NUMAFLOW_PIPELINE_NAME": "p",
    "NUMAFLOW_VERTEX_NAME": "out",
    "NUMAFLOW_REPLICA": "0",
}

WRITER = """
import os, signal, sys
from random import Random
from ebbflow.connectors.kafka.transactions import TransactionalOutbox
from tests.connectors.kafka.test_transactions import rows_of, sink_to

address, topic, begin, end, seed, kill = *sys.argv[1:3], *map(int, sys.argv[3:6]), sys.argv[6]
random = Random(seed)
calls, fatal = 0, random.randrange(1, 6)
commit = TransactionalOutbox.commit

def dying(outbox):
    global calls
    calls += 1
    if kill == "after" and calls == fatal:
        commit(outbox)
    if kill != "never" and calls == fatal:
        outbox.producer.flush()
        os.kill(os.getpid(), signal.SIGKILL)
    commit(outbox)

TransactionalOutbox.commit = dying
sink = sink_to(address, topic)
sink.open()
while begin < end:
    after = min(end, begin + random.randrange(1, 40))
    assert not sink(rows_of(range(begin, after)))
    begin = after
    print(begin, flush=True)
"""


def sink_to(address: str, topic: str, **config: str) -> TransactionalKafkaSink:
    access = KafkaAccess((address,), tuple(config.items()))
    return TransactionalKafkaSink(KafkaSinkSettings(access, topic))


def rows_of(numbers: Any, size: int = 0) -> Any:
    """Messages whose ids and values are these numbers."""
    texts = [str(number) for number in numbers]
    values = [text.encode().ljust(size) for text in texts]
    return frames.batch_of({"id": texts, "value": values}, len(texts))


@pytest.fixture
def place(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Make the sink that of a vertex; or of another one, or of a pipeline started afresh."""

    def here(**other: str) -> None:
        for name, value in (PLACE | other).items():
            monkeypatch.setenv(name, value)

    here()
    return here


@contextmanager
def opened(kafka: Broker, topic: str, **config: str) -> Iterator[TransactionalKafkaSink]:
    sink = sink_to(kafka.address, topic, **config)
    sink.open()
    yield sink
    sink.close()


def committed(kafka: Broker, topic: str) -> list[str]:
    """The values that a reader of committed messages sees."""
    return [message.value().decode().strip() for message in read_committed(kafka, topic)]


def read_committed(kafka: Broker, topic: str) -> list[Any]:
    reader = kafka.member("reader", **{"enable.partition.eof": True})
    ends = kafka.ends(topic)
    messages, unread = [], {number for number, end in ends.items() if end}
    reader.assign([TopicPartition(topic, number, 0) for number in unread])
    while unread:
        for message in reader.consume(500, 1.0):
            if message.error() is None:
                messages.append(message)
            else:
                unread.discard(message.partition())
    reader.close()
    return messages


def write_in_a_process(kafka: Broker, topic: str, *words: object) -> tuple[int, int | None]:
    """Have a process write; returns the end of what was acknowledged, and its exit code."""
    command = [sys.executable, "-c", WRITER, kafka.address, topic, *map(str, words)]
    done = subprocess.run(
        command, env=os.environ | PLACE, capture_output=True, text=True, timeout=300
    )
    assert done.returncode in (0, -signal.SIGKILL), done.stderr
    return int((done.stdout.split() or [words[0]])[-1]), done.returncode


@pytest.mark.long
@pytest.mark.guarantee("kafka-writes-once")
def test_a_writer_killed_at_any_moment_writes_each_message_once(
    kafka: Broker, place: Callable[..., None]
) -> None:
    seed = randrange(10**6)
    print(f"seed {seed}")
    topic, random = kafka.topic(3), Random(seed)
    begin, deaths = 0, 0
    for kill in ("before", "after", "before", "after", "never"):
        begin, ended = write_in_a_process(kafka, topic, begin, 400, random.randrange(10**6), kill)
        deaths += ended != 0
    assert deaths >= 2
    assert Counter(committed(kafka, topic)) == Counter(map(str, range(400)))


@pytest.mark.guarantee("kafka-writes-once")
def test_a_message_repeated_in_another_call_is_done_but_not_written_again(
    kafka: Broker, place: Callable[..., None]
) -> None:
    topic = kafka.topic()
    with opened(kafka, topic) as sink:
        assert not sink(rows_of(range(5)))
        assert not sink(rows_of([7, 3, 4]))
    with opened(kafka, topic) as sink:
        assert not sink(rows_of([4, 5, 7]))
    assert sorted(committed(kafka, topic)) == ["0", "1", "2", "3", "4", "5", "7"]


def test_other_vertices_and_pipelines_started_afresh_write_the_same_ids_again(
    kafka: Broker, place: Callable[..., None]
) -> None:
    topic = kafka.topic()
    for other in ({}, {"NUMAFLOW_VERTEX_NAME": "other"}, {"EBBFLOW_LINEAGE": "later"}):
        place(**other)
        with opened(kafka, topic) as sink:
            assert not sink(rows_of([1]))
    assert committed(kafka, topic) == ["1"] * 3


@pytest.mark.guarantee("kafka-writes-once")
def test_a_replaced_writer_writes_nothing_more(kafka: Broker, place: Callable[..., None]) -> None:
    topic = kafka.topic()
    with opened(kafka, topic) as old:
        assert not old(rows_of([1]))
        with opened(kafka, topic) as new:
            answers = old(rows_of([2]))
            assert answers[0].status is Status.UNAVAILABLE
            assert "FENCED" in answers[0].error
            assert not new(rows_of([2, 3]))
    assert committed(kafka, topic) == ["1", "2", "3"]


def test_a_message_that_is_too_large_is_refused_and_the_others_are_written(
    kafka: Broker, place: Callable[..., None]
) -> None:
    topic = kafka.topic(max_message_bytes="2000")
    with opened(kafka, topic) as sink:
        large = rows_of([9], 100_000)
        answers = sink(frames.concat([rows_of([1]), large, rows_of([2])]))
        assert {row: answer.status for row, answer in answers.items()} == {1: Status.FAILURE}
        assert not sink(rows_of([1, 2, 3]))
    assert sorted(committed(kafka, topic)) == ["1", "2", "3"]


def test_a_sink_waits_for_the_open_transaction_of_another_program(
    kafka: Broker, place: Callable[..., None]
) -> None:
    topic = kafka.topic()
    other = Producer({**kafka.plain, "transactional.id": "other"})
    other.init_transactions(30)
    with opened(kafka, topic) as sink:
        other.begin_transaction()
        other.produce(topic, b"other")
        other.flush()
        assert not sink(rows_of([1]))
    assert committed(kafka, topic) == []
    ending = threading.Timer(0.5, other.commit_transaction, [30])
    ending.start()
    with opened(kafka, topic) as sink:
        assert not sink(rows_of([1, 2]))
    ending.join()
    assert sorted(committed(kafka, topic)) == ["1", "2", "other"]


def test_a_record_carries_the_hash_of_its_message_next_to_its_headers(
    kafka: Broker, place: Callable[..., None]
) -> None:
    topic = kafka.topic()
    with opened(kafka, topic) as sink:
        assert not sink(rows_of([1]))
    (record,) = read_committed(kafka, topic)
    names = [name for name, _ in record.headers()]
    assert names == ["__key_len", WRITTEN]
