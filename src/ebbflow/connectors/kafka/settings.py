"""The settings of the Kafka source and sink: plain data, made on the driver, for workers.

It holds the contents of files and the secrets themselves, none of which shows in any text.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ebbflow.domain.secrets import Secret


@dataclass(frozen=True, slots=True)
class KafkaTls:
    """Certificates in PEM form; ``ca`` are those to trust instead of the system's."""

    ca: Secret | None = None
    cert: Secret | None = None
    key: Secret | None = None

    def settings(self) -> dict[str, Any]:
        """Returns the settings of a client that uses them, in librdkafka's words."""
        pem = {"ssl.ca.pem": self.ca, "ssl.certificate.pem": self.cert, "ssl.key.pem": self.key}
        return {name: secret.reveal() for name, secret in pem.items() if secret is not None}


@dataclass(frozen=True, slots=True)
class KafkaLogin:
    """A user and password, and the mechanism that they are checked with."""

    mechanism: str
    user: Secret
    password: Secret

    def settings(self) -> dict[str, Any]:
        """Returns the settings of a client that logs in so, in librdkafka's words."""
        return {
            "sasl.mechanism": self.mechanism,
            "sasl.username": self.user.reveal(),
            "sasl.password": self.password.reveal(),
        }


@dataclass(frozen=True, slots=True)
class KafkaAccess:
    """The brokers, what protects the connection, and librdkafka settings of the user's own."""

    brokers: tuple[str, ...]
    config: tuple[tuple[str, str], ...] = ()
    tls: KafkaTls | None = None
    login: KafkaLogin | None = None

    def __str__(self) -> str:
        return ", ".join(self.brokers)

    def settings(self, defaults: dict[str, Any], fixed: dict[str, Any]) -> dict[str, Any]:
        """Returns a client's settings: the user's win over ``defaults``, ``fixed`` over both."""
        protocol = f"{'SASL_' if self.login else ''}{'SSL' if self.tls else 'PLAINTEXT'}"
        return {
            "client.id": "ebbflow",
            "security.protocol": protocol,
            "reconnect.backoff.max.ms": 2_000,
            **defaults,
            **dict(self.config),
            **(self.tls.settings() if self.tls else {}),
            **(self.login.settings() if self.login else {}),
            "bootstrap.servers": ",".join(self.brokers),
            **fixed,
        }


@dataclass(frozen=True, slots=True)
class KafkaSourceSettings:
    """The topics to read, and the consumer group."""

    access: KafkaAccess
    topics: tuple[str, ...]
    group: str


@dataclass(frozen=True, slots=True)
class KafkaSinkSettings:
    """The topic to write to."""

    access: KafkaAccess
    topic: str
    set_key: bool = False
