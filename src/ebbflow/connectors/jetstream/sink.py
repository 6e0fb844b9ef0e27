"""A sink that publishes to a stream of the user's: OK means that JetStream has stored it.

Each message is answered for by itself. What the server refuses for good is a failure in its words.
"""

from __future__ import annotations

import asyncio

from ebbflow.connectors.nats.connection import outside_link, renew_link
from ebbflow.connectors.nats.messages import PublishSettings
from ebbflow.errors import MessageTooLarge, PermanentPublishError, PublishError, SetupError
from ebbflow.message import Datum, Response
from ebbflow.nats.publish import PublishRetry, publish

_WINDOW = 500


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
        gate = asyncio.Semaphore(_WINDOW)

        async def one(datum: Datum) -> Response:
            async with gate:
                return await self._publish_one(datum)

        return await asyncio.gather(*map(one, data))

    async def _publish_one(self, datum: Datum) -> Response:
        try:
            message = self._settings.message(datum)
            await publish(
                self._link.client,
                message.subject,
                message.data,
                message.headers,
                retry=self._retry,
            )
        except (ValueError, MessageTooLarge, PermanentPublishError) as error:
            return Response.failure(datum.id, str(error))
        except PublishError as error:
            return self._settings.away(datum, str(error))
        return Response.ok(datum.id)
