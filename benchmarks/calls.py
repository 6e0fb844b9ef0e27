"""Sinks with a fixed cost per call, such as a bulk insert: do they get full calls?"""

from __future__ import annotations

import time
from dataclasses import dataclass
from functools import partial

from benchmarks.broker import Ground, wait_until
from benchmarks.ours import NAMES, counts, lay_out, running, vertex
from benchmarks.work import DISTINCT, write
from ebbflow import Datum, Response
from ebbflow.connectors.plans import UserSink
from ebbflow.runtime.plan import SinksPlan

SIZE = 100
_FULL = 500
# Until the sizes of chunks have settled; not measured.
_FIRST = 6 * _FULL
_FAST, _MOST = 500_000, 1_000_000


@dataclass(frozen=True, slots=True)
class CallCost:
    """Messages a second of a sink whose every call takes an extra ``milliseconds``."""

    milliseconds: int
    rate: float

    @property
    def best(self) -> float | None:
        """The rate with only full calls, one after another."""
        return _FULL * 1000 / self.milliseconds if self.milliseconds else None


class Waiting:
    """Waits a while in each call, whatever the number of messages."""

    def __init__(self, milliseconds: int) -> None:
        self._seconds = milliseconds / 1000

    def __call__(self, data: list[Datum]) -> list[Response]:
        """Writes, after a wait."""
        time.sleep(self._seconds)
        return write(data)


def by_cost(ground: Ground, milliseconds: int, seconds: float) -> CallCost:
    """One sink behind a filled buffer, for about that many seconds."""
    plan = vertex(
        ground, "sink", SinksPlan(UserSink(partial(Waiting, milliseconds))), batch_size=_FULL
    )
    lay_out(ground, [plan])
    rate = CallCost(milliseconds, 0.0).best or _FAST
    last = _FIRST + int(min(rate * seconds, _MOST))
    # More than are waited for: the last of all are recorded sooner than those in the middle.
    loaded = last // DISTINCT * DISTINCT + 5 * DISTINCT
    ground.load_frames(NAMES.buffer_subject("sink", 0), loaded, SIZE)
    with running(ground, [plan]):
        began, before = _reached(ground, _FIRST)
        ended, after = _reached(ground, max(last, before + _FULL))
    return CallCost(milliseconds, (after - before) / (ended - began))


def _reached(ground: Ground, messages: int) -> tuple[float, int]:
    """Returns when at least this many were done, and how many exactly."""
    wait_until(lambda: counts(ground, "sink").done >= messages)
    return time.monotonic(), counts(ground, "sink").done
