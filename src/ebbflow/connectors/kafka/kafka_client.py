"""The settings of Kafka clients, making clients, and saying what keeps them from their topics.

Settings are plain data that the driver makes for workers. They hold the contents of files and the
secrets themselves, none of which shows in any text.

A client reconnects by itself for as long as it takes. Only at its start its brokers and topics
have to be there: what is wrong then is most likely a mistake, and is told as a ``SetupError``.
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
_TELL_EVERY = 30.0
_LOOKUP_WITHIN = 5.0
_COMMIT_WITHIN = 3.0

_REFUSED = {
    KafkaError._AUTHENTICATION: ("refused the login", "Correct sasl: in the spec."),
    KafkaError.SASL_AUTHENTICATION_FAILED: ("refused the login", "Correct sasl: in the spec."),
    KafkaError._SSL: ("cannot be talked to by TLS", "Correct tls: in the spec."),
}
"""The errors that no further attempt gets over: what each means, and what to do."""
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
"""Errors that say that a partition is another member's already."""

CLASSIC: dict[str, Any] = {
    "partition.assignment.strategy": "cooperative-sticky",
    # A member that was killed is missed after this time, and its partitions go to others.
    "session.timeout.ms": 10_000,
    "heartbeat.interval.ms": 1_000,
}
"""Settings of the classic group protocol; of the newer one, brokers decide."""

FIXED: dict[str, Any] = {
    "enable.auto.commit": False,
    "enable.auto.offset.store": False,
    "enable.partition.eof": True,
}
"""Settings that the promises of the source rest on."""

# What librdkafka would print is told by its errors as well, where a person sees them.
_silent = logging.getLogger("ebbflow.kafka")
_silent.addHandler(logging.NullHandler())
_silent.propagate = False

Partition = tuple[str, int]
"""A topic and the number of one of its partitions."""


@dataclass(frozen=True, slots=True)
class KafkaAccess:
    """The brokers, the librdkafka settings of the user's own, and what protects the connection.

    ``login`` and ``tls`` are settings as well, the latter even if there are none: then those are
    trusted that this machine trusts. ``answer_within`` is how many seconds brokers may take to say
    which topics there are.
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
    """The errors that a client has reported about its connections: why it does not get on.

    ``tell`` hears when no broker can be reached or one refuses us, now and then.
    """

    def __init__(self, tell: Callable[[str], None] | None = None) -> None:
        self.tell = tell
        self.refused: KafkaError | None = None
        self.last: KafkaError | None = None
        self._last_told = -math.inf

    def __call__(self, error: KafkaError) -> None:
        """Notes an error; that all brokers are down only sums up the others."""
        down = error.code() == KafkaError._ALL_BROKERS_DOWN
        if error.code() in _REFUSED:
            self.refused = error
        if not down or self.last is None:
            self.last = error
        if (down or self.refused is error) and time.monotonic() - self._last_told > _TELL_EVERY:
            self._last_told = time.monotonic()
            if self.tell is not None:
                self.tell(self.text)

    @property
    def text(self) -> str:
        """The last complaint."""
        return "no answer" if self.last is None else describe_kafka_error(self.last)


def describe_kafka_error(error: KafkaError) -> str:
    """Returns an error on one line, by its name and what it says."""
    return " ".join(f"{error.name()}: {error.str()}".split())


def consumer_settings(settings: KafkaSourceSettings) -> dict[str, Any]:
    """Returns all settings of the consumer, in librdkafka's words."""
    defaults: dict[str, Any] = {"auto.offset.reset": "earliest"}
    if dict(settings.access.config).get("group.protocol") != "consumer":
        defaults |= CLASSIC
    return settings.access.settings(defaults, FIXED | {"group.id": settings.group})


def make_client(kind: type[Any], settings: dict[str, Any], errors_seen: ClientErrors) -> Any:
    """Returns a producer or consumer; ``SetupError`` if it does not know a setting."""
    try:
        return kind(settings | {"error_cb": errors_seen}, logger=_silent)
    except KafkaException as error:
        raise SetupError(
            f"Kafka's client does not take its settings: {error.args[0].str()}.",
            "Correct config:, tls: or sasl: in the spec.",
        ) from None


def find_topics(
    client: Any,
    topics: Iterable[str],
    access: KafkaAccess,
    errors_seen: ClientErrors,
    made_by_asking: bool = False,
) -> None:
    """Makes sure that every topic is there; ``SetupError`` says what is wrong.

    Brokers may make a topic when a producer asks for it, and that takes a moment.
    """
    final = _FORBIDDEN if made_by_asking else _FORBIDDEN | _MISSING
    deadline = time.monotonic() + access.answer_within
    for topic in topics:
        while (error := _ask(client, topic)) is not None:
            client.poll(0)  # what went wrong is told to ``errors_seen``
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
        "See whether it is up, and whether brokers:, tls: and sasl: are right.",
    )


def commit_for_certain(consumer: Consumer, offsets: list[TopicPartition]) -> None:
    """Returns when the offsets are committed. What cannot be committed is read again by others."""
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
    """Asks brokers how far a group is, without being a member. Used by one thread.

    It has its own connection: on the one that fetches, every question waits for half a second
    behind a fetch that waits for messages. What brokers do not answer in time raises
    ``KafkaException``.
    """

    def __init__(self, settings: dict[str, Any]) -> None:
        self._client: Consumer = make_client(Consumer, settings, ClientErrors())

    def close(self) -> None:
        """Ends the connection."""
        self._client.close()

    def find_ends(self, partitions: Iterable[Partition]) -> dict[Partition, int]:
        """Returns the offset behind the last message of each."""
        asked = [TopicPartition(*partition, OFFSET_END) for partition in partitions]
        offsets = self._client.offsets_for_times(asked, timeout=_LOOKUP_WITHIN) if asked else []
        return {(partition.topic, partition.partition): partition.offset for partition in offsets}

    def find_committed(self, partitions: Iterable[Partition]) -> dict[Partition, int | None]:
        """Returns what the group has committed of each; ``None`` where it never has."""
        asked = [TopicPartition(*partition) for partition in partitions]
        offsets = self._client.committed(asked, timeout=_LOOKUP_WITHIN) if asked else []
        return {
            (partition.topic, partition.partition): None
            if partition.offset == OFFSET_INVALID
            else partition.offset
            for partition in offsets
        }

    def has_committed_all(self, topics: Sequence[str]) -> bool:
        """Returns whether the group has committed everything that is in the topics."""
        every = [(topic, number) for topic in topics for number in self._list_numbers(topic)]
        ends, committed = self.find_ends(every), self.find_committed(every)
        return all((committed[partition] or 0) == ends[partition] for partition in every)

    def _list_numbers(self, topic: str) -> list[int]:
        return list(
            self._client.list_topics(topic, timeout=_LOOKUP_WITHIN).topics[topic].partitions
        )
