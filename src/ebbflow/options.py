"""What user code may ask for when it wants a message back: ``NackOptions``, ``Nack``, ``nack``.

Also the arithmetic of waiting (durations and back-off), because every option that waits is
written the same way everywhere: in Python, in YAML and on the wire.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from datetime import timedelta
from fractions import Fraction
from numbers import Real
from typing import NoReturn

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


@dataclass(frozen=True, slots=True, init=False)
class NackOptions:
    """How a nacked message is to come back. All fields are optional and unset is not zero.

    ``delay`` is kept in milliseconds (any ``Duration`` is accepted): the message is not
    redelivered before it is over. ``max_deliveries`` is the number of *re*deliveries allowed, so
    ``2`` means at most three calls; after that the message goes to the fallback sink, if the
    vertex has one, else to the dead letters. ``reason`` is for people: logged, kept on the
    message and on its dead letter, never used for routing.
    """

    delay: int | None
    max_deliveries: int | None
    reason: str | None

    def __init__(
        self,
        delay: Duration | None = None,
        max_deliveries: int | None = None,
        reason: str | None = None,
    ) -> None:
        if max_deliveries is not None and (
            isinstance(max_deliveries, bool)
            or not isinstance(max_deliveries, int)
            or not 0 <= max_deliveries < 2**32
        ):
            raise ValueError(
                f"max_deliveries must be a whole number from 0, not {max_deliveries!r}"
            )
        if reason is not None and not isinstance(reason, str):
            raise ValueError(f"reason must be text, not {reason!r}")
        object.__setattr__(self, "delay", None if delay is None else milliseconds(delay))
        object.__setattr__(self, "max_deliveries", max_deliveries)
        # A reason may come from anywhere; what cannot be written must not stop a redelivery.
        text = None if reason is None else reason.encode("utf-8", "replace").decode()
        object.__setattr__(self, "reason", text)


class Nack(Exception):
    """Raised by user code, at any depth, to have the message it is working on redelivered.

    In a sink it nacks every message of the call; return ``Response.nack`` to nack only some.
    """

    def __init__(
        self,
        delay: Duration | None = None,
        max_deliveries: int | None = None,
        reason: str | None = None,
    ) -> None:
        self.options = NackOptions(delay, max_deliveries, reason)
        super().__init__(self.options.delay, max_deliveries, reason)

    @classmethod
    def of(cls, options: NackOptions | None) -> Nack:
        """The exception that asks for what the options say."""
        wish = options or NackOptions()
        return cls(wish.delay, wish.max_deliveries, wish.reason)

    def __str__(self) -> str:
        return self.options.reason or "nack"


def nack(
    delay: Duration | None = None,
    max_deliveries: int | None = None,
    reason: str | None = None,
) -> NoReturn:
    """Give the message at hand back for redelivery: ``raise Nack(...)`` as a call."""
    raise Nack(delay, max_deliveries, reason)


@dataclass(frozen=True, slots=True)
class Backoff:
    """Waits that grow: ``interval``, ``interval * factor``, … at most ``cap`` (milliseconds).

    ``steps`` is the number of retries after the first call.
    """

    interval: int
    steps: int
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


DEFAULT_ON_ERROR = Backoff(interval=1_000, steps=5, factor=2.0, cap=60_000)
"""For exceptions that user code did not mean: 1 s doubling to 60 s, at most 5 redeliveries."""
