"""Gathering: the rows of a trickle come together for a moment and are settled as one chunk.

A chunk costs two confirmed writes and half a dozen wake-ups, whether it has one row or a hundred.
At a thousand messages a second a task that took each one as it came would do little else. So a task
that has just begun a small chunk lets a moment pass before it begins the next. The first row after
a pause is taken at once, and so is everything under load, where chunks are large.
"""

from __future__ import annotations

from ebbflow.runtime.journal import Clock

AT_SOURCE, AT_REQUESTS, AT_BUFFER = 0.012, 0.008, 0.002
"""Seconds from the beginning of a small chunk to that of the next one.

Longer at a source: its chunks set the pace for all vertices behind it, which then seldom wait. Less
long where somebody waits for an answer to each message.
"""

FEW = 100
"""A chunk of fewer rows is a small one."""


class Gathering:
    """The waits of one task, of ``interval`` seconds at most. Used by the task's thread."""

    def __init__(self, clock: Clock, interval: float) -> None:
        self._clock = clock
        self._interval = interval
        self._until = clock.monotonic()

    def begin_chunk(self, rows: int, leaves_rows: bool) -> None:
        """Notes that a chunk of so many rows begins; rows that it leaves need not wait for more."""
        gathers = rows < FEW and not leaves_rows
        self._until = self._clock.monotonic() + (self._interval if gathers else 0.0)

    def wait(self) -> None:
        """Waits until the next chunk may begin."""
        if (left := self._until - self._clock.monotonic()) > 0:
            self._clock.sleep(left)
