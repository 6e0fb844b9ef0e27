"""A bare google-cloud-pubsub loop: threads that each pull many, publish them, then acknowledge.

python -m benchmarks.workers.pubsub_loop ADDRESS PROJECT SUBSCRIPTION TOPIC
"""

from __future__ import annotations

import sys
from functools import partial
from typing import Any

import grpc
from google.pubsub_v1 import PublisherClient, SubscriberClient
from google.pubsub_v1.services.publisher.transports import PublisherGrpcTransport
from google.pubsub_v1.services.subscriber.transports import SubscriberGrpcTransport

from benchmarks.workers.at_once import work_at_once

_AT_ONCE, _MANY = 4, 1_000


def serve(address: str, project: str, subscription: str, topic: str) -> None:
    """Works until killed."""
    channel = grpc.insecure_channel(address)
    publisher = PublisherClient(transport=PublisherGrpcTransport(channel=channel))
    subscriber = SubscriberClient(transport=SubscriberGrpcTransport(channel=channel))
    source = f"projects/{project}/subscriptions/{subscription}"
    out = f"projects/{project}/topics/{topic}"
    work_at_once(_AT_ONCE, partial(_move, publisher, subscriber, source, out))


def _move(publisher: Any, subscriber: Any, source: str, out: str) -> None:
    asked = {"subscription": source, "max_messages": _MANY}
    received = subscriber.pull(request=asked).received_messages
    if received:
        messages = [{"data": one.message.data.upper()} for one in received]
        publisher.publish(request={"topic": out, "messages": messages})
        ids = [one.ack_id for one in received]
        subscriber.acknowledge(request={"subscription": source, "ack_ids": ids})


if __name__ == "__main__":
    serve(*sys.argv[1:])
