"""What stops a vertex: a system that is unavailable (``Patience``), or a flood of dead letters.

A vertex waits for an unavailable system, longer each time and visibly, until a call succeeds. Its
``Breaker`` stops it when too large a share of its messages ends as dead letters: that is a bug in
the code or its settings, and no message is to pay for it.
"""

from __future__ import annotations

import time
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ebbflow.domain.durations import Backoff
from ebbflow.domain.outcome import DeadLetter, Outcome, Redeliver, Retry
from ebbflow.engine.blame import POSTPONED, Outage, is_answer

if TYPE_CHECKING:
    from ebbflow.engine.verdict import Verdict

DEFAULT_ON_UNAVAILABLE = Backoff(interval=100, factor=2.0, cap=1_000)
"""Soon there again when the system is: the longest wait is a second."""


@dataclass(frozen=True, slots=True)
class Waiting:
    """The wait for a system: for what, how many seconds already, and until the next try.

    ``certain`` and ``named`` are those of the ``Outage``.
    """

    what: str
    seconds: float
    next_in: float
    certain: bool = True
    named: bool = True


class Patience:
    """Decides whether to wait, and for how long, at one place that may meet with outages."""

    def __init__(
        self,
        backoff: Backoff = DEFAULT_ON_UNAVAILABLE,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._backoff = backoff
        self._clock = clock
        self._outage: Outage | None = None
        self._tries = 0
        self._since = self._next = 0.0

    @property
    def away(self) -> bool:
        """Whether there is an outage, as far as the last try has shown."""
        return self._outage is not None

    def meet(self, outage: Outage) -> None:
        """Notes that a try has met with an outage; the next is due after a longer wait."""
        now = self._clock()
        if self._outage is None:
            self._since, self._tries = now, 0
        self._outage = outage
        self._tries += 1
        wait = max(self._backoff.wait(self._tries), outage.retry_after or 0)
        self._next = now + wait / 1000

    def end(self) -> None:
        """Notes that a try has gone well."""
        self._outage = None

    def ready_in(self) -> float:
        """Returns the seconds until there may be another try; 0 if there is no outage."""
        return 0.0 if self._outage is None else max(0.0, self._next - self._clock())

    @property
    def waiting(self) -> Waiting | None:
        """The wait as people are told of it; ``None`` if there is no outage."""
        if self._outage is None:
            return None
        seconds = self._clock() - self._since
        outage = self._outage
        return Waiting(outage.what, seconds, self.ready_in(), outage.certain, outage.named)


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
