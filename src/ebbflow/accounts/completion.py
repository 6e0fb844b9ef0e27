"""When a request is complete: what its trail says of each of its messages.

A request begins with one message, its root. Each row of the trail (``accounts.trail``) says what a
vertex did with one message, and which messages it sent on. So the messages that have to end are the
root and all that were sent, and the request is complete when each of them has ended.

Rows may come repeatedly and in any order, but those of one message in their own: what it sent early
is told before its end. A row that sends messages on makes them open in the same step in which its
own message ends: looked at between two rows, a request with work left is never complete. A message
that has ended stays so, whatever a replay decides later.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from operator import attrgetter

from ebbflow.engine.account import DEAD_LETTERED
from ebbflow.streams.trail_rows import TrailRow

MOST_STEPS = 200
"""The most steps that are kept of a request; a large fan-out has more."""

MessageAt = tuple[str, str]
"""A vertex, and the id of a message there."""

ToldRow = tuple[str, TrailRow]
"""A row of the trail, and the vertex that told it."""


@dataclass(frozen=True, slots=True)
class RequestStep:
    """What a vertex did with one message of a request, at one delivery.

    ``due`` is when a redelivered message is due.
    """

    vertex: str
    message: str
    deliveries: int
    outcome: str
    at: datetime
    reason: str | None = None
    error: str | None = None
    due: datetime | None = None

    @classmethod
    def of(cls, vertex: str, row: TrailRow) -> RequestStep:
        """Returns the step that a row of the trail of a vertex tells of."""
        return cls(
            vertex, row.id, row.deliveries, row.outcome, row.at, row.reason, row.error, row.due
        )


@dataclass(frozen=True, slots=True)
class RequestFailure:
    """Why a request failed: where a message of it became a dead letter, and why."""

    vertex: str
    reason: str
    error: str | None = None


class Completion:
    """What is known of the messages of one request.

    ``failure`` is the first dead letter. ``knows_root`` if a row was of the root.
    ``steps_left_out`` counts the rows over ``MOST_STEPS``.
    """

    __slots__ = (
        "_answers", "_ended", "_open", "_root", "_rows", "failure", "knows_root", "steps_left_out",
    )  # fmt: skip

    def __init__(self, source: str, request: str) -> None:
        self._root: MessageAt = source, request
        self.knows_root = False
        self.failure: RequestFailure | None = None
        self.steps_left_out = 0
        self._open: set[MessageAt] = {self._root}
        self._ended: set[MessageAt] = set()
        self._answers: dict[MessageAt, int] = {}
        # Steps are made of them when they are asked for, much less often than rows come.
        self._rows: dict[ToldRow, None] = {}

    @property
    def is_complete(self) -> bool:
        """Whether every message that has to end has ended."""
        return not self._open

    @property
    def has_ended(self) -> bool:
        """Whether the request has: it is complete, or has failed before."""
        return self.is_complete or self.failure is not None

    @property
    def answers(self) -> int:
        """How many answers its messages have stored so far."""
        return sum(self._answers.values())

    @property
    def steps(self) -> tuple[RequestStep, ...]:
        """What is known of its way, by time; copies of a row are one step."""
        steps: dict[tuple[str, str, int, str], RequestStep] = {}
        for vertex, row in self._rows:
            key = vertex, row.id, row.deliveries, row.outcome
            if key not in steps:
                steps[key] = RequestStep.of(vertex, row)
        return tuple(sorted(steps.values(), key=attrgetter("at")))

    @property
    def rows(self) -> tuple[ToldRow, ...] | None:
        """All that it was told, each row once; ``None`` if that was too much to be kept."""
        return None if self.steps_left_out else tuple(self._rows)

    def add(self, vertex: str, row: TrailRow) -> None:
        """Takes in a row of the trail of a vertex."""
        message = vertex, row.id
        self.knows_root = self.knows_root or message == self._root
        # Before its own message ends: whoever asks in between must not find the request complete.
        for sent in row.sent:
            target = sent.to, sent.id
            # A copy of a row may come when what it sent has ended long since.
            if target not in self._ended:
                self._open.add(target)
        if row.is_final:
            self._ended.add(message)
            self._open.discard(message)
        if row.answers:
            # A replay stores its answers under the same keys, so the most are all.
            self._answers[message] = max(row.answers, self._answers.get(message, 0))
        if row.outcome == DEAD_LETTERED and self.failure is None:
            self.failure = RequestFailure(vertex, row.reason or "", row.error)
        told = vertex, row
        if told not in self._rows:
            if len(self._rows) < MOST_STEPS:
                self._rows[told] = None
            else:
                self.steps_left_out += 1
