"""The way of a message, as data: what every vertex did with it, and where it is now.

A message goes on under ids that continue its own (``in-12`` becomes ``in-12/enrich``), so the way
of a message is that of all ids that begin with it, and of those that it came from.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from datetime import UTC, datetime
from typing import Any, Literal

import pyarrow as pa
import pyarrow.compute as pc

from ebbflow.connectors.serving.store import ServedRequest
from ebbflow.engine.trail import REDELIVERED

Where = Literal["buffer", "in hand", "redelivery", "parked", "held", "source", "dead letter"]


@dataclass(frozen=True, slots=True)
class TraceStep:
    """What a vertex did with a message at one delivery. ``due`` is when it comes again.

    ``sent_to`` are the vertices that its outputs went to.
    """

    at: datetime
    vertex: str
    message: str
    delivery: int
    outcome: str
    reason: str | None = None
    error: str | None = None
    due: datetime | None = None
    sent_to: tuple[str, ...] = ()

    @property
    def final(self) -> bool:
        """Whether the message has ended at the vertex."""
        return self.outcome != REDELIVERED


@dataclass(frozen=True, slots=True)
class Whereabouts:
    """Where a message is now.

    ``due`` is when it comes again, ``number`` that of its dead letter, ``ahead`` how many messages
    are in front of it, ``since`` from when on it has been in hand.
    """

    vertex: str
    message: str
    where: Where
    why: str | None = None
    due: datetime | None = None
    number: int | None = None
    ahead: int | None = None
    since: datetime | None = None

    @property
    def words(self) -> str:
        """One line for people."""
        why = f": {self.why}" if self.why else ""
        match self.where:
            case "buffer":
                return f"waits in the buffer of {self.vertex}, {self._describe_ahead()}"
            case "in hand":
                since = f" since {_time(self.since)}" if self.since else ""
                return f"is in hand at {self.vertex}{since}"
            case "redelivery":
                return f"is due again at {self.vertex}{why}"
            case "parked":
                return f"is parked at {self.vertex} until {_time(self.due)}{why}"
            case "held":
                return (
                    f"is held at {self.vertex} until {_time(self.due)}, "
                    f"and what is behind it waits{why}"
                )
            case "source":
                return f"went back to the source of {self.vertex}, which gives it again{why}"
            case "dead letter":
                return f"is dead letter {self.number} of {self.vertex}{why}"

    def _describe_ahead(self) -> str:
        if not self.ahead:
            return "next"
        return f"{self.ahead:,} {'message' if self.ahead == 1 else 'messages'} ahead of it"


def _time(time: datetime | None) -> str:
    return "later" if time is None else f"{time.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC"


@dataclass(frozen=True, slots=True)
class MessageTrace:
    """The way of a message, and of those that were made of it.

    ``kept`` is whether the pipeline keeps what became of messages, ``request`` what is known of the
    request if it is one, and ``notes`` say what could not be read, and what to do about it.
    """

    pipeline: str
    id: str
    steps: tuple[TraceStep, ...] = ()
    now: tuple[Whereabouts, ...] = ()
    kept: bool = False
    notes: tuple[str, ...] = ()
    request: ServedRequest | None = None

    @property
    def is_known(self) -> bool:
        """Whether anything is known of the message."""
        return bool(self.steps or self.now or self.request)

    def to_json(self) -> dict[str, Any]:
        """Returns everything in types that JSON has; times are ISO 8601."""
        return {
            "pipeline": self.pipeline,
            "id": self.id,
            "now": [{**_plain(place), "words": place.words} for place in self.now],
            "steps": [{**_plain(step), "final": step.final} for step in self.steps],
            "kept": self.kept,
            "notes": list(self.notes),
            "request": self.request.describe() if self.request else None,
        }


def _plain(facts: TraceStep | Whereabouts) -> dict[str, Any]:
    plain = asdict(facts)
    for field in fields(facts):
        value = plain[field.name]
        if isinstance(value, datetime):
            plain[field.name] = value.astimezone(UTC).isoformat()
        elif isinstance(value, tuple):
            plain[field.name] = list(value)
    return plain


# --- which ids belong to a message --------------------------------------------------------------


class Family:
    """The ids that belong to a message: its own, of those it came from and those made of it."""

    def __init__(self, message: str) -> None:
        steps = message.split("/")
        self.own = message
        self.ancestors = tuple("/".join(steps[:end]) for end in range(1, len(steps)))
        self.prefix = f"{message}/"

    def has(self, message: str) -> bool:
        """Returns whether a message is of the family."""
        return message == self.own or message.startswith(self.prefix) or message in self.ancestors

    def find(self, ids: pa.StringArray) -> list[int]:
        """Returns the rows of those that are, of many."""
        # By the first letters of all of them, fast; what begins alike and is another, by its id.
        root = (self.ancestors or (self.own,))[0]
        rows = pc.indices_nonzero(pc.starts_with(ids, root)).to_pylist()
        return [row for row in rows if self.has(ids[row].as_py())]
