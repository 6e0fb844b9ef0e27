"""The settings of the HTTP source and sink: plain data that the driver makes from a spec.

The sink's go to workers. Secrets are in them, none of which shows in any text.
"""

from __future__ import annotations

import ssl
from dataclasses import dataclass

from ebbflow.domain import secrets
from ebbflow.domain.secrets import Secret
from ebbflow.web.endpoint import Endpoint


@dataclass(frozen=True, slots=True)
class HttpSourceSettings:
    """The limits within which posts are taken in. Times are in seconds.

    ``read_timeout`` is for one request to arrive as a whole, ``ack_wait`` for JetStream to confirm
    it; ``in_flight`` requests at most are between the two.
    """

    endpoints: tuple[Endpoint, ...]
    token: Secret | None = None
    read_timeout: float = 10.0
    ack_wait: float = 5.0
    in_flight: int = 1_000


@dataclass(frozen=True, slots=True)
class ClientTls:
    """The authorities to trust, and the client's own certificate with its key, in PEM form."""

    ca: str | None = None
    cert: str | None = None
    key: Secret | None = None

    def context(self) -> ssl.SSLContext:
        """Returns a client's TLS, with the server's name checked."""
        context = secrets.trusting(self.ca)
        if self.cert is not None and self.key is not None:
            secrets.identify(context, self.cert, self.key.reveal())
        return context


@dataclass(frozen=True, slots=True)
class BatchSettings:
    """The most messages, and about the most bytes, of one request."""

    format: str = "ndjson"
    size: int = 500
    max_bytes: int = 4 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class HttpSinkSettings:
    """An address to send messages to, and how. ``timeout`` is in seconds, for one request.

    ``concurrency`` is the number of requests at a time, ``login`` a user and a password.
    """

    url: str
    method: str = "POST"
    headers: tuple[tuple[str, str], ...] = ()
    token: Secret | None = None
    login: tuple[Secret, Secret] | None = None
    tls: ClientTls | None = None
    timeout: float = 10.0
    concurrency: int = 32
    batch: BatchSettings | None = None
