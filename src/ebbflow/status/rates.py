"""Rates: how fast counters grow over the last seconds, and where a backlog is heading.

A vertex *falls behind* if its backlog has grown for ``FALLING_AFTER`` seconds, from one minute's
average to the next, and its oldest message has waited for ``LATE`` seconds. It does so until the
backlog shrinks. A burst grows for as long as it comes and shrinks afterwards, and a run that begins
with a backlog works it off: neither falls behind.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

OVER = 10.0
"""Seconds that a rate is taken over."""


LATE = 60.0
"""Seconds that a message may wait before that is worth a word."""

STEP, FALLING_AFTER = 60.0, 300.0
"""Seconds that a backlog is averaged over, and that it has to grow for."""

# By this share of the backlog it has to grow or shrink in a step, or be below its peak.
_GROWS, _SHRINKS, _BELOW_PEAK = 0.001, 0.01, 0.05


class RateWindow:
    """The rates of several counters, by name, in counts a second."""

    def __init__(self) -> None:
        self._seen: dict[str, deque[tuple[float, int]]] = {}

    def update(self, name: str, count: int, now: float) -> float:
        """Takes note of a counter at a moment, in seconds that only grow; returns its rate."""
        seen = self._seen.setdefault(name, deque())
        seen.append((now, count))
        while len(seen) > 2 and now - seen[1][0] >= OVER:
            seen.popleft()
        then, before = seen[0]
        return (count - before) / (now - then) if now > then else 0.0


@dataclass(frozen=True, slots=True)
class BacklogTrend:
    """Where a backlog is heading.

    ``drain_seconds`` is when it is empty if it keeps shrinking as now, ``None`` if it does not
    shrink; ``growing_seconds`` is for how long it has grown, ``None`` if it does not.
    """

    drain_seconds: float | None = None
    growing_seconds: float | None = None
    falling_behind: bool = False


class TrendWatch:
    """Follows the backlog of one vertex."""

    def __init__(self) -> None:
        self.last = BacklogTrend()
        self._recent: deque[tuple[float, int]] = deque()
        self._step: list[int] = []
        self._step_began: float | None = None
        self._average: float | None = None
        self._growing = self._peak = 0.0
        self._falling = False

    def update(self, waiting: int, oldest: float | None, now: float) -> BacklogTrend:
        """Takes note of a backlog at a moment, and of the age of its oldest message."""
        self._add(waiting, now)
        if not waiting or oldest is None or oldest < LATE:
            self._falling = False
        elif self._growing >= FALLING_AFTER:
            self._falling = True
        drain = self._drain(waiting, now)
        self.last = BacklogTrend(drain, self._growing or None, self._falling)
        return self.last

    def _add(self, waiting: int, now: float) -> None:
        self._recent.append((now, waiting))
        while now - self._recent[0][0] > STEP / 2:
            self._recent.popleft()
        if self._step_began is None:
            self._step_began = now
        if now - self._step_began >= STEP:
            self._end_step(now)
        self._step.append(waiting)

    def _end_step(self, now: float) -> None:
        """Compares the average of a step with that of the step before."""
        assert self._step_began is not None
        average, before = sum(self._step) / len(self._step), self._average
        took, self._step, self._step_began, self._average = now - self._step_began, [], now, average
        # One that neither grows nor shrinks, as a full buffer, is not better than before.
        floor = max((before or 0) * (1 - _SHRINKS), self._peak * (1 - _BELOW_PEAK))
        if before is None or average < floor:
            self._growing, self._falling, self._peak = 0.0, False, 0.0
        elif average > before * (1 + _GROWS) + 1:
            self._growing += took
        self._peak = max(self._peak, average)

    def _drain(self, waiting: int, now: float) -> float | None:
        then, before = self._recent[0]
        if not waiting or now - then < OVER or before <= waiting:
            return None
        return waiting * (now - then) / (before - waiting)
