"""A request as its caller sees it: how far it is, what it is answered with, or why it failed.

When it has ended, this is also what is written down about it, as JSON, but for the answers: they
are in the store.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any, Literal

from ebbflow.accounts.trail import RequestFailure, RequestStep
from ebbflow.engine.answers import Answer

Status = Literal["in-progress", "completed", "failed"]


@dataclass(frozen=True, slots=True)
class ServedRequest:
    """One request. ``answers`` are there when it is completed, in the order of its results.

    ``steps`` are what is known of its way, oldest first, and ``steps_left_out`` how many more there
    were. ``failure`` says why it failed. ``answer_count`` is how many answers the trail tells of;
    replays may have stored others beside them.
    """

    id: str
    status: Status
    accepted: datetime
    ended: datetime | None = None
    failure: RequestFailure | None = None
    answer_count: int = 0
    answers: tuple[Answer, ...] = ()
    steps: tuple[RequestStep, ...] = ()
    steps_left_out: int = 0

    def to_json(self) -> bytes:
        """Returns the record as it is stored."""
        return json.dumps(self.describe()).encode()

    def describe(self) -> dict[str, Any]:
        """Returns everything but the answers, in types that JSON has; times are ISO 8601."""
        return {
            "id": self.id,
            "status": self.status,
            "accepted": self.accepted.isoformat(),
            "ended": self.ended.isoformat() if self.ended else None,
            "failure": asdict(self.failure) if self.failure else None,
            "answer_count": self.answer_count,
            "steps": [describe_step(step) for step in self.steps],
            "steps_left_out": self.steps_left_out,
        }

    @classmethod
    def from_json(cls, raw: bytes) -> ServedRequest:
        """Returns the request from what was stored."""
        facts: dict[str, Any] = json.loads(raw)
        failure = facts["failure"]
        return cls(
            id=facts["id"],
            status=facts["status"],
            accepted=datetime.fromisoformat(facts["accepted"]),
            ended=_read_time(facts["ended"]),
            failure=RequestFailure(**failure) if failure else None,
            answer_count=facts["answer_count"],
            steps=tuple(map(_read_step, facts["steps"])),
            steps_left_out=facts["steps_left_out"],
        )


def describe_step(step: RequestStep) -> dict[str, Any]:
    """Returns a step in types that JSON has; what is unknown of it is left out."""
    facts: dict[str, Any] = {
        "vertex": step.vertex,
        "message": step.message,
        "deliveries": step.deliveries,
        "outcome": step.outcome,
        "at": step.at.isoformat(),
        "reason": step.reason,
        "error": step.error,
        "due": step.due.isoformat() if step.due else None,
    }
    return {name: fact for name, fact in facts.items() if fact is not None}


def _read_step(facts: dict[str, Any]) -> RequestStep:
    at, due = datetime.fromisoformat(facts["at"]), _read_time(facts.get("due"))
    return RequestStep(**{**facts, "at": at, "due": due})


def _read_time(text: str | None) -> datetime | None:
    return datetime.fromisoformat(text) if text else None
