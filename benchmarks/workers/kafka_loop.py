"""A bare confluent-kafka loop: consume many, produce each, commit when all are delivered.

python -m benchmarks.workers.kafka_loop BROKER TOPIC OUT publish|read

``read`` only commits.
"""

from __future__ import annotations

import sys

from confluent_kafka import Consumer, Message, Producer

GROUP = "loop"
_MANY = 10_000


def serve(broker: str, topic: str, out: str | None) -> None:
    """Works until killed."""
    consumer = Consumer(
        {
            "bootstrap.servers": broker,
            "group.id": GROUP,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
        }
    )
    consumer.subscribe([topic])
    producer = Producer({"bootstrap.servers": broker, "queue.buffering.max.messages": 10 * _MANY})
    while True:
        records = consumer.consume(_MANY, 0.1)
        if records:
            if out is not None:
                _produce(producer, out, records)
            consumer.commit(asynchronous=False)


def _produce(producer: Producer, out: str, records: list[Message]) -> None:
    for record in records:
        producer.produce(out, (record.value() or b"").upper(), on_delivery=_see)
    producer.flush()


def _see(error: object, record: Message) -> None:
    if error is not None:
        raise RuntimeError(error)


if __name__ == "__main__":
    broker, topic, out, job = sys.argv[1:]
    serve(broker, topic, out if job == "publish" else None)
