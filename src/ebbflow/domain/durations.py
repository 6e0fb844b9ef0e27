"""The arithmetic of waiting: durations as people write and read them, and waits that grow.

Every duration is a text with a unit or a ``timedelta``; YAML has the text. A bare number is
rejected: readers would take it for seconds in one place and milliseconds in another.
"""

from __future__ import annotations

import functools
import math
import re
from dataclasses import dataclass
from datetime import timedelta
from fractions import Fraction

from ebbflow.domain.spelling import named_options

Duration = timedelta | str
"""A ``timedelta``, or text such as ``"700ms"``, ``"5s"``, ``"1m30s"``."""

_MS = timedelta(milliseconds=1)
_NANOS = {"ns": 1, "us": 10**3, "µs": 10**3, "ms": 10**6, "s": 10**9, "m": 60 * 10**9}
_NANOS["h"] = 60 * _NANOS["m"]
_NUMBER = re.compile(r"[0-9]{1,12}(\.[0-9]{1,12})?")
_PART = re.compile(r"([0-9]+(?:\.[0-9]*)?|\.[0-9]+)(ns|us|µs|ms|s|m|h)")


def milliseconds(duration: Duration) -> int:
    """The duration in whole milliseconds, rounded up so that a wait is never too short."""
    if isinstance(duration, str):
        return _parse(duration)
    if isinstance(duration, timedelta):
        return _check_range(-(-duration // _MS), duration)
    raise ValueError(explain_unit(duration))


def _check_range(value: Fraction | int, duration: Duration) -> int:
    if not 0 <= value < 2**53:
        raise ValueError(f"{duration!r} is not a duration from 0 up")
    return math.ceil(value)


def is_duration(text: str) -> bool:
    """Returns whether a text is a duration and nothing else."""
    return text[:1].isdigit() and re.fullmatch(f"({_PART.pattern})+", text) is not None


def to_seconds(duration: Duration) -> float:
    """The duration in seconds, as ``milliseconds`` rounds it."""
    return milliseconds(duration) / 1000


def explain_unit(value: object) -> str:
    """Returns why a value that is not text or a ``timedelta`` is rejected, and what to write."""
    number = value if _NUMBER.fullmatch(str(value)) else 5
    problem = "has no unit" if isinstance(value, int | float) else "is not a duration"
    return f'{value!r:.60} {problem}; write "{number}s" or timedelta(seconds={number})'


@functools.lru_cache(maxsize=1_000)  # user code asks for the same delay again and again
def _parse(text: str) -> int:
    stripped = text.strip()
    parts = list(_PART.finditer(stripped))
    if not parts or "".join(part.group() for part in parts) != stripped:
        raise ValueError(f"{text!r} is not a duration; write for example 700ms, 5s or 1m30s")
    # Exact, not in floats: 0.07 s is 70 ms, where 0.07 * 1000 is a little more.
    nanos = sum((Fraction(part[1]) * _NANOS[part[2]] for part in parts), Fraction())
    return _check_range(nanos / 10**6, text)


def format_duration(seconds: float) -> str:
    """Returns a duration as text, in its two largest units at most."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    minutes, rest = divmod(whole, 60)
    if minutes < 60:
        return f"{minutes} min {rest} s" if rest and minutes < 10 else f"{minutes} min"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if minutes else f"{hours} h"


_LONGEST_WAIT = timedelta(milliseconds=2**32 - 1)


@dataclass(frozen=True, slots=True, init=False)
class Backoff:
    """Waits that grow: ``interval``, ``interval * factor``, … at most ``cap``.

    ``Backoff("1s", steps=3, factor=2.0, cap="1m")``. Both durations are kept in milliseconds.
    ``steps`` is the number of retries after the first call. If it is left out, there is no limit.
    ``jitter`` is the share by which a wait may be longer or shorter.
    """

    interval: int
    steps: int
    factor: float
    cap: int
    jitter: float

    @named_options
    def __init__(
        self,
        interval: Duration,
        steps: int = 2**31 - 1,
        factor: float = 1.0,
        cap: Duration = _LONGEST_WAIT,
        jitter: float = 0.0,
    ) -> None:
        kept = (milliseconds(interval), steps, factor, milliseconds(cap), jitter)
        for name, value in zip(self.__slots__, kept, strict=True):
            object.__setattr__(self, name, value)

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


DEFAULT_ON_ERROR = Backoff("1s", steps=5, factor=2.0, cap="60s")
"""For unexpected exceptions in user code: 1 s doubling to 60 s, at most 5 redeliveries."""

SERVED_ON_ERROR = Backoff("100ms", steps=1)
"""The same if a caller waits for the answer: one quick redelivery."""
