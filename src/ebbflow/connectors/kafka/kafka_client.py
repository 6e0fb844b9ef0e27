"""Kafka clients: their settings, how they are created, and why their topics cannot be used.

The driver creates settings as plain data for workers. They hold the contents of files and the
secrets themselves, which no text shows.

A client keeps reconnecting by itself. Its brokers and topics must be available only when it starts:
a failure then is most likely a mistake, so it raises ``SetupError``.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from confluent_kafka import (
    OFFSET_END,
    OFFSET_INVALID,
    Consumer,
    KafkaError,
    KafkaException,
    TopicPartition,
)

from ebbflow.domain.errors import SetupError
from ebbflow.domain.secrets import Secret

_TRY_FOR = 1.0
_REPORT_EVERY = 30.0
_LOOKUP_WITHIN = 5.0
_COMMIT_WITHIN = 3.0

_REFUSED = {
    KafkaError._AUTHENTICATION: ("refused the login", "Correct sasl: in the spec."),
    KafkaError.SASL_AUTHENTICATION_FAILED: ("refused the login", "Correct sasl: in the spec."),
    KafkaError._SSL: ("cannot be reached over TLS", "Correct tls: in the spec."),
}
"""Errors that a retry cannot solve: what each means, and what to do."""
_MISSING = frozenset({KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC})
_FORBIDDEN = frozenset(
    {KafkaError.TOPIC_AUTHORIZATION_FAILED, KafkaError.GROUP_AUTHORIZATION_FAILED}
)

_REPLACED = frozenset(
    {
        KafkaError.ILLEGAL_GENERATION,
        KafkaError.UNKNOWN_MEMBER_ID,
        KafkaError.FENCED_INSTANCE_ID,
        KafkaError.STALE_MEMBER_EPOCH,
    }
)
"""Errors that mean that a partition already belongs to another member."""

CLASSIC: dict[str, Any] = {
    "partition.assignment.strategy": "cooperative-sticky",
    # After this time a killed member is missed, and other members get its partitions.
    "session.timeout.ms": 10_000,
    "heartbeat.interval.ms": 1_000,
}
"""Settings of the classic group protocol. Under the newer protocol, brokers decide."""

FIXED: dict[str, Any] = {
    "enable.auto.commit": False,
    "enable.auto.offset.store": False,
    "enable.partition.eof": True,
}
"""Settings that the source's guarantees depend on."""

# Whatever librdkafka would print is also in its errors, which Ebbflow shows to users.
_silent = logging.getLogger("ebbflow.kafka")
_silent.addHandler(logging.NullHandler())
_silent.propagate = False

Partition = tuple[str, int]
"""A topic and the number of one of its partitions."""


@dataclass(frozen=True, slots=True)
class KafkaAccess:
    """The brokers, the user's own librdkafka settings, and the security of the connection.

    ``login`` and ``tls`` are settings, too. An empty ``tls`` means TLS with the certificate
    authorities that this machine trusts. ``answer_within`` is how many seconds brokers may take to
    list their topics.
    """

    brokers: tuple[str, ...]
    config: tuple[tuple[str, str], ...] = ()
    tls: tuple[tuple[str, Secret], ...] | None = None
    login: tuple[tuple[str, Secret], ...] = ()
    answer_within: float = 10.0

    def __str__(self) -> str:
        return ", ".join(self.brokers)

    def settings(self, defaults: dict[str, Any], fixed: dict[str, Any]) -> dict[str, Any]:
        """Returns a client's settings: the user's win over ``defaults``, ``fixed`` over both."""
        tls = "PLAINTEXT" if self.tls is None else "SSL"
        secrets = (*(self.tls or ()), *self.login)
        return {
            "client.id": "ebbflow",
            "security.protocol": f"SASL_{tls}" if self.login else tls,
            "reconnect.backoff.max.ms": 2_000,
            **defaults,
            **dict(self.config),
            **{name: secret.reveal() for name, secret in secrets},
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
    set_timestamp: bool = False


class ClientErrors:
    """The connection errors that a client has reported.

    Calls ``report`` at intervals while no broker can be reached or a broker refuses the client.
    """

    def __init__(self, report: Callable[[str], None] | None = None) -> None:
        self.report = report
        self.refused: KafkaError | None = None
        self.last: KafkaError | None = None
        self._last_report = -math.inf

    def __call__(self, error: KafkaError) -> None:
        """Records an error. "All brokers down" only summarizes the errors of single brokers."""
        down = error.code() == KafkaError._ALL_BROKERS_DOWN
        if error.code() in _REFUSED:
            self.refused = error
        if not down or self.last is None:
            self.last = error
        if (down or self.refused is error) and time.monotonic() - self._last_report > _REPORT_EVERY:
            self._last_report = time.monotonic()
            if self.report is not None:
                self.report(self.text)

    @property
    def text(self) -> str:
        """The last error."""
        return "no answer" if self.last is None else describe_kafka_error(self.last)


def describe_kafka_error(error: KafkaError) -> str:
    """Returns the name and the text of an error on one line."""
    return " ".join(f"{error.name()}: {error.str()}".split())


def consumer_settings(settings: KafkaSourceSettings) -> dict[str, Any]:
    """Returns all settings of the consumer, as librdkafka names them."""
    defaults: dict[str, Any] = {"auto.offset.reset": "earliest"}
    if dict(settings.access.config).get("group.protocol") != "consumer":
        defaults |= CLASSIC
    return settings.access.settings(defaults, FIXED | {"group.id": settings.group})


def make_client(kind: type[Any], settings: dict[str, Any], errors_seen: ClientErrors) -> Any:
    """Returns a producer or consumer; ``SetupError`` if it rejects a setting."""
    try:
        return kind(settings | {"error_cb": errors_seen}, logger=_silent)
    except KafkaException as error:
        raise SetupError(
            f"Kafka's client rejects its settings: {error.args[0].str()}.",
            "Correct config:, tls: or sasl: in the spec.",
        ) from None


def find_topics(
    client: Any,
    topics: Iterable[str],
    access: KafkaAccess,
    errors_seen: ClientErrors,
    may_be_created: bool = False,
) -> None:
    """Makes sure that every topic exists; ``SetupError`` says what is wrong.

    With ``may_be_created`` a missing topic is awaited: brokers may create it when a producer asks
    for it, which takes a moment.
    """
    final = _FORBIDDEN if may_be_created else _FORBIDDEN | _MISSING
    deadline = time.monotonic() + access.answer_within
    for topic in topics:
        while (error := _ask(client, topic)) is not None:
            client.poll(0)  # makes the client report its errors to ``errors_seen``
            if error.code() in final or errors_seen.refused or time.monotonic() > deadline:
                raise explain_unreachable(access, topic, error, errors_seen)
            time.sleep(0.1)


def _ask(client: Any, topic: str) -> KafkaError | None:
    """Returns why the topic cannot be used, or ``None`` if it can."""
    try:
        answer = client.list_topics(topic, timeout=_TRY_FOR).topics[topic]
    except KafkaException as error:
        return error.args[0]  # type: ignore[no-any-return]
    return answer.error  # type: ignore[no-any-return]


def explain_unreachable(
    access: KafkaAccess, topic: str, error: KafkaError, errors_seen: ClientErrors
) -> SetupError:
    """Returns why a topic cannot be used, and what to do."""
    where = f"Kafka at {access}"
    if errors_seen.refused is not None:
        what, next_step = _REFUSED[errors_seen.refused.code()]
        return SetupError(
            f"{where} {what}: {describe_kafka_error(errors_seen.refused)}.", next_step
        )
    if error.code() in _MISSING:
        return SetupError(f"{where} has no topic {topic!r}.", "Create it, or correct topic:.")
    if error.code() in _FORBIDDEN:
        return SetupError(
            f"{where} does not let this login use topic {topic!r}: {describe_kafka_error(error)}.",
            "Give it the rights, or use another login.",
        )
    why = errors_seen.text if error.code() < 0 else describe_kafka_error(error)
    return SetupError(
        f"{where} did not answer within {access.answer_within:.0f} s: {why}.",
        "Check that it is up, and that brokers:, tls: and sasl: are right.",
    )


def commit_and_confirm(consumer: Consumer, offsets: list[TopicPartition]) -> None:
    """Commits offsets and waits until it is confirmed.

    Gives up after a while, or if a partition belongs to another member. Whoever has the partition
    next reads uncommitted messages again.
    """
    deadline = time.monotonic() + _COMMIT_WITHIN
    while True:
        try:
            consumer.commit(offsets=offsets, asynchronous=False)
            return
        except KafkaException as error:
            if error.args[0].code() in _REPLACED or time.monotonic() > deadline:
                return
            time.sleep(0.1)


class GroupOffsets:
    """Asks brokers for a group's progress without being a member. Used by one thread.

    It has its own connection: on the consumer's connection every request would wait for up to half
    a second behind a fetch that waits for messages. Raises ``KafkaException`` if brokers do not
    answer in time.
    """

    def __init__(self, settings: dict[str, Any]) -> None:
        self._client: Consumer = make_client(Consumer, settings, ClientErrors())

    def close(self) -> None:
        """Ends the connection."""
        self._client.close()

    def find_ends(self, partitions: Iterable[Partition]) -> dict[Partition, int]:
        """Returns the end offset of each partition."""
        asked = [TopicPartition(*partition, OFFSET_END) for partition in partitions]
        offsets = self._client.offsets_for_times(asked, timeout=_LOOKUP_WITHIN) if asked else []
        return {(partition.topic, partition.partition): partition.offset for partition in offsets}

    def find_committed(self, partitions: Iterable[Partition]) -> dict[Partition, int | None]:
        """Returns the group's committed offset of each partition; ``None`` if it has none."""
        asked = [TopicPartition(*partition) for partition in partitions]
        offsets = self._client.committed(asked, timeout=_LOOKUP_WITHIN) if asked else []
        return {
            (partition.topic, partition.partition): None
            if partition.offset == OFFSET_INVALID
            else partition.offset
            for partition in offsets
        }

    def has_committed_all(self, topics: Sequence[str]) -> bool:
        """Returns whether the group has committed everything in the topics."""
        every = [(topic, number) for topic in topics for number in self._list_numbers(topic)]
        ends, committed = self.find_ends(every), self.find_committed(every)
        return all((committed[partition] or 0) == ends[partition] for partition in every)

    def _list_numbers(self, topic: str) -> list[int]:
        return list(
            self._client.list_topics(topic, timeout=_LOOKUP_WITHIN).topics[topic].partitions
        )
