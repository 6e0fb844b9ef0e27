"""The size of a chunk: as many rows as user code processes in about a quarter second.

Large chunks are cheap, small ones settle soon. A slow handler gets small chunks, so that its
results are forwarded, its epoch can end and a stop need not wait. A fast handler gets large ones.
Chunks of large messages are small too: data that exceeds a processor's caches is slow to handle.

A call may have a fixed cost besides that of its messages, such as a bulk insert or a request. Fewer
messages per call would only make that worse. So the two costs are estimated separately, from how
long chunks of different sizes take. A chunk may take longer than its quarter second where the fixed
cost would otherwise be more than a sixteenth of the time: up to a full call, or to five seconds.

The estimates are kept for the next epoch, if it runs in the same process.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ebbflow.engine.frames import size_of

if TYPE_CHECKING:
    from ebbflow.engine.verdict import Verdict

TARGET, PATIENCE = 0.25, 5.0
SHARE = 16
"""A call may take this many times its fixed cost, if that is not over ``PATIENCE``."""

_FIRST, LARGEST = 32, 8_192
_GROWTH = 4
_MOST_BYTES = 8 * 1024 * 1024
# How many chunks are remembered, and the weight of each one relative to the next.
_REMEMBERED, _FADING = 16, 0.8
# Sizes that differ by less than this factor cannot separate the two costs.
_APART = 2.0
# If a chunk took longer or shorter than expected by this factor, older measurements are obsolete.
_CHANGED = 3.0
_PROBE_AFTER = 20


@dataclass(frozen=True, slots=True)
class Cost:
    """The seconds that user code takes: for each call, and for each row in it."""

    call: float
    row: float

    def of(self, calls: int, rows: int) -> float:
        """Returns the seconds that this many calls with this many rows in all take."""
        return self.call * calls + self.row * rows

    def fitting(self, full: int) -> int:
        """Returns how many rows a chunk should have if a call takes at most ``full``."""
        whole = self.of(1, full)
        if whole <= max(self.longest, 2 * TARGET):  # too little to be worth a cut
            return full * max(1, int(TARGET / max(whole, 1e-9)))
        return max(1, int((self.longest - self.call) / self.row))

    @property
    def longest(self) -> float:
        """The seconds that a call may take."""
        return max(TARGET, min(SHARE * self.call, PATIENCE + 2 * self.call))


@dataclass(frozen=True, slots=True)
class _Seen:
    calls: int
    rows: int
    seconds: float

    @property
    def rows_a_call(self) -> float:
        return self.rows / self.calls


class Pace:
    """The chunk size of one task, adapted after each chunk; a call gets at most ``full`` rows."""

    def __init__(self, full: int = LARGEST) -> None:
        self._full = full
        self._most = max(full, LARGEST // full * full)
        self.limit = min(_FIRST, self._most)
        self._seen: deque[_Seen] = deque(maxlen=_REMEMBERED)
        self._fixed_share = 0.0
        self._alike = 0

    @contextmanager
    def measured(self, verdict: Verdict) -> Iterator[None]:
        """Times user code on a chunk, unless the verdict says that its time is untypical."""
        start = time.perf_counter()
        yield
        if verdict.usual:
            seconds, rows = time.perf_counter() - start, verdict.rows
            self.took(len(rows), seconds, size_of(rows.batch), rows.count_failed())

    def took(self, rows: int, seconds: float, size: int = 0, alone: int = 0) -> None:
        """Adapts to a chunk of this many rows and bytes; ``alone`` rows had their own calls."""
        if not rows:
            return
        was_full, room = rows >= self.limit // 2, _MOST_BYTES * rows // max(1, size)
        if not was_full and room >= self.limit and seconds * self.limit <= TARGET * rows:
            return  # at this pace even the largest chunk is in time: nothing to adapt
        self._remember(_Seen(alone - (alone - rows) // self._full, rows, max(seconds, 1e-6)))
        wanted = self._probing(self._cost().fitting(self._full))
        if not was_full:
            wanted = min(wanted, self.limit)
        self.limit = max(1, min(wanted, self.limit * _GROWTH, room, self._most))

    def _remember(self, seen: _Seen) -> None:
        """Remembers a chunk; measurements from before a change no longer count."""
        last = self._seen[-1] if self._seen else seen
        alike = last.rows_a_call / _APART < seen.rows_a_call < last.rows_a_call * _APART
        self._alike = self._alike + 1 if alike else 0
        if self._seen and (alike or self._separable):
            expected = self._cost().of(seen.calls, seen.rows)
            if not expected / _CHANGED < seen.seconds < expected * _CHANGED:
                self._seen.clear()
                self._fixed_share = 0.0
        self._seen.append(seen)

    @property
    def _separable(self) -> bool:
        """Whether the sizes of the chunks differ enough to separate the two costs."""
        sizes = [seen.rows_a_call for seen in self._seen]
        return max(sizes) >= min(sizes) * _APART

    def _probing(self, wanted: int) -> int:
        """Returns a different size from time to time, to learn what other sizes cost."""
        last = self._seen[-1]
        slow, half, double = last.seconds > TARGET, max(1, last.rows // 2), 2 * last.rows
        if len(self._seen) == 1:  # the first one, or the first after a change
            return min(wanted, half) if slow else max(wanted, double)
        if slow:
            wanted = max(wanted, half)
        full = last.rows >= self._full
        if self._alike < _PROBE_AFTER or (full and not slow):
            return wanted
        self._alike = 0
        shrink = full or (self._fixed_share > 0.5 and last.rows > 1)
        return half if shrink else min(double, self._full)

    def _cost(self) -> Cost:
        """Returns the costs that fit the measurements best; if unclear, in the last proportion."""
        if self._separable:
            cost = self._fitted()
            last = self._seen[-1]
            self._fixed_share = cost.call * last.calls / max(1e-9, cost.of(last.calls, last.rows))
            return cost
        weights = [_FADING**age for age in range(len(self._seen))]
        times = zip(weights, reversed(self._seen), strict=True)
        a_row = sum(weight * seen.seconds / seen.rows for weight, seen in times) / sum(weights)
        rows_a_call = self._seen[-1].rows_a_call
        return Cost(a_row * rows_a_call * self._fixed_share, a_row * (1 - self._fixed_share))

    def _fitted(self) -> Cost:
        """Returns the least-squares fit by relative error, with neither cost below zero."""
        calls2 = both = rows2 = calls_time = rows_time = 0.0
        for age, seen in enumerate(reversed(self._seen)):
            weight = _FADING**age / seen.seconds**2
            calls2 += weight * seen.calls**2
            both += weight * seen.calls * seen.rows
            rows2 += weight * seen.rows**2
            calls_time += weight * seen.calls * seen.seconds
            rows_time += weight * seen.rows * seen.seconds
        spread = max(calls2 * rows2 - both**2, 1e-12 * calls2 * rows2)
        call = (calls_time * rows2 - rows_time * both) / spread
        row = (rows_time * calls2 - calls_time * both) / spread
        if call <= 0:
            return Cost(0.0, rows_time / rows2)
        return Cost(call, row) if row > 0 else Cost(calls_time / calls2, 1e-12)
