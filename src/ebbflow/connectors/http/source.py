"""The HTTP source: a message is what somebody posts to ``/vertices/{name}``.

A feed: what is posted is stored in the vertex's buffer, and a post is answered with 200 when
JetStream has confirmed that, not before. A post with an ``x-numaflow-id`` that was answered so
before is stored once, also across restarts, for as long as the buffer knows copies.

The settings are here, light enough for workers, which get them with their plans. ``feed`` is what
takes posts in, ``listener`` is the server, ``request`` says what a post means, ``seen`` remembers
ids.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ebbflow.buffers.feed import Feed, Spot
from ebbflow.secret import Secret

if TYPE_CHECKING:
    from ebbflow.connectors.http.spec import HttpSource


@dataclass(frozen=True, slots=True)
class Certificate:
    """A certificate with those that vouch for it, and its key, in PEM form."""

    chain: str
    key: Secret


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where to listen: in the clear, or with TLS if there is a certificate."""

    host: str
    port: int
    certificate: Certificate | None = None


@dataclass(frozen=True, slots=True)
class HttpSettings:
    """How posts are taken in. Times are in seconds.

    ``read_timeout`` is for one request to arrive as a whole, ``ack_wait`` for JetStream to confirm
    it; ``in_flight`` requests at most are between the two.
    """

    endpoint: Endpoint
    token: Secret | None = None
    read_timeout: float = 10.0
    ack_wait: float = 5.0
    in_flight: int = 1_000

    @classmethod
    def of(cls, section: HttpSource, vertex: str) -> HttpSettings:
        """From a spec, with all secrets read; ``vertex`` is whose they are."""
        where = f"the http source {vertex}"
        token = section.auth.token.read(f"the token of {where}") if section.auth else None
        return cls(
            Endpoint(section.host, section.port, _certificate(section, where)),
            token,
            section.read_timeout / 1000,
            section.ack_wait / 1000,
            section.max_in_flight,
        )

    def feed(self, spot: Spot) -> Feed:
        """The feed, not started yet."""
        from ebbflow.connectors.http.feed import HttpFeed  # a web server, which workers do without

        return HttpFeed(self, spot)


def _certificate(section: HttpSource, where: str) -> Certificate | None:
    if section.tls is None:
        return None
    chain = section.tls.cert_secret.read(f"the certificate of {where}").reveal()
    return Certificate(chain, section.tls.key_secret.read(f"the key of {where}"))
