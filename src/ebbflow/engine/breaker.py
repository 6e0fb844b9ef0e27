"""The breaker against a flood of dead letters.

When more than a share of the last messages became dead letters, something is wrong with all of
them: the vertex stops taking messages, and keeps those that would be dead letters, too, instead of
draining a topic into the dead letters. People look, mend and resume.

A message counts once: when it is nacked for the first time, because user code has answered for it,
or when it ends. If only ends counted, a few dead letters would be all there is while the others
wait for their next delivery. One that is redelivered after an exception has not been answered.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ebbflow.domain.outcome import DeadLetter, Outcome, Redeliver, Retry
from ebbflow.engine.blame import POSTPONED, is_answer

if TYPE_CHECKING:  # the limit is part of specs, which are checked without Arrow
    from ebbflow.engine.verdict import Verdict


@dataclass(frozen=True, slots=True)
class BreakerLimit:
    """The share of the last ``window`` messages that may be dead letters.

    Fewer letters than the share of a whole window never trip it; a share of 1 switches it off.
    """

    share: float = 0.5
    window: int = 1_000

    @property
    def letters(self) -> int:
        """The most dead letters among the messages of a window."""
        return int(self.share * self.window)


DEFAULT_LIMIT = BreakerLimit()


def _is_unanswered(outcome: Outcome) -> bool:
    return isinstance(outcome, Redeliver | Retry) and not is_answer(outcome)


class Breaker:
    """Counts the ends of a vertex's messages on one worker. ``tripped`` says why it stopped."""

    def __init__(self, limit: BreakerLimit) -> None:
        self.tripped: str | None = None
        self._limit = limit
        self._counted = 0
        self._letters: deque[int] = deque()

    def check(self, verdict: Verdict) -> None:
        """Counts what was decided; letters over the limit trip it and come back as they were."""
        outcomes = verdict.outcomes
        counted = verdict.rows.nacked_before()
        uncounted = sorted(counted | {i for i, o in outcomes.items() if _is_unanswered(o)})
        for index in sorted(i for i, o in outcomes.items() if isinstance(o, DeadLetter)):
            letter = outcomes[index]
            assert isinstance(letter, DeadLetter)
            before = index - bisect_left(uncounted, index)
            if not self._admits(letter, self._counted + before):
                verdict.postpone(index, POSTPONED, letter.error or letter.reason)
        self.note_answered(len(verdict.rows) - len(uncounted))

    def note_answered(self, count: int) -> None:
        """Counts messages that user code has answered for, none of them a new dead letter."""
        self._counted += count

    @property
    def state(self) -> dict[str, Any]:
        """What it has counted, as JSON has it."""
        return {"tripped": self.tripped, "counted": self._counted, "letters": list(self._letters)}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Takes over what another one of the same vertex has counted."""
        self.tripped, self._counted = state["tripped"], state["counted"]
        self._letters = deque(state["letters"])

    def _admits(self, letter: DeadLetter, place: int) -> bool:
        """Returns whether the message that is counted at that place may be a dead letter."""
        while self._letters and self._letters[0] <= place - self._limit.window:
            self._letters.popleft()
        if self.tripped is None and len(self._letters) >= self._limit.letters < self._limit.window:
            self.tripped = self._explain(letter)
        if self.tripped is None:
            self._letters.append(place)
        return self.tripped is None

    def _explain(self, letter: DeadLetter) -> str:
        return (
            f"{len(self._letters):,} of the last {self._limit.window:,} messages became dead "
            f"letters, the last one because of: {letter.error or letter.reason}"
        )

    def reset(self) -> None:
        """Begins anew: people have resumed the vertex."""
        self.tripped = None
        self._letters.clear()
