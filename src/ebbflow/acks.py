"""``Ack``: what a publisher returns for a message that is stored."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Ack:
    """The server's word that a message is stored.

    ``duplicate`` says that the stream had its id before, be it from an earlier attempt of the same
    call; ``seq`` is the place of the copy that is stored. ``attempts`` is how often it was sent.
    """

    stream: str
    seq: int
    duplicate: bool
    attempts: int
