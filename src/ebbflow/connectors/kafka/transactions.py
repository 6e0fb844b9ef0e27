"""Writing to Kafka in transactions, each message once.

A call's records, each with a hash of its message's id in a header, become visible together or not
at all. A new writer ends its predecessor's open transaction, which also fences the predecessor, and
reads the hashes at the end of the topic. So a message that is delivered again, because its chunk is
replayed or it was also redelivered, is recognised and not written twice: its outcome is OK.

Duplicates are recognised by message id, not by source offset. Ids work for every kind of source,
for replays that decide differently, and for messages from the redelivery stream.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from hashlib import blake2b
from itertools import islice
from typing import Any, cast

import pyarrow as pa
from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition
from typing_extensions import override

from ebbflow.connectors.kafka.kafka_client import ClientErrors, KafkaSinkSettings, make_client
from ebbflow.connectors.kafka.records import Headers, Records
from ebbflow.connectors.kafka.sink import Errors, KafkaSink, Outbox, Unanswered, is_refusal
from ebbflow.engine.position import LINEAGE

WRITTEN = "__ebbflow_id"
"""The header with the hash of a message's id."""

REMEMBERED = 100_000
"""How many of the last offsets of each partition are read. A replay has fewer messages."""

_BEGIN_WITHIN = 30.0
_END_WITHIN = 20.0
_AT_ONCE = 2_000


def _identity() -> tuple[str, str]:
    """Returns the name of this writer, and a salt that keeps its ids apart from other writers'."""
    environment = os.environ.get
    writer = "/".join(
        environment(f"NUMAFLOW_{name}", "") for name in ("PIPELINE_NAME", "VERTEX_NAME", "REPLICA")
    )
    return writer, f"{writer}/{environment(LINEAGE, '')}/"


class TransactionalOutbox(Outbox):
    """A producer that writes each call in a transaction and knows which messages are written.

    If the outcome of a transaction is in doubt, it raises ``Unanswered`` and is discarded. No
    message counts as written then, and the next outbox finds out which ones are.
    """

    def __init__(self, settings: KafkaSinkSettings) -> None:
        writer, self._salt = _identity()
        super().__init__(settings, {"transactional.id": f"ebbflow/{writer}/{settings.topic}"})
        self._known: dict[str, None] = {}
        self._most = REMEMBERED

    @override
    def begin(self) -> None:
        """Ends a predecessor's open transaction and reads which messages it has written."""
        try:
            self.producer.init_transactions(_BEGIN_WITHIN)
            self._known = dict.fromkeys(_read_written(self._settings))
        except KafkaException as error:
            raise Unanswered(error.args[0]) from None
        self._most = REMEMBERED + len(self._known)

    @override
    def send(self, messages: pa.RecordBatch) -> Errors:
        """Writes the messages that are not written yet, all of them or none."""
        hashes = self._hashes(messages)
        rows = [row for row, written in enumerate(hashes) if written not in self._known]
        if not rows:
            return {}
        some = messages if len(rows) == len(hashes) else messages.take(pa.array(rows))
        if errors := self._transact(some):
            # Nothing of the call is written: rows without their own error get the error that
            # aborted the transaction.
            why = next((e for e in errors.values() if not is_refusal(e)), errors[min(errors)])
            return {row: errors.get(place, why) for place, row in enumerate(rows)}
        self._remember([hashes[row] for row in rows])
        return {}

    def _transact(self, messages: pa.RecordBatch) -> Errors:
        """Writes all in one transaction, or nothing if there is any error."""
        try:
            self.producer.begin_transaction()
            if errors := super().send(messages):
                # After a refused record the producer would fail the next transaction as well.
                self.has_ended = True
                self.producer.abort_transaction(_END_WITHIN)
            else:
                self.commit()
        except (KafkaException, SystemError) as error:
            # If ``flush`` reports a message while it fails with a fatal error, Python raises a
            # SystemError whose cause is the fatal error.
            cause = error.__cause__ if isinstance(error, SystemError) else error
            if not isinstance(cause, KafkaException):
                raise
            raise Unanswered(cause.args[0]) from None
        return errors

    def commit(self) -> None:
        """Makes the records of the transaction visible."""
        self.producer.commit_transaction(_END_WITHIN)

    def _hashes(self, messages: pa.RecordBatch) -> list[str]:
        salted = blake2b(self._salt.encode(), digest_size=12)
        hashes = []
        for message in messages.column("id").to_pylist():
            one = salted.copy()
            one.update(message.encode())
            hashes.append(one.hexdigest())
        return hashes

    def _remember(self, hashes: Sequence[str]) -> None:
        self._known |= dict.fromkeys(hashes)
        for old in list(islice(self._known, max(0, len(self._known) - self._most))):
            del self._known[old]

    @override
    def _write(self, messages: pa.RecordBatch) -> Records:
        records, hashes = super()._write(messages), self._hashes(messages)
        marked = [
            {**headers, WRITTEN: written.encode()}
            for written, headers in zip(hashes, records.headers, strict=False)
        ]
        return records._replace(headers=marked)


class TransactionalKafkaSink(KafkaSink):
    """Writes messages to one topic in transactions, each message once."""

    outbox_kind = TransactionalOutbox

    @override
    def _send_refused_again(self, messages: pa.RecordBatch, errors: Errors) -> None:
        """Sends refused messages again in halves until each refused message is alone."""
        rows = sorted(row for row, error in errors.items() if is_refusal(error))
        for half in (rows[: len(rows) // 2], rows[len(rows) // 2 :]):
            if not half:
                continue
            again = self._send(some := messages.take(pa.array(half)))
            if len(half) > 1:
                self._send_refused_again(some, again)
            for place, row in enumerate(half):
                if place in again:
                    errors[row] = again[place]
                else:
                    del errors[row]


def _read_written(settings: KafkaSinkSettings) -> Iterator[str]:
    """Yields the hashes of committed records at the end of the topic.

    Reads up to the topic's current end. Another writer's open transaction hides records that were
    committed after it began, so this waits for it to end.
    """
    committed = _reader(settings, "read_committed")
    every = _reader(settings, "read_uncommitted")
    try:
        ends = _find_ends(every, settings.topic)
        committed.assign([TopicPartition(settings.topic, *place) for place in _starts(ends)])
        awaited = {number: end for number, (start, end) in ends.items() if end > start}
        deadline = time.monotonic() + _BEGIN_WITHIN
        while awaited:
            for message in committed.consume(_AT_ONCE, 0.5):
                if written := _hash_of(message, awaited):
                    yield written
            if awaited and time.monotonic() > deadline:
                raise KafkaException(KafkaError(KafkaError._TIMED_OUT))
    finally:
        committed.close()
        every.close()


def _reader(settings: KafkaSinkSettings, isolation: str) -> Any:
    own = {"group.id": "ebbflow", "isolation.level": isolation, "enable.partition.eof": True}
    own |= {"enable.auto.commit": False, "auto.offset.reset": "earliest"}
    # A consumer ignores those of the user's settings that are only for producers.
    return make_client(Consumer, settings.access.settings({}, own), ClientErrors())


def _find_ends(reader: Any, topic: str) -> dict[int, tuple[int, int]]:
    """Returns the start and the end of each partition, including uncommitted records."""
    numbers = reader.list_topics(topic, timeout=_BEGIN_WITHIN).topics[topic].partitions
    return {
        number: reader.get_watermark_offsets(TopicPartition(topic, number), timeout=_BEGIN_WITHIN)
        for number in numbers
    }


def _starts(ends: dict[int, tuple[int, int]]) -> Iterator[tuple[int, int]]:
    for number, (start, end) in ends.items():
        yield number, max(start, end - REMEMBERED)


def _hash_of(message: Message, awaited: dict[int, int]) -> str | None:
    """Returns the hash in a record, if any; removes a partition from ``awaited`` at its end."""
    number, offset, error = message.partition() or 0, message.offset() or 0, message.error()
    if error is None:
        headers = cast("Headers", message.headers())
        written = dict(headers or ()).get(WRITTEN)
        return written.decode(errors="replace") if isinstance(written, bytes) else written
    if error.code() != KafkaError._PARTITION_EOF:
        raise KafkaException(error)
    if offset >= awaited.get(number, 0):
        awaited.pop(number, None)
    return None
