"""Looking up how far a group is, over a connection of its own.

Not over the connection that fetches: there, every question waits for half a second behind a fetch
that waits for messages.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from confluent_kafka import OFFSET_END, OFFSET_INVALID, Consumer, TopicPartition

from ebbflow.connectors.kafka.client import Complaints, made

Partition = tuple[str, int]
"""A topic and the number of one of its partitions."""

_NETWORK = 5.0


class Lookup:
    """Asks brokers on behalf of a group, without being a member. Used by one thread.

    What they do not answer in time raises ``KafkaException``.
    """

    def __init__(self, settings: dict[str, Any]) -> None:
        self._client: Consumer = made(Consumer, settings, Complaints())

    def close(self) -> None:
        """End the connection."""
        self._client.close()

    def ends(self, partitions: Iterable[Partition]) -> dict[Partition, int]:
        """The offset behind the last message of each."""
        asked = [TopicPartition(*one, OFFSET_END) for one in partitions]
        found = self._client.offsets_for_times(asked, timeout=_NETWORK) if asked else []
        return {(one.topic, one.partition): one.offset for one in found}

    def committed(self, partitions: Iterable[Partition]) -> dict[Partition, int | None]:
        """What the group has committed of each; ``None`` where it never has."""
        asked = [TopicPartition(*one) for one in partitions]
        found = self._client.committed(asked, timeout=_NETWORK) if asked else []
        return {
            (one.topic, one.partition): None if one.offset == OFFSET_INVALID else one.offset
            for one in found
        }

    def nothing_left(self, topics: Sequence[str]) -> bool:
        """Whether the group has committed everything that is in the topics."""
        every = [(topic, number) for topic in topics for number in self._numbers(topic)]
        ends, committed = self.ends(every), self.committed(every)
        return all((committed[one] or 0) == ends[one] for one in every)

    def _numbers(self, topic: str) -> list[int]:
        return list(self._client.list_topics(topic, timeout=_NETWORK).topics[topic].partitions)
