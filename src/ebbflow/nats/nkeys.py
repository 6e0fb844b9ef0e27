"""The nkeys and credentials of NATS as text, checked before a server sees them.

A ``ValueError`` says what is wrong: its text goes on from the name of the thing, without the thing.
"""

from __future__ import annotations

import re

_JWT = re.compile(r"-{3,} *BEGIN NATS USER JWT *-{3,}\s+([\w-]+\.[\w-]+\.[\w-]+)\s")
_SEED = re.compile(r"-{3,} *BEGIN USER NKEY SEED *-{3,}\s+(\w+)\s")


def check_user_seed(text: str) -> str:
    """Returns the seed of a user's nkey, without spaces around it."""
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


def check_credentials(text: str) -> str:
    """Returns a .creds file in its plainest form: a user's JWT and the seed it was made for."""
    jwt, seed = _JWT.search(f"{text}\n"), _SEED.search(f"{text}\n")
    if jwt is None or seed is None:
        raise ValueError("is not a .creds file with a user's JWT and its seed")
    try:
        checked = check_user_seed(seed[1])
    except ValueError as error:
        raise ValueError(f"has a seed that {error}") from None
    return (
        f"-----BEGIN NATS USER JWT-----\n{jwt[1]}\n------END NATS USER JWT------\n\n"
        f"-----BEGIN USER NKEY SEED-----\n{checked}\n------END USER NKEY SEED------\n"
    )
