"""The Kafka sink: it writes a chunk at a time and responds when the brokers have confirmed it.

A message is done when all in-sync replicas have it. The producer is idempotent, so its own retries
write no duplicates. A message that brokers refuse for what it is, such as its size, fails. One that
they only cannot take now is redelivered, so an outage dead-letters nothing.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping
from functools import partial
from itertools import islice, repeat
from operator import length_hint
from types import MappingProxyType
from typing import Any

import pyarrow as pa
from confluent_kafka import KafkaError, KafkaException, Producer

from ebbflow.connectors.kafka.kafka_client import (
    ClientErrors,
    KafkaSinkSettings,
    describe_kafka_error,
    explain_unreachable,
    find_topics,
    make_client,
)
from ebbflow.connectors.kafka.records import Records, write_records
from ebbflow.domain.message import Response

_MARGIN = 2.0
_ANY_PARTITION = -1

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
"""Errors about the message itself, or about another message in the same batch."""

DEFAULTS: dict[str, Any] = {"message.timeout.ms": 10_000}
FIXED: dict[str, Any] = {
    "enable.idempotence": True,
    # The producer reports only records that it could not write, so written ones cost no Python
    # call. No report means that a record is written, see ``Outbox.send``.
    "delivery.report.only.error": True,
}

Errors = dict[int, KafkaError]
"""Why the messages in these rows were not written. All other rows were."""


def producer_settings(settings: KafkaSinkSettings) -> dict[str, Any]:
    """Returns all settings of the producer, as librdkafka names them."""
    return settings.access.settings(DEFAULTS, FIXED)


class Outbox:
    """A producer, and its reports about the rows of the current call.

    After ``Unanswered`` the whole outbox is discarded, so that a late report is not mistaken for
    one about the rows of a later call.
    """

    def __init__(
        self, settings: KafkaSinkSettings, own: Mapping[str, Any] = MappingProxyType({})
    ) -> None:
        self.errors_seen = ClientErrors()
        self.has_ended = False
        options = producer_settings(settings) | dict(own)
        self.producer: Any = make_client(Producer, options, self.errors_seen)
        longest = options.get("delivery.timeout.ms", options["message.timeout.ms"])
        self._longest = (int(longest) or DEFAULTS["message.timeout.ms"]) / 1000 + _MARGIN
        self._settings = settings
        self._errors: Errors = {}
        # Callbacks are reused: creating new ones for every call would keep triggering full runs
        # of the garbage collector.
        self._reports: list[Callable[..., None]] = []

    def begin(self) -> None:
        """Prepares the producer, once, before the first send; ``Unanswered`` without an answer."""

    def send(self, messages: pa.RecordBatch) -> Errors:
        """Sends messages and returns why some are not written, after the longest wait at most.

        ``Unanswered`` if it is unknown which are written: then none counts as written.
        """
        errors = self._errors = {}
        deadline = time.monotonic() + self._longest
        self._enqueue(messages, deadline)
        if self.producer.flush(max(0.0, deadline - time.monotonic())):
            self.producer.purge()
            if self.producer.flush(_MARGIN):
                raise Unanswered(KafkaError(KafkaError._TIMED_OUT))
        # Nothing is in flight any more. The producer has reported each message that the brokers
        # did not confirm, so the others are written.
        return errors

    def _enqueue(self, messages: pa.RecordBatch, deadline: float) -> None:
        """Passes all messages to the producer, waiting while its queue is full."""
        row, end = 0, messages.num_rows
        self._reports += [partial(self._note, row) for row in range(len(self._reports), end)]
        while (row := self._produce(messages.slice(row), row)) < end:
            if time.monotonic() > deadline:
                self._errors[row] = KafkaError(KafkaError._QUEUE_FULL)
                row += 1
            else:
                self.producer.poll(0.1)  # until some have been answered

    def _produce(self, messages: pa.RecordBatch, first: int) -> int:
        """Passes rows, numbered from ``first`` on, to the producer; returns the first without room.

        Runs no Python code per row. If the producer rejects a row, its error is recorded.
        """
        records = self._write(messages)
        values, end = iter(records.values), first + len(records.values)
        calls = map(
            self.producer.produce, repeat(self._settings.topic), values, records.keys,
            repeat(_ANY_PARTITION), islice(self._reports, first, end), repeat(None),
            records.timestamps, records.headers,
        )  # fmt: skip
        while True:
            try:
                deque(calls, maxlen=0)
                return end
            except BufferError:
                return end - 1 - length_hint(values)
            except KafkaException as error:
                self._errors[end - 1 - length_hint(values)] = error.args[0]

    def _write(self, messages: pa.RecordBatch) -> Records:
        return write_records(messages, self._settings.set_key, self._settings.set_timestamp)

    def _note(self, row: int, error: KafkaError, _message: Any) -> None:
        """Called by the producer for a message that is not written."""
        self._errors[row] = error


class Unanswered(Exception):
    """The producer did not report the outcomes of some messages; ``why`` is the reason."""

    def __init__(self, why: KafkaError) -> None:
        super().__init__(why)
        self.why = why


class KafkaSink:
    """Writes messages to one topic."""

    outbox_kind: type[Outbox] = Outbox

    def __init__(self, settings: KafkaSinkSettings) -> None:
        self._settings = settings
        self._outbox: Outbox | None = None

    def open(self) -> None:
        """Connects; ``SetupError`` if the brokers or the topic cannot be reached."""
        outbox, access = self.outbox_kind(self._settings), self._settings.access
        topics = [self._settings.topic]
        find_topics(outbox.producer, topics, access, outbox.errors_seen, may_be_created=True)
        try:
            outbox.begin()
        except Unanswered as unanswered:
            raise explain_unreachable(
                access, topics[0], unanswered.why, outbox.errors_seen
            ) from None
        self._outbox = outbox

    def close(self) -> None:
        """Drops the producer. Nothing is in flight: every call waits for its confirmations."""
        self._outbox = None

    def __call__(self, messages: pa.RecordBatch) -> Mapping[int, Response]:
        """Sends all messages, waits, and returns a response for each that is not written."""
        try:
            errors_seen = self._begun().errors_seen
        except Unanswered as unanswered:
            answer = self._response(unanswered.why, ClientErrors())
            return dict.fromkeys(range(messages.num_rows), answer)
        errors_seen.last = None
        errors = self._send(messages)
        if messages.num_rows > 1:
            self._send_refused_again(messages, errors)
        if any(error.fatal() for error in errors.values()):
            self.close()
        return {row: self._response(error, errors_seen) for row, error in errors.items()}

    def _send(self, messages: pa.RecordBatch) -> Errors:
        try:
            return self._begun().send(messages)
        except Unanswered as unanswered:
            self.close()
            return dict.fromkeys(range(messages.num_rows), unanswered.why)

    def _begun(self) -> Outbox:
        """Returns the outbox, or a new one if the last one cannot recover from an error."""
        if self._outbox is None or self._outbox.has_ended:
            outbox = self.outbox_kind(self._settings)
            outbox.begin()
            self._outbox = outbox
        return self._outbox

    def _send_refused_again(self, messages: pa.RecordBatch, errors: Errors) -> None:
        """Sends refused messages one by one: brokers refuse whole batches for one bad message."""
        trouble: KafkaError | None = None
        for row in sorted(row for row, error in errors.items() if is_refusal(error)):
            error = trouble or self._send(messages.slice(row, 1)).get(0)
            if error is None:
                del errors[row]
                continue
            errors[row] = error
            if not is_refusal(error):
                trouble = error  # the other rows need not wait for unavailable brokers

    def _response(self, error: KafkaError, errors_seen: ClientErrors) -> Response:
        why = describe_kafka_error(error)
        if error.code() == KafkaError._MSG_TIMED_OUT and errors_seen.last is not None:
            why = f"{why} ({errors_seen.text})"
        if is_refusal(error):
            return Response.failure(error=why)
        return Response.unavailable(what=why)


def is_refusal(error: KafkaError) -> bool:
    """Returns whether the error is about the message itself."""
    return error.code() in _REFUSED
