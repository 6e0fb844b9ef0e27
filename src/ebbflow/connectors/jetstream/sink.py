"""A sink that publishes to a stream of the user's: OK means that JetStream has stored it.

Each message is answered for by itself. What the server refuses for good is a failure in its words.
"""

from __future__ import annotations

from ebbflow.connectors.nats.connection import outside_link, renew_link
from ebbflow.connectors.nats.messages import PublishSettings
from ebbflow.errors import MessageTooLarge, PermanentPublishError, PublishError, SetupError
from ebbflow.message import Datum, Response
from ebbflow.nats.bulk import publish_all
from ebbflow.nats.outgoing import Outgoing, to_publishes
from ebbflow.nats.publish import PublishRetry, check_size


class JetStreamSink:
    """Publishes each message with its id, its headers and its keys."""

    def __init__(self, settings: PublishSettings) -> None:
        self._settings = settings
        # Sent again for as long as there is time: after silence, without a leader, without room.
        self._retry = PublishRetry(attempts=-1, ack_wait=settings.ack_wait, until_room=True)

    def open(self) -> None:
        """Connects; ``SetupError`` when that cannot be done."""
        self._link = outside_link(self._settings.server, "jetstream sink")

    def close(self) -> None:
        """Ends the connection; everything was confirmed before."""
        self._link.close()

    def __call__(self, data: list[Datum]) -> list[Response]:
        """Publishes all, many at a time."""
        try:
            self._link = renew_link(self._link, "jetstream sink")
        except SetupError as error:
            return [self._settings.away(datum, str(error)) for datum in data]
        return self._link.run(self._publish(data))

    async def _publish(self, data: list[Datum]) -> list[Response]:
        client = self._link.client
        responses: dict[str, Response] = {}
        messages: dict[str, Outgoing] = {}
        for datum in data:
            try:
                messages[datum.id] = message = self._settings.message(datum)
                check_size(client.max_payload, message.data, message.headers or {})
            except (ValueError, MessageTooLarge) as error:
                messages.pop(datum.id, None)
                responses[datum.id] = Response.failure(datum.id, str(error))
        failures = await publish_all(client, to_publishes(list(messages.values())), self._retry)
        failed = dict(zip(messages, range(len(messages)), strict=True))
        for datum in data:
            if datum.id in responses:
                continue
            failure = failures.get(failed[datum.id])
            responses[datum.id] = self._respond(datum, failure)
        return [responses[datum.id] for datum in data]

    def _respond(self, datum: Datum, error: PublishError | None) -> Response:
        if error is None:
            return Response.ok(datum.id)
        if isinstance(error, PermanentPublishError):
            return Response.failure(datum.id, str(error))
        return self._settings.away(datum, str(error))
