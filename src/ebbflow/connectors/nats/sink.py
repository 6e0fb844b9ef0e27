"""A sink that publishes to a subject of NATS, without JetStream.

OK means that the server has it. Whether anybody listens is not known.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import ExitStack

import nats.errors

from ebbflow.connectors.nats.connection import outside_link, renew_link
from ebbflow.connectors.nats.messages import PublishSettings
from ebbflow.errors import AccessError, MessageTooLarge, SetupError
from ebbflow.message import Datum, Response
from ebbflow.nats.outgoing import Outgoing, to_publishes
from ebbflow.nats.publish import check_size


class NatsSink:
    """Publishes each message with its headers and its keys."""

    def __init__(self, settings: PublishSettings) -> None:
        self._settings = settings

    def open(self) -> None:
        """Connects; ``SetupError`` when that cannot be done."""
        self._link = outside_link(self._settings.server, "nats sink")

    def close(self) -> None:
        """Ends the connection; the server has seen everything before."""
        self._link.close()

    def __call__(self, data: list[Datum]) -> list[Response]:
        """Publishes all, and waits until the server has seen them."""
        try:
            self._link = renew_link(self._link, "nats sink")
        except SetupError as error:
            return [self._settings.away(datum, str(error)) for datum in data]
        return self._link.run(self._publish(data))

    async def _publish(self, data: list[Datum]) -> list[Response]:
        messages = {datum.id: self._check(datum) for datum in data}
        fit = [one for one in messages.values() if isinstance(one, Outgoing)]
        trouble, denied = "", set[str]()
        try:
            denied = await self._send(fit)
        except (nats.errors.Error, OSError) as error:
            trouble = f"NATS at {self._settings.server} did not take it: {error or type(error)}"
        return [self._answer(datum, messages[datum.id], trouble, denied) for datum in data]

    def _check(self, datum: Datum) -> Outgoing | str:
        """Returns the message, or why it can never be sent."""
        try:
            message = self._settings.message(datum)
            check_size(self._link.client.max_payload, message.data, message.headers or {})
        except (ValueError, MessageTooLarge) as error:
            return str(error)
        return message

    async def _send(self, messages: Sequence[Outgoing]) -> set[str]:
        """Sends them; returned are the subjects that the login may not publish to."""
        client, denied = self._link.client, set[str]()
        if not client.is_connected:  # it would be kept in the client, and come as a copy later
            raise nats.errors.Error("there is no connection")

        def hear(error: AccessError) -> None:
            denied.add(error.subject)

        with ExitStack() as stack:
            for subject in {message.subject for message in messages}:
                stack.callback(client.when_denied(subject, hear))
            client.send(to_publishes(messages).encode_unanswered())
            await client.flush(math.ceil(self._settings.ack_wait))
        return denied

    def _answer(
        self, datum: Datum, message: Outgoing | str, trouble: str, denied: set[str]
    ) -> Response:
        if isinstance(message, str):
            return Response.failure(datum.id, message)
        if trouble:
            return self._settings.away(datum, trouble)
        if message.subject in denied:
            return Response.failure(datum.id, f"the login may not publish to {message.subject}")
        return Response.ok(datum.id)
