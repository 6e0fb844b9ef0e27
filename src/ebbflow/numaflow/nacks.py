"""Nacks that are held back until their delay is over.

For sources that are told no options, as those of pynumaflow: they would give a message again at
once. Until its time has come the source counts the message as on its way; if its process ends
before, it gives the message again anyway. Times are seconds of any clock that only rises.
"""

from __future__ import annotations

import heapq
import sys
from collections.abc import Sequence

from ebbflow.domain.message import NackOptions
from ebbflow.domain.source import NackOffset
from ebbflow.numaflow.proto import nack_options_pb2

_LONGEST_DELAY = 2**53 - 1
"""Milliseconds: longer than any delay that means something, and all that a delay can hold."""


def read_options(said: nack_options_pb2.NackOptions) -> NackOptions:
    """Returns what a function asked for."""
    return NackOptions(
        min(said.delay, _LONGEST_DELAY) if said.HasField("delay") else None,
        said.max_deliveries if said.HasField("max_deliveries") else None,
        said.reason if said.HasField("reason") else None,
    )


def write_options(options: NackOptions) -> nack_options_pb2.NackOptions:
    """Returns options as a function hears them."""
    return nack_options_pb2.NackOptions(
        delay=options.delay, max_deliveries=options.max_deliveries, reason=options.reason
    )


class HeldNacks:
    """The nacks of one source, by the time when the source is to hear of them."""

    def __init__(self) -> None:
        self._waiting: list[tuple[float, bytes]] = []

    def hold(self, nacks: Sequence[NackOffset], now: float) -> None:
        """Holds nacks until their delays are over, from now on."""
        for nack in nacks:
            heapq.heappush(self._waiting, (now + (nack.options.delay or 0) / 1000, nack.offset))

    def take_due(self, now: float, most: int = sys.maxsize) -> list[NackOffset]:
        """Returns the nacks whose time has come, ``most`` of them, without options."""
        due: list[NackOffset] = []
        while self._waiting and self._waiting[0][0] <= now and len(due) < most:
            due.append(NackOffset(heapq.heappop(self._waiting)[1], NackOptions()))
        return due

    def forget(self) -> None:
        """Forgets all: the source has been started anew and gives the messages again."""
        self._waiting.clear()

    def due_in(self, now: float) -> float:
        """Returns the seconds until the next one is due."""
        return max(0.0, self._waiting[0][0] - now) if self._waiting else float("inf")
