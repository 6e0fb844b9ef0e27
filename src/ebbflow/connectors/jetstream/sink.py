"""A sink that publishes to a stream of the user's: OK means that JetStream has stored it.

Each message is answered for by itself. What the server refuses for good is a failure in its words.
"""

from __future__ import annotations

import pyarrow as pa

from ebbflow.connectors.nats.connection import outside_link, renew_link
from ebbflow.connectors.nats.messages import PublishSettings
from ebbflow.domain.errors import PermanentPublishError, PublishError, SetupError
from ebbflow.domain.message import RowResponse
from ebbflow.nats.bulk import publish_all
from ebbflow.nats.publish import PublishRetry, WaitForRoom


class JetStreamSink:
    """Publishes each message with its id, its headers and its keys; all of a chunk at once."""

    def __init__(self, settings: PublishSettings) -> None:
        self._settings = settings
        # Sent again for as long as there is time: after silence, without a leader, without room.
        self._retry = PublishRetry(attempts=-1, ack_wait=settings.ack_wait)

    def open(self) -> None:
        """Connects; ``SetupError`` when that cannot be done."""
        self._link = outside_link(self._settings.server, "jetstream sink")

    def close(self) -> None:
        """Ends the connection; everything was confirmed before."""
        self._link.close()

    def __call__(self, rows: pa.RecordBatch) -> dict[int, RowResponse] | None:
        """Publishes all rows; returns when each is confirmed or has its reason why not."""
        try:
            self._link = renew_link(self._link, "jetstream sink")
        except SetupError as error:
            return dict.fromkeys(range(rows.num_rows), self._settings.away(str(error)))
        client = self._link.client
        outbound = self._settings.outgoing(rows, client.max_payload)
        failures = self._link.run(
            publish_all(client, outbound.messages, self._retry, room=WaitForRoom.DEADLINE)
        )
        return outbound.answer({n: self._respond(error) for n, error in failures.items()})

    def _respond(self, error: PublishError) -> RowResponse:
        if isinstance(error, PermanentPublishError):
            return RowResponse.failure(str(error))
        return self._settings.away(str(error))
