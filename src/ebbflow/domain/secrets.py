"""A secret as a value: usable and picklable, but shown in no text."""

from __future__ import annotations

import re
import ssl
import tempfile
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Secret:
    """A password, token or key. Only ``reveal`` returns it."""

    _value: str = field(repr=False)

    def reveal(self) -> str:
        """Returns the secret itself."""
        return self._value

    def __str__(self) -> str:
        return "(secret)"


# Bundles have comments between the certificates, which need not be ASCII.
_CERTIFICATE = re.compile(r"-----BEGIN CERTIFICATE-----[^-]+-----END CERTIFICATE-----")


def trusting(ca: str | None) -> ssl.SSLContext:
    """Returns a client's TLS context that trusts these certificates, or else the system's."""
    blocks = None if ca is None else "\n".join(_CERTIFICATE.findall(ca))
    try:
        if blocks == "":
            raise ValueError
        context = ssl.create_default_context(cadata=blocks)
    except (ssl.SSLError, ValueError):
        raise ValueError("is not a certificate in PEM form") from None
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    return context


def identify(context: ssl.SSLContext, cert: str, key: str) -> None:
    """Makes the client present its own certificate."""
    if "ENCRYPTED" in key:
        raise ValueError("the key has a passphrase; give one without")
    # OpenSSL reads a key only from a file: here a temporary one, deleted at once.
    with tempfile.NamedTemporaryFile("w", encoding="ascii", errors="replace") as file:
        file.write(f"{cert}\n{key}\n")
        file.flush()
        try:
            context.load_cert_chain(file.name, password="")
        except (ssl.SSLError, ValueError):
            raise ValueError("are not a certificate and its key, in PEM form") from None
