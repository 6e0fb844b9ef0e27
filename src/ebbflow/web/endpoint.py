"""Where a web server listens: plain data, whose secret does not show in any text."""

from __future__ import annotations

from dataclasses import dataclass

from ebbflow.domain.secrets import Secret


@dataclass(frozen=True, slots=True)
class Certificate:
    """A certificate with those that vouch for it, and its key, in PEM form."""

    chain: str
    key: Secret


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A host and port to listen on: in the clear, or with TLS.

    TLS has the certificate that was given, or one that is made for it if it is ``self_signed``. An
    ``optional`` endpoint, which nobody asked for, is left out when somebody else has the port.
    """

    host: str
    port: int
    certificate: Certificate | None = None
    self_signed: bool = False
    optional: bool = False

    @property
    def secured(self) -> bool:
        """True with TLS."""
        return self.certificate is not None or self.self_signed
