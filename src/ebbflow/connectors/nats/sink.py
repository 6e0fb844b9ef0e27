"""The sinks that publish to NATS: to a subject, or to the stream that has the subject.

OK from ``NatsSink`` means that the server has the message; there may be no subscriber. OK from
``JetStreamSink`` means that the stream has stored it, once.
"""

from __future__ import annotations

import math
from contextlib import ExitStack
from typing import ClassVar

import nats.errors
import pyarrow as pa

from ebbflow.connectors.nats.messages import PublishSettings, outside_link, renew_link
from ebbflow.domain.errors import AccessError, PermanentPublishError, PublishError, SetupError
from ebbflow.domain.message import Response
from ebbflow.nats.bulk import publish_all
from ebbflow.nats.publish import PublishRetry, WaitForRoom
from ebbflow.nats.wire import Publishes


class _Publishing:
    """A sink with one connection, for as long as its worker serves the vertex."""

    NAME: ClassVar[str]

    def __init__(self, settings: PublishSettings) -> None:
        self._settings = settings

    def open(self) -> None:
        """Connects; ``SetupError`` if that fails."""
        self._link = outside_link(self._settings.server, self.NAME)

    def close(self) -> None:
        """Closes the connection; the server has received everything by then."""
        self._link.close()

    def __call__(self, rows: pa.RecordBatch) -> dict[int, Response] | None:
        """Publishes all rows; returns when each is confirmed or has failed."""
        try:
            self._link = renew_link(self._link, self.NAME)
        except SetupError as error:
            return dict.fromkeys(range(rows.num_rows), Response.unavailable(what=str(error)))
        outbound = self._settings.outgoing(rows, self._link.client.max_payload)
        return outbound.answer(self._link.run(self._publish(outbound.messages)))

    async def _publish(self, messages: Publishes) -> dict[int, Response]:
        """Publishes messages; returns the responses for those that failed, by number."""
        raise NotImplementedError


class NatsSink(_Publishing):
    """Publishes each message with its headers and its keys."""

    NAME = "nats sink"

    async def _publish(self, messages: Publishes) -> dict[int, Response]:
        try:
            denied = await self._send(messages)
        except (nats.errors.Error, OSError) as error:
            trouble = f"NATS at {self._settings.server} did not accept it: {error or type(error)}"
            return dict.fromkeys(range(len(messages)), Response.unavailable(what=trouble))
        return {
            number: Response.failure(error=f"the login may not publish to {subject.decode()}")
            for number, subject in enumerate(messages.subjects if denied else ())
            if subject.decode() in denied
        }

    async def _send(self, messages: Publishes) -> set[str]:
        """Sends messages; returns the subjects that the login may not publish to."""
        client, denied = self._link.client, set[str]()
        if not client.is_connected:  # the client would keep them and send duplicates later
            raise nats.errors.Error("there is no connection")

        def note_denied(error: AccessError) -> None:
            denied.add(error.subject)

        with ExitStack() as stack:
            for subject in set(messages.subjects):
                stack.callback(client.when_denied(subject.decode(), note_denied))
            client.send(messages.encode_unanswered())
            await client.flush(math.ceil(self._settings.ack_wait))
        return denied


class JetStreamSink(_Publishing):
    """Publishes each message with its id, its headers and its keys; all of a chunk at once."""

    NAME = "jetstream sink"

    def __init__(self, settings: PublishSettings) -> None:
        super().__init__(settings)
        # Retried until the deadline: on silence, a missing leader, or a full stream.
        self._retry = PublishRetry(attempts=-1, ack_wait=settings.ack_wait)

    async def _publish(self, messages: Publishes) -> dict[int, Response]:
        failures = await publish_all(
            self._link.client, messages, self._retry, room=WaitForRoom.DEADLINE
        )
        return {number: _respond(error) for number, error in failures.items()}


def _respond(error: PublishError) -> Response:
    if isinstance(error, PermanentPublishError):
        return Response.failure(error=str(error))
    return Response.unavailable(what=str(error))
