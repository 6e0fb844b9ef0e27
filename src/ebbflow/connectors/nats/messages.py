"""Messages that come from NATS and go there: keys, headers, subjects and ids.

NATS knows no keys, so they travel in a header: what a sink has written a source reads back.
Headers that begin with ``Nats-`` tell JetStream what to do with the message that has them, and
those of a message that came from one stream are not meant for the next.

A message that is sent has an id that is the same however often it is given to the sink, and that no
other run of a pipeline has which was started over: JetStream stores it once.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ebbflow.core.outage import away
from ebbflow.core.position import LINEAGE
from ebbflow.message import Datum, Response
from ebbflow.nats.address import Addresses
from ebbflow.nats.outgoing import Outgoing

KEYS = "Ebbflow-Keys"
"""The keys of a message, as a JSON list."""

SUBJECT = "Nats-Subject"
"""Where a message was published to."""

_RESERVED = "nats-"


def read_headers(
    subject: str, headers: Mapping[str, str] | None
) -> tuple[list[str], dict[str, str]]:
    """Returns the keys and headers of a message that has come; the subject is a header too."""
    own = dict(headers or {})
    keys = _keys(own.get(KEYS, ""))
    if keys:
        del own[KEYS]
    return keys, own | {SUBJECT: subject}


def _keys(text: str) -> list[str]:
    try:
        keys = json.loads(text)
    except ValueError:
        return []
    fit = isinstance(keys, list) and all(isinstance(key, str) for key in keys)
    return keys if fit else []


def write_headers(keys: Sequence[str], headers: Mapping[str, str]) -> dict[str, str]:
    """Returns the headers that a message takes along."""
    kept = {
        name: value for name, value in headers.items() if not name.lower().startswith(_RESERVED)
    }
    return kept | ({KEYS: json.dumps(list(keys))} if keys else {})


@dataclass(frozen=True, slots=True)
class PublishSettings:
    """A server and a subject to publish to; ``retried`` with a retry strategy. Times in seconds."""

    server: Addresses
    subject: str | None
    subject_header: str | None
    retried: bool
    ack_wait: float

    def message(self, datum: Datum) -> Outgoing:
        """Returns what is sent; ``ValueError`` when NATS could not take it as it is."""
        lineage = os.environ.get(LINEAGE, "")
        headers = write_headers(datum.keys, datum.headers)
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
