"""When a request is complete: what its trail says about each of its messages.

A request begins with one message, its root. Each row of the trail (``accounts.trail``) says what a
vertex did with one message, and which messages it forwarded. So the messages that have to end are
the root and all that were forwarded, and the request is complete when each of them has ended.

Rows may arrive repeatedly and in any order, except that the rows of one message keep their order:
messages that it forwarded early are reported before its end. A row marks the messages that it
forwards as open in the same step in which it ends its own message: between two rows, a request with
work left is never complete. A message that has ended stays ended, whatever a replay decides later.
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

PublishedRow = tuple[str, TrailRow]
"""A row of the trail, and the vertex that published it."""


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
        """Returns the step that a row of a vertex's trail describes."""
        return cls(
            vertex, row.id, row.deliveries, row.outcome, row.at, row.reason, row.error, row.due
        )


@dataclass(frozen=True, slots=True)
class RequestFailure:
    """Why a request failed: the vertex that dead-lettered one of its messages, and the reason."""

    vertex: str
    reason: str
    error: str | None = None


class Completion:
    """The state of the messages of one request.

    ``failure`` is the first dead letter. ``has_root_row`` if a row was about the root.
    ``steps_left_out`` counts the rows over ``MOST_STEPS``.
    """

    __slots__ = (
        "_answers", "_ended", "_open", "_root", "_rows", "failure", "has_root_row",
        "steps_left_out",
    )  # fmt: skip

    def __init__(self, source: str, request: str) -> None:
        self._root: MessageAt = source, request
        self.has_root_row = False
        self.failure: RequestFailure | None = None
        self.steps_left_out = 0
        self._open: set[MessageAt] = {self._root}
        self._ended: set[MessageAt] = set()
        self._answers: dict[MessageAt, int] = {}
        # Made into steps only on request, much less often than rows arrive.
        self._rows: dict[PublishedRow, None] = {}

    @property
    def is_complete(self) -> bool:
        """Whether every message that has to end has ended."""
        return not self._open

    @property
    def has_ended(self) -> bool:
        """Whether the request has ended: it is complete or has failed."""
        return self.is_complete or self.failure is not None

    @property
    def answers(self) -> int:
        """How many answers its messages have stored so far."""
        return sum(self._answers.values())

    @property
    def steps(self) -> tuple[RequestStep, ...]:
        """The history of the request so far, by time; copies of a row are one step."""
        steps: dict[tuple[str, str, int, str], RequestStep] = {}
        for vertex, row in self._rows:
            key = vertex, row.id, row.deliveries, row.outcome
            if key not in steps:
                steps[key] = RequestStep.of(vertex, row)
        return tuple(sorted(steps.values(), key=attrgetter("at")))

    @property
    def rows(self) -> tuple[PublishedRow, ...] | None:
        """All rows that were added, each once; ``None`` if there were too many to keep."""
        return None if self.steps_left_out else tuple(self._rows)

    def add(self, vertex: str, row: TrailRow) -> None:
        """Adds a row of a vertex's trail."""
        message = vertex, row.id
        self.has_root_row = self.has_root_row or message == self._root
        # Before its own message ends: in between the request must not appear complete.
        for sent in row.sent:
            target = sent.to, sent.id
            # A copy of a row may arrive long after the messages that it forwarded have ended.
            if target not in self._ended:
                self._open.add(target)
        if row.is_final:
            self._ended.add(message)
            self._open.discard(message)
        if row.answers:
            # A replay stores its answers under the same keys, so the maximum is the total.
            self._answers[message] = max(row.answers, self._answers.get(message, 0))
        if row.outcome == DEAD_LETTERED and self.failure is None:
            self.failure = RequestFailure(vertex, row.reason or "", row.error)
        added = vertex, row
        if added not in self._rows:
            if len(self._rows) < MOST_STEPS:
                self._rows[added] = None
            else:
                self.steps_left_out += 1
