"""Nacks in the protocol: their options, and the nacks that wait until their delay is over.

A source whose SDK has no nack options, such as pynumaflow's, would redeliver a nacked message at
once. ``HeldNacks`` keeps such a nack until its delay is over. Until then the source counts the
message as in flight; if its process ends before, it redelivers the message anyway. Times are
seconds of any monotonic clock.
"""

from __future__ import annotations

import heapq
import sys
from collections.abc import Sequence
from typing import Any

from ebbflow.domain.message import NackOptions
from ebbflow.domain.user_source import NackOffset

_LONGEST_DELAY = 2**53 - 1
"""Milliseconds: longer than any sensible delay, and the most that a delay can hold."""


OPTIONS = ("delay", "max_deliveries", "reason")
"""The options of a nack: the same names in the protocol and in ``NackOptions``."""


def read_option(sent: Any, name: str) -> Any:
    """Returns one option that a function sent, ``None`` if it is not set."""
    return getattr(sent, name) if sent.HasField(name) else None


def read_nack_options(sent: Any) -> NackOptions:
    """Returns the options that a function sent."""
    delay, most, reason = (read_option(sent, name) for name in OPTIONS)
    return NackOptions(None if delay is None else min(delay, _LONGEST_DELAY), most, reason)


def write_nack_options(options: NackOptions) -> dict[str, Any]:
    """Returns options as the fields that a function reads; unset options stay unset."""
    return {name: value for name in OPTIONS if (value := getattr(options, name)) is not None}


class HeldNacks:
    """The nacks of one source, by the time when each is due."""

    def __init__(self) -> None:
        self._waiting: list[tuple[float, bytes]] = []

    def hold(self, nacks: Sequence[NackOffset], now: float) -> None:
        """Holds nacks until their delays are over, from now on."""
        for nack in nacks:
            heapq.heappush(self._waiting, (now + (nack.options.delay or 0) / 1000, nack.offset))

    def take_due(self, now: float, most: int = sys.maxsize) -> list[NackOffset]:
        """Returns the nacks that are due, at most ``most`` of them, without options."""
        due: list[NackOffset] = []
        while self._waiting and self._waiting[0][0] <= now and len(due) < most:
            due.append(NackOffset(heapq.heappop(self._waiting)[1], NackOptions()))
        return due

    def forget(self) -> None:
        """Forgets all: the source has been restarted and redelivers the messages by itself."""
        self._waiting.clear()

    def due_in(self, now: float) -> float:
        """Returns the seconds until the next nack is due."""
        return max(0.0, self._waiting[0][0] - now) if self._waiting else float("inf")
