"""What the sinks that publish to NATS share: which message is sent, and what trouble means.

A message has an id that is the same however often it is given to the sink, and that no other run
of a pipeline has which was started over: JetStream stores it once. Trouble that is over by itself
does not make a dead letter: the vertex waits for the server, or the sink's ``retryStrategy`` says
what to do if it has one.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

from ebbflow.connectors.nats.headers import outgoing
from ebbflow.connectors.outage import away
from ebbflow.core.position import LINEAGE
from ebbflow.message import Datum, Response
from ebbflow.nats.address import Addresses
from ebbflow.nats.outgoing import Outgoing


@dataclass(frozen=True, slots=True)
class PublishSettings:
    """Where to publish, and whether the sink has a retry strategy. ``ack_wait`` is in seconds."""

    server: Addresses
    subject: str | None
    subject_header: str | None
    retried: bool
    ack_wait: float

    def message(self, datum: Datum) -> Outgoing:
        """Returns what is sent; ``ValueError`` when NATS could not take it as it is."""
        lineage = os.environ.get(LINEAGE, "")
        headers = outgoing(datum.keys, datum.headers)
        return Outgoing(self._subject(datum), datum.value, headers, f"{lineage}/{datum.id}")

    def _subject(self, datum: Datum) -> str:
        said = datum.headers.get(self.subject_header) if self.subject_header else None
        subject = said or self.subject
        if subject is None:
            raise ValueError(f"it has no header {self.subject_header}, and there is no subject")
        return subject

    def away(self, datum: Datum, why: str) -> Response:
        """Returns the answer for a message that may be taken later."""
        return away(datum, why, retried=self.retried)
