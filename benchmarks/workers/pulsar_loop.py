"""A bare pulsar-client loop: receive what is there, send each, acknowledge all that is stored.

python -m benchmarks.workers.pulsar_loop ADDRESS TOPIC OUT
"""

from __future__ import annotations

import os
import sys

import pulsar

_MANY = 2_000


def serve(address: str, topic: str, out: str) -> None:
    """Works until killed."""
    quiet = pulsar.FileLogger(pulsar.LoggerLevel.Error, os.devnull)
    client = pulsar.Client(address, logger=quiet)
    consumer = client.subscribe(
        topic,
        "loop",
        pulsar.ConsumerType.Shared,
        initial_position=pulsar.InitialPosition.Earliest,
    )
    producer = client.create_producer(
        out,
        batching_enabled=True,
        batching_max_publish_delay_ms=5,
        max_pending_messages=2 * _MANY,
        block_if_queue_full=True,
    )
    while True:
        messages = _receive(consumer)
        for message in messages:
            producer.send_async(message.data().upper(), _see)
        producer.flush()
        for message in messages:
            consumer.acknowledge(message)


def _receive(consumer: pulsar.Consumer) -> list[pulsar.Message]:
    messages = [consumer.receive()]
    try:
        while len(messages) < _MANY:
            messages.append(consumer.receive(0))
    except pulsar.Timeout:
        pass
    return messages


def _see(result: object, message_id: object) -> None:
    if result != pulsar.Result.Ok:
        os._exit(1)


if __name__ == "__main__":
    serve(*sys.argv[1:])
