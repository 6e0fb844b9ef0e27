"""The Kafka sink: an answer for each message, after the brokers have answered.

A message is done when all in-sync replicas have it; the producer is idempotent, so its own retries
make no copies. What brokers refuse about a message itself, such as its size, is a failure. What
they only cannot take now comes again, so that an outage sends nothing to the dead letters.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from confluent_kafka import KafkaError, KafkaException, Producer

from ebbflow.connectors.kafka.client import Complaints, describe, find_topics, make_client
from ebbflow.connectors.kafka.records import TOMBSTONE, write_headers
from ebbflow.connectors.kafka.settings import KafkaSinkSettings
from ebbflow.core.outage import away
from ebbflow.message import Datum, Response

_MARGIN = 2.0

_REFUSED = frozenset(
    {
        KafkaError.INVALID_MSG_SIZE,
        KafkaError.INVALID_RECORD,
        KafkaError.INVALID_TIMESTAMP,
        KafkaError.MSG_SIZE_TOO_LARGE,
        KafkaError.RECORD_LIST_TOO_LARGE,
        KafkaError._INVALID_DIFFERENT_RECORD,
    }
)
"""What is wrong with the message, or with another one that it was sent together with."""

DEFAULTS: dict[str, Any] = {"message.timeout.ms": 10_000}
FIXED: dict[str, Any] = {"enable.idempotence": True}

Error = KafkaError | None
"""Why a message was not taken; ``None`` if it was."""


def producer_settings(settings: KafkaSinkSettings) -> dict[str, Any]:
    """Returns all settings of the producer, in librdkafka's words."""
    return settings.access.settings(DEFAULTS, FIXED)


class KafkaSink:
    """Writes messages to one topic."""

    def __init__(self, settings: KafkaSinkSettings) -> None:
        self._settings = settings
        self._producer: Any = None
        options = producer_settings(settings)
        longest = options.get("delivery.timeout.ms", options["message.timeout.ms"])
        self._longest = (int(longest) or DEFAULTS["message.timeout.ms"]) / 1000 + _MARGIN

    def open(self) -> None:
        """Connects; ``SetupError`` if the brokers or the topic are not there."""
        producer = self._make_producer()
        access, topic = self._settings.access, self._settings.topic
        find_topics(producer, [topic], access, self._complaints, made_by_asking=True)
        self._producer = producer

    def _make_producer(self) -> Any:
        self._complaints = Complaints()
        return make_client(Producer, producer_settings(self._settings), self._complaints)

    def close(self) -> None:
        """Nothing is on its way any more: every call waits for its answers."""
        self._producer = None

    def __call__(self, data: list[Datum]) -> list[Response]:
        """Sends all, waits for all, and says what became of each."""
        if self._producer is None:  # after an error that the last one does not get over
            self._producer = self._make_producer()
        self._complaints.last = None
        errors = self._send(data)
        if len(data) > 1:
            self._send_refused_alone(data, errors)
        if any(error is not None and error.fatal() for error in errors):
            self.close()
        return [self._response(*pair) for pair in zip(data, errors, strict=True)]

    def _send_refused_alone(self, data: list[Datum], errors: list[Error]) -> None:
        """Brokers refuse batches as a whole: alone, most of its messages may well be taken."""
        trouble: Error = None
        for index in [index for index, error in enumerate(errors) if _is_refusal(error)]:
            errors[index] = trouble or self._send([data[index]])[0]
            if not _is_refusal(errors[index]):
                trouble = errors[index]  # the others need not wait for brokers that are gone

    def _response(self, datum: Datum, error: Error) -> Response:
        if error is None:
            return Response.ok(datum.id)
        why = describe(error)
        if error.code() == KafkaError._MSG_TIMED_OUT and self._complaints.last is not None:
            why = f"{why} ({self._complaints.text})"
        if _is_refusal(error):
            return Response.failure(datum.id, why)
        return away(datum, why, retried=self._settings.retried)

    def _send(self, data: Sequence[Datum]) -> list[Error]:
        """Returns the answer for each, when all have come or the longest wait is over."""
        errors: list[Error] = [KafkaError(KafkaError._TIMED_OUT)] * len(data)

        def answered(index: int, error: Error, _message: Any) -> None:
            errors[index] = error

        deadline = time.monotonic() + self._longest
        for index, datum in enumerate(data):
            errors[index] = self._produce(datum, partial(answered, index), deadline)
        if self._producer.flush(max(0.0, deadline - time.monotonic())):
            self._producer.purge()
            self._producer.flush(_MARGIN)
        return errors

    def _produce(self, datum: Datum, answered: Callable[..., None], deadline: float) -> Error:
        """Hands one to the producer; why it does not want it, or that there is no answer yet."""
        while True:
            try:
                self._producer.produce(
                    self._settings.topic,
                    value=None if _deletes(datum) else datum.value,
                    key=":".join(datum.keys) if self._settings.set_key and datum.keys else None,
                    headers=write_headers(datum.keys, datum.headers),
                    on_delivery=answered,
                )
                return KafkaError(KafkaError._TIMED_OUT)
            except KafkaException as error:
                return error.args[0]  # type: ignore[no-any-return]
            except BufferError:
                if time.monotonic() > deadline:
                    return KafkaError(KafkaError._QUEUE_FULL)
                self._producer.poll(0.1)  # until some have been answered


def _deletes(datum: Datum) -> bool:
    return not datum.value and TOMBSTONE in datum.headers


def _is_refusal(error: Error) -> bool:
    return error is not None and error.code() in _REFUSED
