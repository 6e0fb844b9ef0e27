"""Waits for a system that is unavailable: longer each time, visibly, until a call succeeds."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from ebbflow.domain.durations import Backoff
from ebbflow.engine.blame import Outage

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
