"""The arithmetic of waiting: durations as people write and read them, and waits that grow.

Every option that waits is written the same way everywhere: in Python, in YAML and on the wire.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from datetime import timedelta
from fractions import Fraction
from numbers import Real

Duration = timedelta | int | float | str
"""A ``timedelta``, a number of milliseconds, or text such as ``"700ms"``, ``"5s"``, ``"1m30s"``."""

_MS = timedelta(milliseconds=1)
_NANOS = {"ns": 1, "us": 10**3, "µs": 10**3, "ms": 10**6, "s": 10**9, "m": 60 * 10**9}
_NANOS["h"] = 60 * _NANOS["m"]
_PART = re.compile(r"(\d+(?:\.\d*)?|\.\d+)(ns|us|µs|ms|s|m|h)")


def milliseconds(duration: Duration) -> int:
    """The duration in whole milliseconds, rounded up so that a wait is never too short."""
    # Exact, not in floats: 0.07 s is 70 ms, where 0.07 * 1000 is a little more.
    value = _exact(duration)
    if not 0 <= value < 2**53:
        raise ValueError(f"{duration!r} is not a duration from 0 up")
    return math.ceil(value)


def _exact(duration: Duration) -> Fraction | float | int:
    if isinstance(duration, timedelta):
        return -(-duration // _MS)
    if isinstance(duration, str):
        return _parse(duration)
    if isinstance(duration, bool) or not isinstance(duration, Real):
        raise ValueError(f"{duration!r} is not a duration")
    return duration


def _parse(text: str) -> Fraction:
    stripped = text.strip()
    parts = list(_PART.finditer(stripped))
    if not parts or "".join(part.group() for part in parts) != stripped:
        raise ValueError(f"{text!r} is not a duration; write for example 700ms, 5s or 1m30s")
    return sum((Fraction(part[1]) * _NANOS[part[2]] for part in parts), Fraction()) / 10**6


def format_duration(seconds: float) -> str:
    """Returns a time that has passed or is to pass, in the two largest units at most."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    minutes, rest = divmod(whole, 60)
    if minutes < 60:
        return f"{minutes} min {rest} s" if rest and minutes < 10 else f"{minutes} min"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if minutes else f"{hours} h"


@dataclass(frozen=True, slots=True)
class Backoff:
    """Waits that grow: ``interval``, ``interval * factor``, … at most ``cap`` (milliseconds).

    ``steps`` is the number of retries after the first call: no end of them, if left out.
    """

    interval: int
    steps: int = 2**31 - 1
    factor: float = 1.0
    cap: int = 2**32 - 1
    jitter: float = 0.0

    def wait(self, retry: int, chance: float = 0.5) -> int:
        """Milliseconds before the given retry (1 is the first). ``chance`` is from [0, 1)."""
        try:
            grown = self.interval * self.factor ** (retry - 1) if self.interval else 0.0
        except OverflowError:
            return self.cap
        spread = 1 + self.jitter * (2 * chance - 1)
        return int(min(grown * spread, self.cap))

    def seconds(self, retry: int) -> float:
        """Returns the wait before the given retry (1 is the first) in seconds."""
        return self.wait(retry) / 1000


DEFAULT_ON_ERROR = Backoff(interval=1_000, steps=5, factor=2.0, cap=60_000)
"""For exceptions that user code did not mean: 1 s doubling to 60 s, at most 5 redeliveries."""

SERVED_ON_ERROR = Backoff(interval=100, steps=1)
"""The same where a caller waits for the answer: one quick redelivery."""
