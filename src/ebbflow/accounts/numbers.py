"""The numbers of a running task, for people: a few for each chunk, none for a message.

Durations are counted in fixed buckets, so that the counts of many tasks add up; quantiles are
estimated within a bucket, as Prometheus does. The task counts them in ``events``.

A ``TaskState`` is all that a task reports about itself. It is always sent as a whole, so the next
report makes up for a lost one.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple

from ebbflow.engine.outage import Waiting
from ebbflow.nats.publish import Tally

BOUNDS = (
    *(0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05),
    *(0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0),
)
"""The upper bounds of the buckets, in seconds; a last bucket holds all that took longer."""

MESSAGE = "message"
"""The time of user code for one message, counted in addition to the stages."""

_BUCKETS = len(BOUNDS) + 1


@dataclass(slots=True)
class Histogram:
    """The durations so far: how many in each bucket, and their sum in ``seconds``."""

    buckets: list[int] = field(default_factory=lambda: [0] * _BUCKETS)
    seconds: float = 0.0

    def add(self, seconds: float, times: int = 1) -> None:
        """Counts a duration, or ``times`` durations with this average."""
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
        """Returns the estimated seconds that this share of durations took at most; 0 if none."""
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
    """Returns the point at this share of a bucket's range; the last bucket has no upper bound."""
    edges: Sequence[float] = (0.0, *BOUNDS, BOUNDS[-1])
    return edges[number] + share * (edges[number + 1] - edges[number])


@dataclass(frozen=True, slots=True)
class TaskNumbers:
    """The counts of tasks: durations by stage, and rows sent by target vertex."""

    spreads: dict[str, Histogram] = field(default_factory=dict)
    sent: dict[str, int] = field(default_factory=dict)

    def __add__(self, other: TaskNumbers) -> TaskNumbers:
        sent = {to: self.sent.get(to, 0) + other.sent.get(to, 0) for to in self.sent | other.sent}
        spreads = dict(self.spreads)
        for name, spread in other.spreads.items():
            spreads[name] = spreads[name] + spread if name in spreads else spread
        return TaskNumbers(spreads, sent)


class Load(NamedTuple):
    """How busy a task was in the last seconds, from 0 to 1, and the idle cores of its host."""

    busy: float = 0.0
    idle_cores: float = 0.0


@dataclass(frozen=True, slots=True)
class TaskState:
    """What a task reports about itself; ``task`` is unique among the tasks of its partition.

    ``tally`` and ``numbers`` are counted since the task began. ``pending`` are the messages that
    wait at the source, ``waiting`` is the system that is unavailable, ``halted`` says why there are
    too many dead letters. ``in_flight`` are the rows in flight and since when, a POSIX time.
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
    in_flight: tuple[int, float] | None = None
    inline_from: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Returns it for JSON."""
        spreads = {name: [s.seconds, *s.buckets] for name, s in self.numbers.spreads.items()}
        plain = (
            "vertex",
            "partition",
            "task",
            "inline_from",
            "pending",
            "halted",
            "opened",
            "in_flight",
        )
        return {name: getattr(self, name) for name in plain} | {
            "tally": asdict(self.tally),
            "waiting": asdict(self.waiting) if self.waiting else None,
            "spreads": spreads,
            "sent": self.numbers.sent,
        }

    @classmethod
    def from_json(cls, facts: dict[str, Any]) -> TaskState:
        """Returns it from JSON."""
        facts = dict(facts)
        spreads, sent = facts.pop("spreads"), facts.pop("sent")
        loaded = {name: Histogram([*map(int, n)], sec) for name, (sec, *n) in spreads.items()}
        waiting, tally = facts.pop("waiting"), Tally(**facts.pop("tally"))
        return cls(
            **facts | {"inline_from": tuple(facts["inline_from"])},
            tally=tally,
            numbers=TaskNumbers(loaded, sent),
            waiting=Waiting(**waiting) if waiting else None,
        )
