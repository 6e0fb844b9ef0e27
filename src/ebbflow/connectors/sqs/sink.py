"""The SQS sink: it sends batches of ten, and each message has its own outcome.

A message that SQS refuses for what it is fails with SQS' reason. If SQS only cannot take it now,
the response is UNAVAILABLE: the vertex waits, and no message is penalised. A standard queue gets
several batches at once. A FIFO queue gets one after another, and none after a batch that fails, so
every group stays in order; a message's id is its deduplication id, so SQS drops copies sent within
five minutes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

from botocore.exceptions import ClientError

from ebbflow.connectors.sqs.sqs_client import SqsAccess, code_of, describe_client_error
from ebbflow.connectors.sqs.sqs_messages import entry_size, write_entry
from ebbflow.domain.errors import SetupError, Unavailable
from ebbflow.domain.message import Datum, Response, Status

Entry = dict[str, Any]
Answers = dict[str, Response]

_BATCH = 10
_BATCH_BYTES = 256 * 1024
_AT_ONCE = 8
# Errors about the message itself, if it is alone in its batch.
_REFUSED = (
    "BatchRequestTooLong",
    "InvalidMessageContents",
    "InvalidParameterValue",
    "InvalidAttributeValue",
    "InvalidParameterCombination",
    "MissingParameter",
    "UnsupportedOperation",
)


class SqsSink:
    """Sends to one queue."""

    def __init__(self, access: SqsAccess) -> None:
        self._access = access
        self._client: Any = None

    def open(self) -> None:
        """Connects; ``SetupError`` without such a queue, ``Unavailable`` during an outage."""
        self._client = self._access.connect()
        self._calls = ThreadPoolExecutor(_AT_ONCE, "sqs-sink")
        self._address = self._access.find(self._client)

    def close(self) -> None:
        """Closes the connections."""
        if self._client is not None:
            self._calls.shutdown()
            self._client.close()

    def __call__(self, data: list[Datum]) -> list[Response]:
        """Sends all messages, and returns a response for each."""
        answers: Answers = {}
        entries = []
        for number, datum in enumerate(data):
            try:
                entries.append(write_entry(number, datum, self._access.is_fifo))
            except ValueError as error:  # an invalid delay or id
                answers[str(number)] = Response.failure(error=str(error))
        batches = list(batches_of(entries))
        sent = self._send_in_order(batches) if self._access.is_fifo else self._send_all(batches)
        for some in sent:
            answers |= some
        taken = Response.ok()
        return [
            replace(answers.get(str(number), taken), id=datum.id)
            for number, datum in enumerate(data)
        ]

    def _send_all(self, batches: Sequence[list[Entry]]) -> Iterable[Answers]:
        return self._calls.map(self._send, batches)

    def _send_in_order(self, batches: Sequence[list[Entry]]) -> Iterator[Answers]:
        trouble: Response | None = None
        for batch in batches:
            if trouble is not None:
                yield _for_all(batch, trouble)
                continue
            answers = self._send(batch)
            waiting = (each for each in answers.values() if each.status is Status.UNAVAILABLE)
            trouble = next(waiting, None)
            yield answers

    def _send(self, batch: list[Entry]) -> Answers:
        """Sends a batch; returns a response for each message that SQS has not accepted."""
        try:
            with self._access.explaining():
                return self._send_batch(batch)
        except (Unavailable, SetupError) as error:
            return _for_all(batch, Response.unavailable(what=_what(error)))

    def _send_batch(self, batch: list[Entry]) -> Answers:
        try:
            answer = self._client.send_message_batch(QueueUrl=self._address, Entries=batch)
        except ClientError as error:
            if code_of(error) not in _REFUSED:
                raise
            if len(batch) == 1:
                return _for_all(batch, Response.failure(error=describe_client_error(error)))
            # SQS may refuse a whole batch for one message: sent alone, the others are accepted.
            answers: Answers = {}
            for entry in batch:
                answers |= self._send_batch([entry])
            return answers
        return {failed["Id"]: _judge(failed) for failed in answer.get("Failed", ())}


def batches_of(entries: Iterable[Entry]) -> Iterator[list[Entry]]:
    """Yields the entries in batches within SQS' limits."""
    batch: list[Entry] = []
    size = 0
    for entry in entries:
        more = entry_size(entry)
        if batch and (len(batch) == _BATCH or size + more > _BATCH_BYTES):
            yield batch
            batch, size = [], 0
        batch.append(entry)
        size += more
    if batch:
        yield batch


def _judge(failed: dict[str, Any]) -> Response:
    why = f"{failed['Code'].rpartition('.')[2]}: {failed.get('Message') or ''}".rstrip(": .")
    if failed.get("SenderFault"):
        return Response.failure(error=why)
    return Response.unavailable(what=why)


def _for_all(batch: Iterable[Entry], response: Response) -> Answers:
    return {entry["Id"]: response for entry in batch}


def _what(error: Unavailable | SetupError) -> str:
    return error.what.rstrip(".")
