"""The generator source: generated messages at a steady rate, for demos, tests and benchmarks.

The payload is Numaflow's, ``{"id": "nanoseconds-partition", "value": n, "padding": [byte, …]}``
with n counting from 0, or the configured blob. With several partitions each generates its share of
the numbers, each at the configured rate. A number always has the same message id, so a replay after
a crash is recognised.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from random import Random

import pyarrow as pa

from ebbflow.engine import frames
from ebbflow.engine.inlet import NEVER, Inlet
from ebbflow.engine.position import Mark

_OVERHEAD = 8
_now = partial(datetime.now, UTC)


@dataclass(frozen=True, slots=True)
class GeneratorPlan:
    """The generator's settings.

    ``rate`` is in messages a second for each partition, ``None`` for no limit. An event time is a
    whole number of seconds, less than ``jitter``, before the message is generated.
    """

    rate: float | None
    messages: int | None = None
    size: int = 8
    key_count: int = 0
    value: int | None = None
    blob: bytes | None = None
    jitter: int = 0


class GeneratorInlet(Inlet):
    """One partition of a generator. It stores nothing: any row can be generated from its number."""

    def __init__(
        self,
        plan: GeneratorPlan,
        vertex: str,
        partition: int,
        partitions: int,
        start: Mark,
        monotonic: Callable[[], float] = time.monotonic,
        now: Callable[[], datetime] = _now,
    ) -> None:
        self._monotonic, self._now = monotonic, now
        self.mark = start
        self._plan = plan
        self._vertex = vertex
        self._partition = partition
        self._partitions = partitions
        self._rate = plan.rate
        self._last = None if plan.messages is None else self._share(plan.messages)
        self._began = monotonic()
        self._first = start.seq
        self._random = Random(partition)  # noqa: S311 - not for secrets
        padding = self._random.randbytes(max(0, plan.size - _OVERHEAD))
        self._padding = b',"padding":[%b]' % b",".join(b"%d" % byte for byte in padding)
        self._padding *= bool(padding)

    def _share(self, messages: int) -> int:
        return max(0, -(-(messages - self._partition) // self._partitions))

    @property
    def exhausted(self) -> bool:
        """Whether all configured messages have been generated."""
        return self._last is not None and self.mark.seq >= self._last

    def _allowed(self) -> int:
        """Returns how many messages may exist by now."""
        if self._rate is None:
            return 2**62
        return self._first + int(self._elapsed() * self._rate)

    def ready_in(self) -> float:
        """Returns the seconds until the next message is due."""
        if self.exhausted:
            return NEVER
        if self._rate is None:
            return 0.0
        return max(0.0, (self.mark.seq + 1 - self._first) / self._rate - self._elapsed())

    def _elapsed(self) -> float:
        return self._monotonic() - self._began

    def take(self, limit: int) -> list[pa.RecordBatch]:
        """Returns the messages that are due, at most ``limit``."""
        end = min(self.mark.seq + limit, self._allowed())
        if self._last is not None:
            end = min(end, self._last)
        return self.take_until(Mark(end))

    def take_until(self, end: Mark) -> list[pa.RecordBatch]:
        """Returns the messages up to ``end``."""
        if end <= self.mark:
            return []
        numbers = range(
            self.mark.seq * self._partitions + self._partition,
            end.seq * self._partitions + self._partition,
            self._partitions,
        )
        self.mark = end
        return [self._batch(numbers)]

    def _batch(self, numbers: range) -> pa.RecordBatch:
        now = self._now()
        times = pa.repeat(pa.scalar(now, frames.TIME), len(numbers))
        columns = {
            "id": [f"{self._vertex}-{number}" for number in numbers],
            "value": self._values(numbers, round(now.timestamp() * 1e6) * 1_000),
            "event_time": self._event_times(now, len(numbers)) if self._plan.jitter > 1 else times,
            "first_seen": times,
        }
        if self._plan.key_count:
            count = self._plan.key_count
            columns["keys"] = [[f"key-{number % count}"] for number in numbers]
        return frames.batch_of(columns, len(numbers))

    def _values(self, numbers: range, now: int) -> list[bytes]:
        if self._plan.blob is not None:
            return [self._plan.blob] * len(numbers)
        fixed, partition, padding = self._plan.value, self._partition, self._padding
        return [
            b'{"id":"%d-%d","value":%d%b}'
            % (nanoseconds, partition, number if fixed is None else fixed, padding)
            for nanoseconds, number in enumerate(numbers, now)
        ]

    def _event_times(self, now: datetime, count: int) -> list[datetime]:
        late = (self._random.randrange(self._plan.jitter) for _ in range(count))
        return [now - timedelta(seconds=seconds) for seconds in late]
