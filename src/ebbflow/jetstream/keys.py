"""Keys and certificates as text: whether they are what they should be, and how TLS takes them.

What is wrong with one is a ``ValueError`` whose text goes on from its name and does not hold it.
"""

from __future__ import annotations

import re
import ssl
import tempfile

_JWT = re.compile(r"-{3,} *BEGIN NATS USER JWT *-{3,}\s+([\w-]+\.[\w-]+\.[\w-]+)\s")
_SEED = re.compile(r"-{3,} *BEGIN USER NKEY SEED *-{3,}\s+(\w+)\s")

# Bundles have comments between the certificates, in any characters.
_CERTIFICATE = re.compile(r"-----BEGIN CERTIFICATE-----[^-]+-----END CERTIFICATE-----")


def user_seed(text: str) -> str:
    """The seed of a user's nkey, without spaces around it."""
    import nkeys  # takes a while, and few need it

    seed = text.strip()
    try:
        prefix, raw = nkeys.decode_seed(bytearray(seed.encode()))
        whole = nkeys.encode_seed(bytes(raw), prefix) == seed.encode()
    except (nkeys.NkeysError, ValueError, IndexError):
        whole, prefix = False, None
    if not whole or prefix != nkeys.PREFIX_BYTE_USER:
        raise ValueError("is not the seed of a user's nkey, which begins with SU")
    return seed


def credentials(text: str) -> str:
    """A .creds file in its plainest form, with a user's JWT and the seed it was made for."""
    jwt, seed = _JWT.search(f"{text}\n"), _SEED.search(f"{text}\n")
    if jwt is None or seed is None:
        raise ValueError("is not a .creds file with a user's JWT and its seed")
    try:
        checked = user_seed(seed[1])
    except ValueError as error:
        raise ValueError(f"has a seed that {error}") from None
    return (
        f"-----BEGIN NATS USER JWT-----\n{jwt[1]}\n------END NATS USER JWT------\n\n"
        f"-----BEGIN USER NKEY SEED-----\n{checked}\n------END USER NKEY SEED------\n"
    )


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
