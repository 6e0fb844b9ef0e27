"""When is a request complete: a pure account of what became of its messages."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime


@dataclass(frozen=True, slots=True)
class RequestStep:
    """What a vertex did with one message of a request, at one delivery.

    ``due`` is when a redelivered message comes again.
    """

    vertex: str
    message: str
    deliveries: int
    outcome: str
    reason: str | None
    error: str | None
    at: datetime
    due: datetime | None = None


@dataclass(frozen=True, slots=True)
class RequestFailure:
    """Why a request failed: where a message of it became a dead letter, and why."""

    vertex: str
    reason: str
    error: str | None
