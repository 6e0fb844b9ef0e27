"""A request as its caller sees it: how far it is, what it is answered with, or why it failed."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from ebbflow.core.completion import RequestFailure, RequestStep

Status = Literal["in-progress", "completed", "failed"]


@dataclass(frozen=True, slots=True)
class ServedAnswer:
    """One answer. ``order`` names it among the answers of its request, also for resuming."""

    payload: bytes
    order: str


@dataclass(frozen=True, slots=True)
class ServedRequest:
    """One request. ``answers`` are there when it is completed, in the order of their results.

    ``steps`` are what is known of its way, oldest first. ``failure`` says why it failed.
    """

    id: str
    status: Status
    accepted: datetime
    ended: datetime | None = None
    failure: RequestFailure | None = None
    answers: tuple[ServedAnswer, ...] = ()
    steps: tuple[RequestStep, ...] = ()
