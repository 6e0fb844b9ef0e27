"""The Kafka sink: it writes a chunk at a time, and answers when the brokers have confirmed it.

A message is done when all in-sync replicas have it; the producer is idempotent, so its own retries
make no copies. What brokers refuse about a message itself, such as its size, is a failure. What
they only cannot take now comes again, so that an outage sends nothing to the dead letters.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping
from functools import partial
from itertools import islice, repeat
from operator import length_hint
from typing import Any

import pyarrow as pa
from confluent_kafka import KafkaError, KafkaException, Producer

from ebbflow.connectors.kafka.kafka_client import (
    ClientErrors,
    KafkaSinkSettings,
    describe_kafka_error,
    find_topics,
    make_client,
)
from ebbflow.connectors.kafka.records import write_records
from ebbflow.domain.message import RowResponse

_MARGIN = 2.0
_ANY_PARTITION, _NOW = -1, 0

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
"""Errors about the message itself, or about another one that it was sent together with."""

DEFAULTS: dict[str, Any] = {"message.timeout.ms": 10_000}
FIXED: dict[str, Any] = {
    "enable.idempotence": True,
    # Only a record that is not written is reported, and the others cost no call of Python code.
    # That they are written follows from there being no report, see ``Outbox.send``.
    "delivery.report.only.error": True,
}

Errors = dict[int, KafkaError]
"""Why the messages in these rows were not taken; all others were."""


def producer_settings(settings: KafkaSinkSettings) -> dict[str, Any]:
    """Returns all settings of the producer, in librdkafka's words."""
    return settings.access.settings(DEFAULTS, FIXED)


class Outbox:
    """A producer, and what it has reported about the rows that it was given.

    When an answer stays out, the whole outbox is thrown away: what is reported later than that
    must not be taken for an answer about the rows of another call.
    """

    def __init__(self, settings: KafkaSinkSettings) -> None:
        self.errors_seen = ClientErrors()
        options = producer_settings(settings)
        self.producer: Any = make_client(Producer, options, self.errors_seen)
        longest = options.get("delivery.timeout.ms", options["message.timeout.ms"])
        self._longest = (int(longest) or DEFAULTS["message.timeout.ms"]) / 1000 + _MARGIN
        self._settings = settings
        self._errors: Errors = {}
        # Made once for each row that a call ever had: new ones would have the collector of
        # garbage look at everything, again and again.
        self._reports: list[Callable[..., None]] = []

    def send(self, messages: pa.RecordBatch) -> Errors:
        """Returns why messages are not written, when all are or the longest wait is over.

        ``Unanswered`` if it is not known which are: then none counts as written.
        """
        errors = self._errors = {}
        deadline = time.monotonic() + self._longest
        self._enqueue(messages, deadline)
        if self.producer.flush(max(0.0, deadline - time.monotonic())):
            self.producer.purge()
            if self.producer.flush(_MARGIN):
                raise Unanswered
        # Nothing is on its way any more. Of each message that the brokers have not confirmed the
        # producer has reported so: the others are written.
        return errors

    def _enqueue(self, messages: pa.RecordBatch, deadline: float) -> None:
        """Hands all to the producer; where its queue is full, as soon as there is room again."""
        row, end = 0, messages.num_rows
        self._reports += [partial(self._note, row) for row in range(len(self._reports), end)]
        while (row := self._produce(messages.slice(row), row)) < end:
            if time.monotonic() > deadline:
                self._errors[row] = KafkaError(KafkaError._QUEUE_FULL)
                row += 1
            else:
                self.producer.poll(0.1)  # until some have been answered

    def _produce(self, messages: pa.RecordBatch, first: int) -> int:
        """Hands rows to the producer, from ``first`` on; returns the first it has no room for.

        No Python code of ours runs for a single row. The error of one that the producer does not
        want is its answer.
        """
        records = write_records(messages, self._settings.set_key)
        values, end = iter(records.values), first + len(records.values)
        calls = map(
            self.producer.produce, repeat(self._settings.topic), values, records.keys,
            repeat(_ANY_PARTITION), islice(self._reports, first, end), repeat(None), repeat(_NOW),
            records.headers,
        )  # fmt: skip
        while True:
            try:
                deque(calls, maxlen=0)
                return end
            except BufferError:
                return end - 1 - length_hint(values)
            except KafkaException as error:
                self._errors[end - 1 - length_hint(values)] = error.args[0]

    def _note(self, row: int, error: KafkaError, _message: Any) -> None:
        """Called by the producer for a message that is not written."""
        self._errors[row] = error


class Unanswered(Exception):
    """The producer does not say of some messages what became of them."""


class KafkaSink:
    """Writes messages to one topic."""

    def __init__(self, settings: KafkaSinkSettings) -> None:
        self._settings = settings
        self._outbox: Outbox | None = None

    def open(self) -> None:
        """Connects; ``SetupError`` if the brokers or the topic are not there."""
        outbox, access, topic = Outbox(self._settings), self._settings.access, self._settings.topic
        find_topics(outbox.producer, [topic], access, outbox.errors_seen, made_by_asking=True)
        self._outbox = outbox

    def close(self) -> None:
        """Drops the producer. Nothing is on its way any more: every call waits for its answers."""
        self._outbox = None

    def __call__(self, messages: pa.RecordBatch) -> Mapping[int, RowResponse]:
        """Sends all, waits for all, and returns an answer for each that is not written."""
        if self._outbox is None:  # after an error that the last one does not get over
            self._outbox = Outbox(self._settings)
        errors_seen = self._outbox.errors_seen
        errors_seen.last = None
        errors = self._send(messages)
        if messages.num_rows > 1:
            self._send_refused_alone(messages, errors)
        if any(error.fatal() for error in errors.values()):
            self.close()
        return {row: self._response(error, errors_seen) for row, error in errors.items()}

    def _send(self, messages: pa.RecordBatch) -> Errors:
        if self._outbox is None:
            self._outbox = Outbox(self._settings)
        try:
            return self._outbox.send(messages)
        except Unanswered:
            self.close()
            return dict.fromkeys(range(messages.num_rows), KafkaError(KafkaError._TIMED_OUT))

    def _send_refused_alone(self, messages: pa.RecordBatch, errors: Errors) -> None:
        """Sends again: brokers refuse batches as a whole, and alone most may well be taken."""
        trouble: KafkaError | None = None
        for row in sorted(row for row, error in errors.items() if _is_refusal(error)):
            error = trouble or self._send(messages.slice(row, 1)).get(0)
            if error is None:
                del errors[row]
                continue
            errors[row] = error
            if not _is_refusal(error):
                trouble = error  # the others need not wait for brokers that are gone

    def _response(self, error: KafkaError, errors_seen: ClientErrors) -> RowResponse:
        why = describe_kafka_error(error)
        if error.code() == KafkaError._MSG_TIMED_OUT and errors_seen.last is not None:
            why = f"{why} ({errors_seen.text})"
        if _is_refusal(error):
            return RowResponse.failure(why)
        return RowResponse.unavailable(why)


def _is_refusal(error: KafkaError) -> bool:
    return error.code() in _REFUSED
