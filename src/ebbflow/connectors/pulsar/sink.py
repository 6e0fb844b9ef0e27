"""The Pulsar sink: it sends a chunk at a time and responds when brokers have stored it.

A message is done when the brokers have confirmed it. One that they refuse for what it is, such as
its size, fails. One that they only cannot take now is redelivered, so an outage dead-letters
nothing; if a broker had stored it without confirming, it is stored twice.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pulsar
import pyarrow as pa

from ebbflow.connectors.pulsar.pulsar_client import (
    PulsarAccess,
    PulsarConnection,
    PulsarProducer,
    describe_result,
)
from ebbflow.connectors.pulsar.pulsar_messages import write_messages
from ebbflow.domain.errors import SetupError, Unavailable
from ebbflow.domain.message import Response

_REFUSED = frozenset(
    {pulsar.Result.MessageTooBig, pulsar.Result.InvalidMessage, pulsar.Result.ChecksumError}
)
"""Results about the message itself."""

_OVER = frozenset(
    {
        pulsar.Result.AlreadyClosed,
        pulsar.Result.ProducerFenced,
        pulsar.Result.ProducerNotInitialized,
        pulsar.Result.TopicTerminated,
    }
)
"""Results after which the producer cannot be used any more."""


@dataclass(frozen=True, slots=True)
class PulsarSinkSettings:
    """The topic to write to, and the name of the producer, if any."""

    access: PulsarAccess
    topic: str
    producer_name: str | None = None


class PulsarSink:
    """Sends messages to one topic."""

    def __init__(self, settings: PulsarSinkSettings) -> None:
        self._settings = settings
        self._connection: PulsarConnection | None = None
        self._name: str | None = None

    def open(self) -> None:
        """Connects; ``SetupError`` for a mistake, ``Unavailable`` if no broker answers."""
        settings, self._name = self._settings, self._choose_name()
        connection = PulsarConnection(settings.access)
        try:
            self._sender = PulsarProducer(connection, settings.access, settings.topic, self._name)
        except BaseException:
            connection.close()
            raise
        self._connection = connection

    def _choose_name(self) -> str | None:
        """Returns a name unique to the partition: a topic accepts each name only once."""
        name, partition = self._settings.producer_name, os.environ.get("NUMAFLOW_REPLICA") or "0"
        return name if name is None or partition == "0" else f"{name}-{partition}"

    def close(self) -> None:
        """Closes the connection. Nothing is in flight: every call waits for its confirmations."""
        if self._connection is not None:
            self._connection.close()
        self._connection = None

    def __call__(self, messages: pa.RecordBatch) -> Mapping[int, Response]:
        """Sends all messages, waits, and returns a response for each that is not stored."""
        if self._name != self._choose_name():  # the worker serves another partition now
            self.close()
        try:
            failed = self._send(messages)
        except (Unavailable, SetupError) as error:  # it worked at the start, so it may work again
            self.close()
            return {row: Response.unavailable(what=str(error)) for row in range(messages.num_rows)}
        if failed and not (self._sender.is_connected and _OVER.isdisjoint(failed.values())):
            self.close()
        return {row: self._respond(result) for row, result in failed.items()}

    def _send(self, messages: pa.RecordBatch) -> dict[int, Any]:
        if self._connection is None:  # closed after an error from which it would not recover soon
            self.open()
        for outgoing in write_messages(messages):
            self._sender.send(outgoing.content, **outgoing.facts)
        return self._sender.wait()

    def _respond(self, result: Any) -> Response:
        why = describe_result(result)
        if result in _REFUSED:
            return Response.failure(error=why)
        return Response.unavailable(what=f"{self._settings.access}: {why}")
