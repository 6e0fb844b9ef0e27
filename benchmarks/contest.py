"""Contestants, and one round of a contest."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import psutil

from benchmarks.broker import Ground, cpu_seconds, wait_until

# The resolution of clocks; only tiny rounds are shorter.
_TICK = 0.001
HOP, SINK, MONO, THREE = "map hop", "sink", "MonoVertex", "three vertices"
END_TO_END, SOURCE, SINK_ALONE = "end to end", "source alone", "sink alone"
KAFKA, PULSAR = "Kafka to Kafka", "Pulsar to Pulsar"
SQS, PUBSUB = "SQS to SQS", "Pub/Sub to Pub/Sub"
POSTGRES, FUNCTIONS = "Postgres", "functions"


@dataclass(frozen=True, slots=True)
class Round:
    """Messages a second, and the seconds of CPU that a million of them took.

    The CPU is that of the contestant's processes: its workers, and Spark's own if it uses Spark.
    ``server`` is the share of one core that the user's own server took meanwhile, if there was one;
    ``latency`` the milliseconds that one call took, the median, where a client waits for each;
    ``copies`` how many messages arrived again, where a service may deliver them twice.
    """

    rate: float
    cpu: float
    server: float | None = None
    latency: float | None = None
    copies: int = 0


class Contestant(Protocol):
    """A program that does a job. ``pace`` is its approximate messages a second, to size rounds."""

    name: str
    job: str
    pace: int

    @property
    def mode(self) -> str:
        """The mode of the map: what one call receives."""

    def run(self, ground: Ground, messages: int, size: int) -> Round:
        """Does the job for that many messages of ``size`` bytes."""


@dataclass
class Case:
    """One contestant with one size of payload, and its rounds so far. ``part`` is the contest's."""

    part: str
    name: str
    job: str
    mode: str
    size: int
    messages: int
    rounds: list[Round] = field(default_factory=list)

    @property
    def rate(self) -> float:
        """The median."""
        return statistics.median(one.rate for one in self.rounds)

    @property
    def spread(self) -> tuple[float, float]:
        """The lowest and the highest rate."""
        rates = [one.rate for one in self.rounds]
        return min(rates), max(rates)

    @property
    def per_core(self) -> float:
        """Messages for each second of CPU, the median."""
        return statistics.median(1e6 / one.cpu for one in self.rounds)

    @property
    def server(self) -> float | None:
        """The share of one core that the user's own server took, the median."""
        return _median([one.server for one in self.rounds if one.server is not None])

    @property
    def latency(self) -> float | None:
        """The milliseconds that one call took, the median."""
        return _median([one.latency for one in self.rounds if one.latency is not None])

    @property
    def copies(self) -> int:
        """How many messages arrived again, in all rounds."""
        return sum(one.copies for one in self.rounds)


def _median(found: Sequence[float]) -> float | None:
    return statistics.median(found) if found else None


@dataclass(frozen=True, slots=True)
class Watched:
    """The cost of getting everything done: seconds, and seconds of CPU.

    ``server`` is the share of one core that the user's own server took, ``latency`` as in a round.
    """

    seconds: float
    cpu: float
    server: float | None = None
    latency: float | None = None

    def round(self, messages: int, seconds: float | None = None) -> Round:
        """Returns this as a round; ``seconds`` replaces its own if it is known more exactly."""
        took = max(seconds or self.seconds, _TICK)
        cpu = max(self.cpu, _TICK) / messages * 1e6
        return Round(messages / took, cpu, self.server, self.latency)


def watched(
    processes: Callable[[], Sequence[psutil.Process]],
    done: Callable[[], int],
    total: int,
    every: float = 0.01,
    server: psutil.Process | None = None,
) -> Watched:
    """Waits until all is done; assumes the average rate for what was done before the first look.

    This leaves out the start-up. ``server`` is the user's own.
    """
    outside = [server] if server else []
    wait_until(lambda: done() > 0, every)
    found = processes()
    began, used, first = time.monotonic(), cpu_seconds(found), done()
    served = cpu_seconds(outside)
    wait_until(lambda: done() >= total, every)
    share = total / max(1, total - first)
    seconds = time.monotonic() - began
    cores = (cpu_seconds(outside) - served) / max(seconds, _TICK) if server else None
    return Watched(seconds * share, (cpu_seconds(found) - used) * share, cores)
