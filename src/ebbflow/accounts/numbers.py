"""How durations are spread: counted in fixed buckets, so that those of many tasks add up.

A task adds a few numbers a chunk, never one a message. Quantiles are estimated within a bucket, as
Prometheus does it.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from ebbflow.engine.raised import Raised, RaisedErrors

BOUNDS = (
    *(0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05),
    *(0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0),
)
"""The upper bounds of the buckets, in seconds; a last bucket holds all that took longer."""

_BUCKETS = len(BOUNDS) + 1


@dataclass(slots=True)
class Histogram:
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

    def __add__(self, other: Histogram) -> Histogram:
        pairs = zip(self.buckets, other.buckets, strict=True)
        return Histogram([mine + its for mine, its in pairs], self.seconds + other.seconds)

    def __sub__(self, other: Histogram) -> Histogram:
        pairs = zip(self.buckets, other.buckets, strict=True)
        return Histogram([mine - its for mine, its in pairs], self.seconds - other.seconds)


def _within(number: int, share: float) -> float:
    """Returns the point at this share of the way through a bucket; the last one has no end."""
    edges: Sequence[float] = (0.0, *BOUNDS, BOUNDS[-1])
    return edges[number] + share * (edges[number + 1] - edges[number])


STAGES = ("read", "call", "publish", "settle")
"""The stages of a chunk: gathered, decided by user code, published, recorded."""

MESSAGE = "message"
"""The time of user code for one message, counted beside the stages."""

_MOST_TOLD = 25


@dataclass(slots=True)
class ChunkRecord:
    """One chunk: when it was taken, its rows, and the seconds of each stage so far."""

    at: datetime
    rows: int
    read: float = 0.0
    call: float = 0.0
    publish: float = 0.0
    settle: float = 0.0
    ended: bool = False

    def end(self) -> None:
        """Notes that all of it is confirmed; from any thread."""
        self.ended = True

    def to_json(self) -> list[float]:
        """Returns it as it is told: time and rows, then microseconds."""
        micros = (round(getattr(self, stage) * 1e6) for stage in STAGES)
        return [self.at.timestamp(), self.rows, *micros]


class Measures:
    """The numbers of one task since it began. Used by the task's thread."""

    def __init__(self) -> None:
        self.spreads = {stage: Histogram() for stage in (*STAGES, MESSAGE)}
        self.sent: Counter[str] = Counter()
        self.raised = RaisedErrors()
        self._open: list[ChunkRecord] = []
        self._told: deque[ChunkRecord] = deque(maxlen=_MOST_TOLD)

    def begin_chunk(self, at: datetime, rows: int) -> ChunkRecord:
        """Returns the record of a chunk that was just taken."""
        record = ChunkRecord(at, rows)
        self._open.append(record)
        return record

    def note_errors(self, errors: RaisedErrors) -> None:
        """Counts what user code has raised."""
        if errors:
            self.raised.merge(errors)

    def note_sent(self, rows: dict[str, int]) -> None:
        """Counts rows that go to the next vertices, by vertex."""
        self.sent.update(rows)

    @property
    def in_hand(self) -> tuple[int, float] | None:
        """The rows that are taken and not confirmed, and since when; from any thread."""
        records = [record for record in self._open.copy() if not record.ended]
        if not records:
            return None
        return sum(record.rows for record in records), records[0].at.timestamp()

    def add_up(self) -> None:
        """Counts the chunks that have ended since the last time."""
        ended = [record for record in self._open if record.ended]
        if not ended:
            return
        self._open = [record for record in self._open if not record.ended]
        for record in ended:
            for stage in STAGES:
                self.spreads[stage].add(getattr(record, stage))
            if record.rows:
                self.spreads[MESSAGE].add(record.call / record.rows, record.rows)
        self._told.extend(ended)

    def take_chunks(self) -> list[list[float]]:
        """Returns the chunks that have ended since they were last asked for, the newest of them."""
        chunks = [record.to_json() for record in self._told]
        self._told.clear()
        return chunks

    def take_errors(self) -> list[dict[str, Any]]:
        """Returns what was raised since this was last asked for."""
        raised, self.raised = self.raised, RaisedErrors()
        return [dump_raised(group) for group in raised]

    def spreads_as_json(self) -> dict[str, list[float]]:
        """Returns the spreads as they are told."""
        return {name: [s.seconds, *s.buckets] for name, s in self.spreads.items() if s.count}


def dump_raised(raised: Raised) -> dict[str, Any]:
    """Returns a group of errors as it is told."""
    return {name: getattr(raised, name) for name in Raised.__slots__}


def load_spreads(raw: dict[str, list[float]]) -> dict[str, Histogram]:
    """Returns spreads from what was told."""
    return {name: Histogram([int(n) for n in rest], sec) for name, (sec, *rest) in raw.items()}


def add_spreads(parts: Iterable[dict[str, Histogram]]) -> dict[str, Histogram]:
    """Returns the spreads of several tasks together."""
    total: dict[str, Histogram] = {}
    for part in parts:
        for name, spread in part.items():
            total[name] = total[name] + spread if name in total else spread
    return total
