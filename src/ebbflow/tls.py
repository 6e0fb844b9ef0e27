"""Certificates as text, made ready for a client's TLS.

What is wrong with one is a ``ValueError`` whose text goes on from its name and does not hold it.
"""

from __future__ import annotations

import re
import ssl
import tempfile

# Bundles have comments between the certificates, in any characters.
_CERTIFICATE = re.compile(r"-----BEGIN CERTIFICATE-----[^-]+-----END CERTIFICATE-----")


def trusting(ca: str | None) -> ssl.SSLContext:
    """A client's TLS that trusts these certificates, or else what the system trusts."""
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
    """Have the client show a certificate of its own."""
    if "ENCRYPTED" in key:
        raise ValueError("the key has a passphrase; give one without")
    # OpenSSL takes a key from a file only: one of our own that is gone again at once.
    with tempfile.NamedTemporaryFile("w", encoding="ascii", errors="replace") as file:
        file.write(f"{cert}\n{key}\n")
        file.flush()
        try:
            context.load_cert_chain(file.name, password="")
        except (ssl.SSLError, ValueError):
            raise ValueError("are not a certificate and its key, in PEM form") from None
