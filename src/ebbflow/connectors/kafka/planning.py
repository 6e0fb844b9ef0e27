"""From the spec's Kafka sections to what runs on workers, on the driver.

Secrets are read here, and a client is made once to see that it takes its settings: whoever starts
a pipeline hears of mistakes at once. From here on the extra that brings the client is needed.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from ebbflow.connectors.kafka.access import KafkaSinkSettings, KafkaSourceSettings
from ebbflow.errors import SetupError

if TYPE_CHECKING:
    from ebbflow.connectors.kafka import spec
    from ebbflow.connectors.kafka.sink import KafkaSink
    from ebbflow.connectors.kafka.source import KafkaSource


def source_code(section: spec.KafkaSource, group: str) -> partial[KafkaSource]:
    """The source of a vertex; ``group`` is its consumer group unless the spec says another."""
    _need_extra()
    from confluent_kafka import Consumer

    from ebbflow.connectors.kafka.client import Complaints, made
    from ebbflow.connectors.kafka.member import consumer_settings
    from ebbflow.connectors.kafka.source import KafkaSource

    settings = KafkaSourceSettings(section.access(), section.topic, section.consumer_group or group)
    made(Consumer, consumer_settings(settings), Complaints()).close()
    return partial(KafkaSource, settings)


def sink_code(section: spec.KafkaSink, retried: bool) -> partial[KafkaSink]:
    """A sink; ``retried`` if the vertex has a strategy for what is reported as failed."""
    _need_extra()
    from confluent_kafka import Producer

    from ebbflow.connectors.kafka.client import Complaints, made
    from ebbflow.connectors.kafka.sink import KafkaSink, producer_settings

    settings = KafkaSinkSettings(section.access(), section.topic, section.set_key, retried)
    made(Producer, producer_settings(settings), Complaints())
    return partial(KafkaSink, settings)


def _need_extra() -> None:
    try:
        import confluent_kafka  # noqa: F401
    except ModuleNotFoundError:
        raise SetupError(
            "Kafka needs a package that is not installed.", "Run: pip install 'ebbflow[kafka]'"
        ) from None
