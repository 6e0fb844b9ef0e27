"""Pipelines that write to Kafka."""

from __future__ import annotations

from collections import Counter

import pytest

from ebbflow import Message, MonoVertex, Nack, Pipeline
from ebbflow.connectors import Kafka

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("spark")]


def test_a_copy_keeps_keys_and_headers_and_a_message_that_is_too_large_is_a_dead_letter(
    run, kafka, server_letters
):
    here, there = kafka.topic(2), kafka.topic(2, max_message_bytes="10000")
    headers = [("trace", b"7"), ("__key_len", b"2"), ("__key_0", b"ann"), ("__key_1", b"bob")]
    kafka.fill(here, (b"%d" % n for n in range(500)), key=b"x", headers=headers)
    kafka.fill(here, [b"large"])

    def grow(datum):
        return Message(datum.value * 4_000 if datum.value == b"large" else datum.value)

    brokers = [kafka.address]
    summary = run(
        Pipeline("copy")
        .source("in", Kafka(brokers=brokers, topic=here), transformer=grow)
        .sink("out", Kafka(brokers=brokers, topic=there, set_key=True))
    )

    records = kafka.records(there)
    assert sorted(int(record.value()) for record in records) == list(range(500))
    assert {record.key() for record in records} == {b"ann:bob"}
    assert all(sorted(record.headers()) == sorted(headers) for record in records)
    assert len({record.partition() for record in records}) == 1
    assert (summary.vertices["out"].done, summary.vertices["out"].dead_lettered) == (500, 1)
    (letter,) = server_letters("copy")
    assert letter.error == "MSG_SIZE_TOO_LARGE: Broker: Message size too large"


@pytest.mark.long
@pytest.mark.guarantee("kafka-writes-once")
def test_an_exactly_once_copy_has_each_record_once_with_workers_killed_around_commits(
    run, kafka, server_letters, tmp_path
):
    from tests.connectors.kafka.test_transactions import committed

    here, there, marks = kafka.topic(2), kafka.topic(2), tmp_path / "marks"
    marks.mkdir()
    kafka.fill(here, (b"%d" % n for n in range(500)))
    kafka.fill(here, [b"bad"])

    def work(datum):
        number = int(datum.value)
        if number % 20 == 0 and datum.deliveries == 1:
            raise Nack(delay="100ms", reason="not now")
        kill_around_commits(marks)
        return Message(datum.value)

    source = Kafka(brokers=[kafka.address], topic=here)
    sink = Kafka(brokers=[kafka.address], topic=there, exactly_once=True)
    run(MonoVertex("once").source(source).map(work).sink(sink))

    assert sorted(mark.name for mark in marks.iterdir()) == ["after", "before"]
    assert Counter(committed(kafka, there)) == Counter(map(str, range(500)))
    assert [letter.value for letter in server_letters("once")] == [b"bad"]


def kill_around_commits(marks):
    """Have this worker killed before its third commit, and the next one right after its own."""
    import os
    import signal

    from ebbflow.connectors.kafka.transactions import TransactionalOutbox

    commit = getattr(TransactionalOutbox, "as_it_is", TransactionalOutbox.commit)
    TransactionalOutbox.as_it_is = commit

    def die_once(name):
        try:
            (marks / name).touch(exist_ok=False)
        except FileExistsError:
            return
        os.kill(os.getpid(), signal.SIGKILL)

    def dying(outbox):
        outbox.calls = getattr(outbox, "calls", 0) + 1
        if outbox.calls == 2:
            die_once("before")
        commit(outbox)
        if outbox.calls == 2 and (marks / "before").exists():
            die_once("after")

    TransactionalOutbox.commit = dying
