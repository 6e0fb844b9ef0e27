"""The turn of a task: how long its epoch lasts, and the words that change that.

An epoch begins when everything is open and has at least one chunk if there is anything to take, so
that however short the epochs are every one of them makes progress.
"""

from __future__ import annotations

import threading

from ebbflow.runtime.journal import Clock

# Seconds that an epoch waits for something to take before it ends without a chunk.
_LEAST = 1.0
# Seconds that a stopping task waits for buffers to take what it has in hand before it lets go.
_GRACE = 5.0


class Turn:
    """One epoch of one task. The driver's words come from any thread; ``wake`` ends a wait."""

    def __init__(self, seconds: float, clock: Clock) -> None:
        self.wake = threading.Event()
        self._clock = clock
        self._seconds = seconds
        self._stopped_at: float | None = None
        self._resumed = False
        self.begin()

    def begin(self) -> None:
        """Starts the epoch's time, again if it has been started before."""
        self._began = self._clock.monotonic()
        self._deadline = self._began + self._seconds

    def stop(self) -> None:
        """Ends the task soon, and for good."""
        if self._stopped_at is None:
            self._stopped_at = self._clock.monotonic()
        self.wake.set()

    def shorten(self, seconds: float) -> None:
        """Ends the epoch when it has lasted so long, if that is sooner: others wait."""
        if seconds < self._seconds:
            self._deadline += seconds - self._seconds
            self._seconds = seconds
        self.wake.set()

    def resume(self) -> None:
        """Has the vertex go on although there were too many dead letters."""
        self._resumed = True
        self.wake.set()

    def take_resumed(self) -> bool:
        """Whether the vertex was resumed since the last call."""
        if not self._resumed:  # reset only when seen: the word comes from another thread
            return False
        self._resumed = False
        return True

    @property
    def stopped(self) -> bool:
        """Whether the driver has said stop."""
        return self._stopped_at is not None

    @property
    def grace_is_over(self) -> bool:
        """Whether the task has been stopping for so long that it lets go of what it has."""
        stopped_at = self._stopped_at
        return stopped_at is not None and self._clock.monotonic() - stopped_at > _GRACE

    def left(self) -> float:
        """Returns the seconds until the epoch ends; below zero when it should have ended."""
        return self._deadline - self._clock.monotonic()

    def is_over(self, may_end_idle: bool) -> bool:
        """Whether to end now; a task that must not end idle is given a moment more."""
        if self.stopped:
            return True
        waited = self._clock.monotonic() - self._began
        return self.left() <= 0 and (may_end_idle or waited >= _LEAST)
