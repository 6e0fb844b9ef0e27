"""The errors of a vertex in one run: groups of errors alike, with when they came first and last."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime

from ebbflow.engine.causes import MOST_GROUPS, Key, Raised


@dataclass(frozen=True, slots=True)
class LoggedErrors:
    """Errors alike, and when the first and the last of them came."""

    raised: Raised
    first: datetime
    last: datetime


class ErrorLog:
    """Keeps the newest groups, and counts all errors."""

    def __init__(self) -> None:
        self._groups: dict[Key, LoggedErrors] = {}
        self.count = 0

    def add(self, raised: Raised, at: datetime) -> None:
        """Counts errors alike that came at a moment, the latest so far."""
        self.count += raised.count
        before = self._groups.pop(raised.key, None)
        if before is None:
            self._groups[raised.key] = LoggedErrors(raised, at, at)
        else:
            together = before.raised.counted(raised)
            self._groups[raised.key] = replace(before, raised=together, last=at)
        while len(self._groups) > MOST_GROUPS:
            del self._groups[next(iter(self._groups))]

    def newest_first(self) -> list[LoggedErrors]:
        """Returns the groups; from any thread."""
        return [*reversed(self._groups.copy().values())]
