"""Kafka in a spec: the source and the sink, with Numaflow's names.

``config`` holds librdkafka settings, as a mapping or as Numaflow's text of ``key: value`` lines.
Settings that the connectors' guarantees depend on are refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Literal

import yaml
from pydantic import AfterValidator, BeforeValidator, Field, StrictBool, StrictStr, model_validator
from pydantic_core import PydanticCustomError
from typing_extensions import override

from ebbflow.connectors.base import SinkSection, SourceSection, require_extra, sink, source
from ebbflow.connectors.plans import WHOLE_CHUNK, Pulled, UserSink
from ebbflow.connectors.schema import fields
from ebbflow.connectors.schema.fields import Section
from ebbflow.connectors.schema.secrets import SecretRef, Tls
from ebbflow.domain.secrets import Secret

if TYPE_CHECKING:
    from ebbflow.connectors.kafka.kafka_client import KafkaAccess

_PEM = {"ca": "ssl.ca.pem", "cert": "ssl.certificate.pem", "key": "ssl.key.pem"}
RESERVED_SETTINGS = {
    "bootstrap.servers": "brokers:",
    "metadata.broker.list": "brokers:",
    "group.id": "consumerGroup:",
    "sasl.mechanism": "sasl:",
    "sasl.mechanisms": "sasl:",
    "sasl.username": "sasl:",
    "sasl.password": "sasl:",
    "ssl.key.pem": "tls:",
    "ssl.key.password": "tls:",
    "enable.auto.commit": None,
    "enable.auto.offset.store": None,
    "enable.partition.eof": None,
    "enable.idempotence": None,
    "delivery.report.only.error": None,
    "transactional.id": None,
}
"""Settings that ``config`` cannot have, each with the field to use instead, if there is one."""


def _read_config(config: Any) -> Any:
    """Returns the settings as texts, from a mapping or from Numaflow's lines."""
    if isinstance(config, str):
        try:
            config = yaml.safe_load(config) or {}
        except yaml.YAMLError:
            config = None
    if not isinstance(config, Mapping) or not all(map(_is_setting, config.items())):
        raise PydanticCustomError("EB103", "must be settings of librdkafka, as key: value lines")
    return {str(key): _write_value(value) for key, value in config.items()}


def _is_setting(item: tuple[Any, Any]) -> bool:
    return isinstance(item[0], str) and isinstance(item[1], str | int | float)


def _write_value(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _refuse_own(config: dict[str, str]) -> dict[str, str]:
    for name in config:
        if name in RESERVED_SETTINGS:
            field = RESERVED_SETTINGS[name]
            instead = f"write {field}" if field else "Ebbflow's guarantees depend on it"
            raise PydanticCustomError(
                "EB104",
                "{name} cannot be set here: {instead}",
                {"name": name, "instead": instead},
            )
    return config


def _require_some(names: tuple[str, ...]) -> tuple[str, ...]:
    if not names:
        raise PydanticCustomError("EB104", "must have at least one")
    return names


def _split_topics(topics: Any) -> Any:
    if isinstance(topics, str):
        return [name.strip() for name in topics.split(",")]
    return topics


Config = Annotated[dict[str, str], BeforeValidator(_read_config), AfterValidator(_refuse_own)]
"""Settings of librdkafka."""

Brokers = Annotated[tuple[StrictStr, ...], AfterValidator(_require_some)]
"""Brokers to begin with, as ``host:port``."""

Topic = Annotated[
    StrictStr,
    fields.matching(
        r"[A-Za-z0-9._-]{1,249}",
        "EB104",
        "{value} is not a topic: use at most 249 letters, digits, '.', '_' and '-'",
    ),
]
"""The name of a topic."""

Mechanism = Annotated[
    Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"],
    BeforeValidator(lambda name: name.upper() if isinstance(name, str) else name),
]
"""A SASL mechanism, in any case."""

Topics = Annotated[tuple[Topic, ...], BeforeValidator(_split_topics), AfterValidator(_require_some)]
"""Topics as a list, or separated by commas."""


def _find_unsupported(sasl: Mapping[str, Any]) -> str | None:
    """Returns the mechanism, if it is one that only Numaflow supports."""
    sections = {"gssapi": "GSSAPI", "oauth": "OAUTHBEARER"}
    mechanism = str(sasl.get("mechanism")).upper()
    named = [name for section, name in sections.items() if sasl.get(section) is not None]
    named += [name for name in (*sections.values(), "OAUTH") if name == mechanism]
    return named[0] if named else None


class SaslUser(Section):
    """A user and password. ``handshake`` has no effect, as in Numaflow."""

    user_secret: SecretRef
    password_secret: SecretRef
    handshake: Any = Field(default=None, description=fields.WITHOUT_EFFECT)


class Sasl(Section):
    """A login; the section of its mechanism has the user."""

    mechanism: Mechanism = Field(description="how to log in; the section of that name has the user")
    plain: SaslUser | None = None
    scramsha256: SaslUser | None = None
    scramsha512: SaslUser | None = None

    @model_validator(mode="before")
    @classmethod
    def _is_supported(cls, sasl: Any) -> Any:
        """Refuses Numaflow's two other mechanisms by name, not as misspelt fields."""
        mechanism = _find_unsupported(sasl) if isinstance(sasl, Mapping) else None
        if mechanism is not None:
            raise PydanticCustomError(
                "EB901",
                "{mechanism} is not supported; log in with PLAIN, SCRAM-SHA-256 or SCRAM-SHA-512, "
                "or with a certificate in tls:",
                {"mechanism": mechanism},
            )
        return sasl

    @model_validator(mode="after")
    def _has_its_section(self) -> Sasl:
        sections = {"plain": self.plain, "scramsha256": self.scramsha256}
        sections |= {"scramsha512": self.scramsha512}
        if [name for name, section in sections.items() if section is not None] != [self._section]:
            raise PydanticCustomError(
                "EB104",
                "mechanism {mechanism} needs {section}: with userSecret and passwordSecret, "
                "and no other section",
                {"mechanism": self.mechanism, "section": self._section},
            )
        return self

    @property
    def _section(self) -> str:
        return self.mechanism.replace("-", "").lower()

    def read(self) -> tuple[tuple[str, Secret], ...]:
        """Returns the login as settings, with the user name and the password."""
        user: SaslUser = getattr(self, self._section)
        return (
            ("sasl.mechanism", Secret(self.mechanism)),
            ("sasl.username", user.user_secret.read("the user for Kafka")),
            ("sasl.password", user.password_secret.read("the password for Kafka")),
        )


class KafkaSection(Section):
    """The brokers, and how to log in there."""

    brokers: Brokers = Field(description="brokers to begin with, as `host:port`")
    config: Config = Field(
        default={},
        description="settings of "
        "[librdkafka](https://docs.confluent.io/platform/current/clients/librdkafka/html/md_CONFIGURATION.html);"
        " settings that Ebbflow's guarantees depend on are refused",
    )
    tls: Tls | None = None
    sasl: Annotated[Sasl | None, fields.LEFT_OUT_IF_EMPTY] = None

    def access(self) -> KafkaAccess:
        """Returns the brokers and the login, with all secrets as they are now."""
        from ebbflow.connectors.kafka.kafka_client import KafkaAccess

        return KafkaAccess(
            self.brokers,
            tuple(self.config.items()),
            _read_tls(self.tls) if self.tls else None,
            self.sasl.read() if self.sasl else (),
        )


def _read_tls(tls: Tls) -> tuple[tuple[str, Secret], ...]:
    contents = tls.contents("Kafka").items()
    return tuple((_PEM[name], Secret(text)) for name, text in contents)


@source("kafka", returns=True)
class KafkaSourceSpec(KafkaSection, SourceSection):
    """Records of topics, read as a member of a consumer group."""

    topic: Topics = Field(description="the topics to read")
    consumer_group: Annotated[StrictStr | None, fields.LEFT_OUT_IF_EMPTY] = Field(
        default=None, description="the group; left out, `<pipeline>-<vertex>`"
    )
    kafka_version: Any = Field(default=None, description="without effect")

    def plan(self, pipeline: str, vertex: str) -> Pulled:
        """Returns the source, with all secrets read; its group is named after the vertex.

        Creates a consumer once, to check its settings.
        """
        require_extra("Kafka", "kafka", "confluent_kafka")
        from confluent_kafka import Consumer

        from ebbflow.connectors.kafka.kafka_client import (
            ClientErrors,
            KafkaSourceSettings,
            consumer_settings,
            make_client,
        )
        from ebbflow.connectors.kafka.source import KafkaSource

        group = self.consumer_group or "-".join(dict.fromkeys((pipeline, vertex)))
        settings = KafkaSourceSettings(self.access(), self.topic, group)
        make_client(Consumer, consumer_settings(settings), ClientErrors()).close()
        return Pulled(partial(KafkaSource, settings))


@sink("kafka")
class KafkaSinkSpec(KafkaSection, SinkSection):
    """Records for a topic."""

    topic: Topic = Field(description="the topic to write to")
    set_key: StrictBool = Field(
        default=False, description="use the message's keys, joined with `:`, as the record's key"
    )
    set_timestamp: StrictBool = Field(
        default=False,
        description="use the message's event time as the record's timestamp, by which Kafka also "
        "deletes old records; left out, the time at which it is sent",
    )
    exactly_once: StrictBool = Field(
        default=False,
        description="write in transactions, each message once, for readers with "
        "`isolation.level: read_committed`; the vertex has one partition and no other sink",
    )

    @property
    @override
    def alone(self) -> str | None:
        return "exactlyOnce" if self.exactly_once else None

    def plan(self) -> UserSink:
        """Returns the sink, with all secrets read.

        Creates a producer once, to check its settings.
        """
        require_extra("Kafka", "kafka", "confluent_kafka")
        from confluent_kafka import Producer

        from ebbflow.connectors.kafka.kafka_client import (
            ClientErrors,
            KafkaSinkSettings,
            make_client,
        )
        from ebbflow.connectors.kafka.sink import KafkaSink, producer_settings
        from ebbflow.connectors.kafka.transactions import TransactionalKafkaSink

        settings = self.freeze("Kafka", KafkaSinkSettings, access=self.access())
        make_client(Producer, producer_settings(settings), ClientErrors())
        kind = TransactionalKafkaSink if self.exactly_once else KafkaSink
        return UserSink(partial(kind, settings), "columnar", WHOLE_CHUNK)
