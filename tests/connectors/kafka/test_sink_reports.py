"""The Kafka sink on a fake producer with every outcome that is possible, without a broker.

Whatever happens to the messages of a call, none counts as written unless the broker has
confirmed it.
"""

from __future__ import annotations

from unittest.mock import patch

import pytest
from confluent_kafka import KafkaError, KafkaException
from hypothesis import given
from hypothesis import strategies as st

from ebbflow.connectors.kafka.kafka_client import KafkaAccess, KafkaSinkSettings
from ebbflow.connectors.kafka.sink import KafkaSink
from ebbflow.domain.message import Status
from ebbflow.engine import frames

WRITTEN, LOST, REFUSED, UNWANTED, STUCK, SILENT = range(6)
"""The outcomes of a message: stored, given up after a while, refused by the brokers, not taken by
the producer, in flight until it is purged, or in flight forever."""

_STATUSES = {LOST: Status.UNAVAILABLE, STUCK: Status.UNAVAILABLE}
_STATUSES |= {REFUSED: Status.FAILURE, UNWANTED: Status.FAILURE}
_ERRORS = {LOST: KafkaError._MSG_TIMED_OUT, REFUSED: KafkaError.INVALID_RECORD}


class Clock:
    """A clock that advances by a second at each call."""

    def __init__(self):
        self._seconds = 0.0

    def monotonic(self):
        self._seconds += 1.0
        return self._seconds


class Producer:
    """Reports errors only, as the sink configures it; holds ``room`` messages at a time."""

    def __init__(self, outcomes, room):
        self.confirmed: list[bytes] = []
        self._outcomes = outcomes
        self._room = room
        self._queue: list[tuple[bytes, object]] = []

    def produce(self, topic, value, key, partition, callback, on_delivery, timestamp, headers):
        if len(self._queue) >= self._room:
            raise BufferError
        if self._outcomes[value] == UNWANTED:
            raise KafkaException(KafkaError(KafkaError.MSG_SIZE_TOO_LARGE))
        self._queue.append((value, callback))

    def poll(self, timeout):
        self._answer(self._queue[:1])

    def flush(self, timeout):
        self._answer(list(self._queue))
        return len(self._queue)

    def purge(self):
        for message in [*self._queue]:
            if self._outcomes[message[0]] == STUCK:
                self._report(message, KafkaError._PURGE_INFLIGHT)

    def _answer(self, messages):
        for message in messages:
            outcome = self._outcomes[message[0]]
            if outcome == WRITTEN:
                self.confirmed.append(message[0])
                self._queue.remove(message)
            elif outcome in _ERRORS:
                self._report(message, _ERRORS[outcome])

    def _report(self, message, code):
        self._queue.remove(message)
        message[1](KafkaError(code), None)


def rows_of(count, call):
    values = [b"%d in call %d" % (row, call) for row in range(count)]
    return frames.batch_of({"id": [str(row) for row in range(count)], "value": values}, count)


@pytest.mark.guarantee("kafka-skips-no-record")
@given(
    st.lists(st.lists(st.sampled_from(range(6)), min_size=1, max_size=12), min_size=1, max_size=3),
    st.integers(1, 15),
)
def test_an_unconfirmed_message_never_counts_as_written(calls, room):
    outcomes = {b"%d in call %d" % (row, call): end
                for call, every in enumerate(calls) for row, end in enumerate(every)}  # fmt: skip
    producers = []

    def make_client(kind, settings, complaints):
        producers.append(Producer(outcomes, room))
        return producers[-1]

    with (
        patch("ebbflow.connectors.kafka.sink.make_client", make_client),
        patch("ebbflow.connectors.kafka.sink.time", Clock()),
    ):
        sink = KafkaSink(KafkaSinkSettings(KafkaAccess(("nowhere",)), "topic"))
        for call, every in enumerate(calls):
            answers = sink(rows_of(len(every), call))
            confirmed = {value for producer in producers for value in producer.confirmed}
            assert answers.keys() <= set(range(len(every)))
            for row in set(range(len(every))) - answers.keys():
                assert b"%d in call %d" % (row, call) in confirmed
            if SILENT not in every and len(every) < room:
                statuses = {row: answer.status for row, answer in answers.items()}
                assert statuses == {
                    row: _STATUSES[outcome] for row, outcome in enumerate(every) if outcome
                }
