"""When an edge is taken inline: almost always, because it costs less at every rate.

An edge uses its buffer instead while the next vertex cannot take messages, while its buffer holds a
backlog, or when its calls are slow: a slow vertex must not hold up the acks of the one before it or
its other edges. And it does when the task is saturated while other cores are idle, so that both
vertices work at the same time. ``InlineLoad`` is that rule for one edge of one task, ``TaskLoad``
measures the task.
"""

from __future__ import annotations

from collections.abc import Callable

from ebbflow.runtime.ports import Clock

SLOW = 0.05
"""The seconds of a vertex for one chunk above which the chunk goes through its buffer."""

WORTH_A_HOP = 5e-6
"""The seconds of a vertex for one row above which a task of its own is worth the hop."""

_WINDOW = 1.0
_SATURATED, _RELAXED = 0.9, 0.7
_IDLE_CORES = 0.3
_HOLD = 10.0
# A vertex that was slow once is tried again: its first call may have loaded a model.
_FORGET_HALF = 5.0
_FADING = 0.8
_FEW_FRAMES = 4


class TaskLoad:
    """How busy one task is, and how many cores are idle, measured each second.

    ``cpu_seconds`` are those of the task's thread, ``idle_seconds`` those of all cores of the host.
    """

    def __init__(
        self,
        clock: Clock,
        cpu_seconds: Callable[[], float],
        idle_seconds: Callable[[], float],
    ) -> None:
        self._clock = clock
        self._cpu_seconds, self._idle_seconds = cpu_seconds, idle_seconds
        self._at = clock.monotonic()
        self._cpu, self._idle = cpu_seconds(), idle_seconds()
        self.busy = 0.0
        self.idle_cores = 0.0

    def look(self) -> None:
        """Measures again if the last time is a while ago."""
        now = self._clock.monotonic()
        if (passed := now - self._at) < _WINDOW:
            return
        cpu, idle = self._cpu_seconds(), self._idle_seconds()
        self.busy = (cpu - self._cpu) / passed
        self.idle_cores = (idle - self._idle) / passed
        self._at, self._cpu, self._idle = now, cpu, idle

    @property
    def is_saturated(self) -> bool:
        """Whether the task could do more if another one had a part of its work."""
        return self.busy >= _SATURATED and self.idle_cores >= _IDLE_CORES


class InlineLoad:
    """Whether the chunks of one task take one edge inline. Used by the task's thread.

    ``backlog`` returns how many frames wait in the buffer of the vertex, as of a moment ago;
    ``None`` if that is not known.
    """

    def __init__(
        self, clock: Clock, load: TaskLoad, backlog: Callable[[], int | None], partitions: int = 1
    ) -> None:
        self._clock = clock
        self._load = load
        self._backlog = backlog
        self._few = _FEW_FRAMES * partitions
        self._buffered = True  # until it is known that nothing waits there
        self._until = -1.0
        self._row = 0.0
        self._learned = clock.monotonic()
        self._rows, self._frames, self._began = 0, 0, clock.monotonic()
        self._rate = self._frame_rate = 0.0

    def takes(self, rows: int, is_open: bool) -> bool:
        """Whether a chunk of this many rows is taken inline."""
        self._load.look()
        self._count(rows)
        self._buffered = not is_open or self._is_slow(rows) or self._stays(self._buffered)
        self._frames += self._buffered
        return not self._buffered

    def took(self, rows: int, seconds: float) -> None:
        """Learns how long the vertex took for a chunk."""
        row, now = seconds / max(1, rows), self._clock.monotonic()
        self._row = row if not self._row else _FADING * self._row + (1 - _FADING) * row
        self._learned = now

    def is_worked_off(self) -> bool:
        """Whether the vertex's own task has worked off what chunks have left in its buffer."""
        # Frames of the last second are no backlog: they are deleted a moment after they are done.
        waiting = self._backlog()
        return waiting is not None and waiting <= self._few + self._frame_rate

    def _count(self, rows: int) -> None:
        self._rows += rows
        if (passed := self._clock.monotonic() - self._began) >= _WINDOW:
            self._rate, self._frame_rate = self._rows / passed, self._frames / passed
            self._rows, self._frames, self._began = 0, 0, self._clock.monotonic()

    def _is_slow(self, rows: int) -> bool:
        if self._clock.monotonic() - self._learned > _FORGET_HALF:
            self._row, self._learned = self._row / 2, self._clock.monotonic()
        return rows * self._row > SLOW

    @property
    def _would_saturate(self) -> bool:
        if self._row < WORTH_A_HOP:
            return False
        return self._load.busy + self._row * self._rate > _RELAXED

    def _stays(self, buffered: bool) -> bool:
        """Whether the edge uses its buffer; one that does stays there until that is worked off."""
        now = self._clock.monotonic()
        if not buffered:
            if self._load.is_saturated and self._row >= WORTH_A_HOP:
                self._until = now + _HOLD
                return True
            return False
        if now < self._until or self._would_saturate:
            return True
        return not self.is_worked_off()
