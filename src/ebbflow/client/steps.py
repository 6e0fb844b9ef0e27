"""What a conversation with a server consists of: its steps, and what comes back for each.

A conversation is a generator that yields steps. ``Client`` and ``AsyncClient`` carry them out, each
in its own way, and send back what came of them; what to do next is decided here, once for both.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class ServerCall:
    """A step: send a request, and come back with a ``ServerReply`` or with ``NoReply``.

    ``wait`` is how many seconds its reply may take. With ``follows`` a reply of 200 is an event
    stream: its body is left to ``MoreEvents``.
    """

    method: str
    path: str
    wait: float
    query: Mapping[str, str] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes | None = None
    follows: bool = False


@dataclass(frozen=True, slots=True)
class MoreEvents:
    """A step: wait for more of the event stream; ``bytes``, or ``NoReply`` where it broke off."""


@dataclass(frozen=True, slots=True)
class Pause:
    """A step: wait."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Emit:
    """A step: hand a result of a stream to the caller."""

    result: bytes


@dataclass(frozen=True, slots=True)
class ServerReply:
    """What the server said. Names of headers are in lower case."""

    status: int
    headers: Mapping[str, str]
    body: bytes


@dataclass(frozen=True, slots=True)
class NoReply:
    """The connection failed before a reply. ``sent`` is false if the server heard nothing."""

    problem: str
    sent: bool


Step = ServerCall | MoreEvents | Pause | Emit
Came = ServerReply | NoReply | bytes | None
Conversation = Generator[Step, Came, T]
