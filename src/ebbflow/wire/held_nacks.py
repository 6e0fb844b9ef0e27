"""Nacks that are held back until their delay is over.

For functions whose SDK tells them no options: they would give a message again at once. Until its
time has come the function counts the message as on its way; if the function ends before, it gives
the message again anyway.
"""

from __future__ import annotations

import heapq
import time
from collections.abc import Sequence

from ebbflow.nacks import NackOptions
from ebbflow.source import NackOffset


class HeldNacks:
    """The nacks of one source, by the time when the function is to hear of them."""

    def __init__(self) -> None:
        self._waiting: list[tuple[float, bytes]] = []

    def hold(self, nacks: Sequence[NackOffset]) -> None:
        """Holds nacks until their delays are over, from now on."""
        now = time.monotonic()
        for nack in nacks:
            heapq.heappush(self._waiting, (now + (nack.options.delay or 0) / 1000, nack.offset))

    def take_due(self) -> list[NackOffset]:
        """Returns the nacks whose time has come, without options."""
        due, now = [], time.monotonic()
        while self._waiting and self._waiting[0][0] <= now:
            due.append(NackOffset(heapq.heappop(self._waiting)[1], NackOptions()))
        return due

    def forget(self) -> None:
        """Forgets all: the function has been started anew and gives the messages again."""
        self._waiting.clear()

    def due_in(self) -> float:
        """Returns the seconds until the next one is due."""
        return max(0.0, self._waiting[0][0] - time.monotonic()) if self._waiting else float("inf")
