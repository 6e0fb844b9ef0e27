"""Google's ``pstest`` server, in a process of its own.

A ``relay`` in front of it lets a test cause an outage without losing the messages.
"""

from __future__ import annotations

import itertools
import subprocess
from collections.abc import Sequence
from typing import Any

from tests.connectors.relay import Relay

_NAMES = itertools.count()
PROJECT = "shop"


class Pubsub:
    """A server with topics and subscriptions. ``url`` leads to it through the relay of a test."""

    relay: Relay

    def __init__(self, command: Sequence[str]) -> None:
        import grpc
        from google.pubsub_v1.services.publisher import PublisherClient
        from google.pubsub_v1.services.publisher.transports import PublisherGrpcTransport
        from google.pubsub_v1.services.subscriber import SubscriberClient
        from google.pubsub_v1.services.subscriber.transports import SubscriberGrpcTransport

        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert self._process.stdout is not None
        address = self._process.stdout.readline().strip()
        self.port = int(address.rpartition(":")[2])
        self._channel: Any = grpc.insecure_channel(address)
        self.publisher = PublisherClient(transport=PublisherGrpcTransport(channel=self._channel))
        self.subscriber = SubscriberClient(transport=SubscriberGrpcTransport(channel=self._channel))

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.relay.port}"

    def close(self) -> None:
        self._channel.close()
        self._process.communicate(timeout=10)

    def make(self, ordered: bool = False) -> str:
        """Make a topic and a subscription of the same name; returns the name."""
        name = f"orders-{next(_NAMES)}"
        topic = f"projects/{PROJECT}/topics/{name}"
        self.publisher.create_topic(name=topic)
        self.subscriber.create_subscription(
            request={
                "name": f"projects/{PROJECT}/subscriptions/{name}",
                "topic": topic,
                "ack_deadline_seconds": 10,
                "enable_message_ordering": ordered,
            }
        )
        return name

    def publish(self, name: str, *messages: dict[str, Any]) -> None:
        topic = f"projects/{PROJECT}/topics/{name}"
        self.publisher.publish(request={"topic": topic, "messages": list(messages)}, retry=None)

    def send(self, name: str, *values: str) -> None:
        self.publish(name, *({"data": value.encode()} for value in values))

    def receive(self, name: str) -> list[Any]:
        """Receive and acknowledge all messages that are available now."""
        return [received.message for received in self.take(name)]

    def take(self, name: str) -> list[Any]:
        """Receive and acknowledge all that is available now, with the data of each delivery."""
        path, found = f"projects/{PROJECT}/subscriptions/{name}", []
        asked = {"subscription": path, "max_messages": 1_000, "return_immediately": True}
        while some := self.subscriber.pull(request=asked).received_messages:
            found += some
            ids = [received.ack_id for received in some]
            self.subscriber.acknowledge(request={"subscription": path, "ack_ids": ids})
        return found
