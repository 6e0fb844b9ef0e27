"""The Pub/Sub sink: it publishes batches, and each message has its own outcome.

Pub/Sub accepts or refuses a batch as a whole. A batch that is refused because of a message is sent
again in halves, until each bad message is alone and fails with Pub/Sub's reason. If Pub/Sub only
cannot take messages now, the response is UNAVAILABLE: the vertex waits, and no message is
penalised. With ordering keys, batches are published one after another, and none after a batch that
fails, so every key stays in order.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

from google.api_core import exceptions

from ebbflow.connectors.pubsub.pubsub_client import WITHIN, PubsubAccess, describe_pubsub_error
from ebbflow.connectors.pubsub.source import attributes_of
from ebbflow.domain.errors import SetupError, Unavailable
from ebbflow.domain.message import Datum, Response, Status

_BATCH = 1_000
_BATCH_BYTES = 8_000_000
_AT_ONCE = 4
_PUBLISH_WITHIN = 3 * WITHIN
_REFUSED = (exceptions.InvalidArgument, exceptions.OutOfRange)
_TOO_LARGE = "larger than max"

Batch = list[tuple[Datum, dict[str, Any]]]


@dataclass(frozen=True, slots=True)
class PubsubSinkSettings:
    """A topic, and whether the keys of messages are their ordering keys."""

    access: PubsubAccess
    set_ordering_key: bool = False


class PubsubSink:
    """Publishes to one topic."""

    def __init__(self, settings: PubsubSinkSettings) -> None:
        self._access = settings.access
        self._is_ordered = settings.set_ordering_key
        self._client: Any = None

    def open(self) -> None:
        """Creates the client; the first message shows whether the topic exists."""
        self._client = self._access.publisher()
        self._calls = ThreadPoolExecutor(_AT_ONCE, "pubsub-sink")

    def close(self) -> None:
        """Closes the connection."""
        if self._client is not None:
            self._calls.shutdown()
            self._client.transport.close()

    def __call__(self, data: list[Datum]) -> list[Response]:
        """Publishes all messages, and returns a response for each."""
        batches = list(self._batches(data))
        sent = self._publish_in_order(batches) if self._is_ordered else self._publish_all(batches)
        return [
            replace(response, id=datum.id)
            for datum, response in zip(data, chain.from_iterable(sent), strict=True)
        ]

    def _batches(self, data: Iterable[Datum]) -> Iterator[Batch]:
        batch: Batch = []
        size = 0
        for datum in data:
            message = self._write(datum)
            more = len(datum.value) + sum(map(len, chain(*message["attributes"].items())))
            if batch and (len(batch) == _BATCH or size + more > _BATCH_BYTES):
                yield batch
                batch, size = [], 0
            batch.append((datum, message))
            size += more
        if batch:
            yield batch

    def _write(self, datum: Datum) -> dict[str, Any]:
        keys = list(datum.keys)
        is_ordering_key = self._is_ordered and len(keys) == 1 and bool(keys[0])
        attributes = attributes_of(
            datum.headers, [] if is_ordering_key else keys, empty=not datum.value
        )
        message: dict[str, Any] = {"data": datum.value, "attributes": attributes}
        if self._is_ordered and keys:
            message["ordering_key"] = ":".join(keys)
        return message

    def _publish_all(self, batches: Sequence[Batch]) -> Iterable[list[Response]]:
        return self._calls.map(self._publish, batches)

    def _publish_in_order(self, batches: Sequence[Batch]) -> Iterator[list[Response]]:
        trouble: Response | None = None
        for batch in batches:
            if trouble is not None:
                yield [trouble] * len(batch)
                continue
            responses = self._publish(batch)
            waiting = (each for each in responses if each.status is Status.UNAVAILABLE)
            trouble = next(waiting, None)
            yield responses

    def _publish(self, batch: Batch) -> list[Response]:
        """Publishes a batch; returns a response for each message."""
        try:
            with self._access.explaining():
                return self._publish_at_once(batch)
        except (Unavailable, SetupError) as error:
            return [Response.unavailable(what=error.what.rstrip("."))] * len(batch)

    def _publish_at_once(self, batch: Batch) -> list[Response]:
        request = {"topic": self._access.path, "messages": [message for _, message in batch]}
        try:
            self._client.publish(request, retry=None, timeout=_PUBLISH_WITHIN)
        except exceptions.GoogleAPICallError as error:
            if not _is_refusal(error):
                raise
            if len(batch) == 1:
                return [Response.failure(error=describe_pubsub_error(error))]
            middle = len(batch) // 2
            return self._publish(batch[:middle]) + self._publish(batch[middle:])
        return [Response.ok()] * len(batch)


def _is_refusal(error: exceptions.GoogleAPICallError) -> bool:
    """Returns whether the error is about messages: one is invalid, or the batch is too large."""
    return isinstance(error, _REFUSED) or _TOO_LARGE in str(error)
