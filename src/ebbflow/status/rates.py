"""Rates: how fast counters grow, over the last seconds."""

from __future__ import annotations

from collections import deque

OVER = 10.0
"""Seconds that a rate is taken over."""


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
