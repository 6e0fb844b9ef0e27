"""The turn of a task: how long its epoch lasts, and the control words that change that.

An epoch begins when everything is open and has at least one chunk if there is anything to take, so
that however short the epochs are every one of them makes progress.

The driver, or ``ebbflow resume``, sends the words over the control subject of the pipeline. They
are not stored: a sender repeats a word until it sees the effect.
"""

from __future__ import annotations

import threading

from ebbflow.runtime.ports import Clock

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
        self.paused = False
        """Whether people have paused the vertex."""
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

    def pause(self, paused: bool) -> None:
        """Has the task take nothing more once it has settled what it holds, or go on."""
        self.paused = paused
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


STOP = b"stop"
"""Tells tasks to settle what they hold and end; no other epoch follows."""

_TURN = b"turn "
_RESUME = b"resume"


def turn(seconds: float) -> bytes:
    """Returns the word that ends epochs after this time, because others wait for the slots."""
    return _TURN + f"{seconds:g}".encode()


def turn_of(word: bytes) -> float | None:
    """Returns the seconds of a turn, if that is what the word says."""
    return float(word.removeprefix(_TURN)) if word.startswith(_TURN) else None


def resume(vertex: str | None) -> bytes:
    """Returns the word that lets a vertex, or all, go on after too many dead letters."""
    return _RESUME + (f" {vertex}".encode() if vertex else b"")


def resumes(word: bytes, vertex: str) -> bool:
    """Whether the word has the vertex go on."""
    return word in (resume(None), resume(vertex))
