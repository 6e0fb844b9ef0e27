"""The numbers of a running task, for people: a few for each chunk, none for a message.

Durations are counted in fixed buckets, so that those of many tasks add up; quantiles are estimated
within a bucket, as Prometheus does it. A ``ChunkRecord`` begins when a chunk is taken and ends when
all of it is confirmed; until then its rows are in flight. The task's thread begins records, the
thread of the link ends them, and the task's thread adds up those that have ended.

A ``TaskState`` is all that a task reports of itself. It is sent whole and kept whole: a report that
got lost is made up for by the next one.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime
from typing import Any

from ebbflow.engine.account import STAGES, ChunkRecord
from ebbflow.engine.causes import Raised, RaisedErrors
from ebbflow.engine.outage import Waiting
from ebbflow.nats.publish import Tally

BOUNDS = (
    *(0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05),
    *(0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0),
)
"""The upper bounds of the buckets, in seconds; a last bucket holds all that took longer."""

MESSAGE = "message"
"""The time of user code for one message, counted beside the stages."""

_MOST_TOLD = 25

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


@dataclass(frozen=True, slots=True)
class TaskNumbers:
    """What tasks have counted: durations by stage, and rows sent by the vertex they went to."""

    spreads: dict[str, Histogram] = field(default_factory=dict)
    sent: dict[str, int] = field(default_factory=dict)

    def __add__(self, other: TaskNumbers) -> TaskNumbers:
        sent = {to: self.sent.get(to, 0) + other.sent.get(to, 0) for to in self.sent | other.sent}
        spreads = dict(self.spreads)
        for name, spread in other.spreads.items():
            spreads[name] = spreads[name] + spread if name in spreads else spread
        return TaskNumbers(spreads, sent)


@dataclass(frozen=True, slots=True)
class TaskState:
    """What a task reports of itself; ``task`` tells it from those that had its partition before.

    ``tally`` and ``numbers`` are counted since the task began. ``pending`` are the messages that
    wait at the source, ``waiting`` is the system that is unavailable, ``halted`` says why there are
    too many dead letters. ``in_hand`` are the rows in flight and since when, a POSIX time.
    """

    vertex: str
    partition: int
    task: str = ""
    tally: Tally = field(default_factory=Tally)
    numbers: TaskNumbers = TaskNumbers()
    pending: int | None = None
    waiting: Waiting | None = None
    halted: str | None = None
    opened: bool = False
    in_hand: tuple[int, float] | None = None
    runner: str = ""

    def to_json(self) -> dict[str, Any]:
        """Returns it as it is sent."""
        spreads = {name: [s.seconds, *s.buckets] for name, s in self.numbers.spreads.items()}
        plain = ("vertex", "partition", "task", "runner", "pending", "halted", "opened", "in_hand")
        return {name: getattr(self, name) for name in plain} | {
            "tally": asdict(self.tally),
            "waiting": asdict(self.waiting) if self.waiting else None,
            "spreads": spreads,
            "sent": self.numbers.sent,
        }

    @classmethod
    def from_json(cls, facts: dict[str, Any]) -> TaskState:
        """Returns it from what was sent."""
        facts = dict(facts)
        spreads, sent = facts.pop("spreads"), facts.pop("sent")
        loaded = {name: Histogram([*map(int, n)], sec) for name, (sec, *n) in spreads.items()}
        waiting, tally = facts.pop("waiting"), Tally(**facts.pop("tally"))
        return cls(
            **facts,
            tally=tally,
            numbers=TaskNumbers(loaded, sent),
            waiting=Waiting(**waiting) if waiting else None,
        )


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

    @property
    def numbers(self) -> TaskNumbers:
        """What was counted since the task began."""
        counted = {name: spread for name, spread in self.spreads.items() if spread.count}
        return TaskNumbers(counted, dict(self.sent))


def dump_raised(raised: Raised) -> dict[str, Any]:
    """Returns a group of errors as it is told."""
    return {name: getattr(raised, name) for name in Raised.__slots__}
