"""Pipelines that write to Kafka."""

from __future__ import annotations

import pytest

from ebbflow import Message, Pipeline

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("spark")]


def test_from_kafka_to_kafka_keys_and_headers_stay_and_what_is_too_large_is_a_dead_letter(
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
        .source("in", kafka={"brokers": brokers, "topic": here}, transformer=grow)
        .sink("out", kafka={"brokers": brokers, "topic": there, "setKey": True})
    )

    records = kafka.records(there)
    assert sorted(int(record.value()) for record in records) == list(range(500))
    assert {record.key() for record in records} == {b"ann:bob"}
    assert all(sorted(record.headers()) == sorted(headers) for record in records)
    assert len({record.partition() for record in records}) == 1
    assert (summary.vertices["out"].done, summary.vertices["out"].dead_lettered) == (500, 1)
    (letter,) = server_letters("copy")
    assert letter.error == "MSG_SIZE_TOO_LARGE: Broker: Message size too large"
