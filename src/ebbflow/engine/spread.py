"""How durations are spread: counted in fixed buckets, so that those of many tasks add up.

A task adds a few numbers a chunk, never one a message. Quantiles are estimated within a bucket, as
Prometheus does it.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field

BOUNDS = (
    *(0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05),
    *(0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0),
)
"""The upper bounds of the buckets, in seconds; a last bucket holds all that took longer."""

_BUCKETS = len(BOUNDS) + 1


@dataclass(slots=True)
class Spread:
    """The durations so far: how many in each bucket, and all of them together in ``seconds``."""

    buckets: list[int] = field(default_factory=lambda: [0] * _BUCKETS)
    seconds: float = 0.0

    def add(self, seconds: float, times: int = 1) -> None:
        """Counts a duration; ``times`` if so many took as long as this on average."""
        self.buckets[bisect_left(BOUNDS, seconds)] += times
        self.seconds += seconds * times

    @property
    def count(self) -> int:
        """The number of durations."""
        return sum(self.buckets)

    @property
    def mean(self) -> float:
        """The average, in seconds; 0 if there is none."""
        return self.seconds / max(1, self.count)

    def quantile(self, share: float) -> float:
        """Returns the seconds within which this share of all ended, estimated; 0 if none has."""
        left = share * self.count
        for number, inside in enumerate(self.buckets):
            if inside and left <= inside:
                return _within(number, left / inside)
            left -= inside
        return 0.0

    def __add__(self, other: Spread) -> Spread:
        pairs = zip(self.buckets, other.buckets, strict=True)
        return Spread([mine + its for mine, its in pairs], self.seconds + other.seconds)

    def __sub__(self, other: Spread) -> Spread:
        pairs = zip(self.buckets, other.buckets, strict=True)
        return Spread([mine - its for mine, its in pairs], self.seconds - other.seconds)


def _within(number: int, share: float) -> float:
    """Returns the point at this share of the way through a bucket; the last one has no end."""
    edges: Sequence[float] = (0.0, *BOUNDS, BOUNDS[-1])
    return edges[number] + share * (edges[number + 1] - edges[number])
