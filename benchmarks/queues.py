"""From one queue or topic of a service to another, upper case, next to a bare loop.

What is the same for Pulsar, SQS and Pub/Sub. A ``Service`` is one of them, for as long as its part
of the benchmark lasts. Every run has its own ``Ends``, and ends with a check of all that arrived.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import NamedTuple, Protocol

from benchmarks import peers
from benchmarks.broker import Ground, spark_processes
from benchmarks.contest import Contestant, Round, Watched, watched
from benchmarks.ours import EBBFLOW, lay_out, planned, running
from benchmarks.work import upper
from ebbflow import MonoVertex
from ebbflow.connectors import Connector

MONO = f"{EBBFLOW} MonoVertex"
_EVERY = 0.1


class NoService(Exception):
    """Why there is no such service on this machine."""


class Arrived(NamedTuple):
    """The seconds that all messages took, and how many arrived again."""

    seconds: float
    copies: int = 0


class Ends(Protocol):
    """The two ends of one run: a queue or topic with numbered texts, and one to fill."""

    @property
    def source(self) -> Connector:
        """Reads the first."""

    @property
    def sink(self) -> Connector:
        """Fills the second."""

    @property
    def words(self) -> Sequence[str]:
        """The arguments of the bare loop."""

    def done(self) -> int:
        """Returns how many messages are done so far."""

    def check(self) -> Arrived:
        """Returns what arrived; ``NotOnce`` if a message is missing or not in upper case."""


Fill = Callable[[int, int, int], Ends]
"""Makes the ends of a run: that many messages of this size, from this seed."""


@dataclass(frozen=True)
class Service:
    """A service that runs, and the bare loop on its own client, which is in ``module``.

    ``pace`` is about what all contestants reach.
    """

    job: str
    loop: str
    module: str
    fill: Fill
    pace: int

    def contestants(self) -> Iterator[Contestant]:
        """All contestants."""
        yield Ours(self.fill, self.job, self.pace)
        yield Loop(self.loop, self.module, self.fill, self.job, self.pace)


Running = Callable[[], AbstractContextManager[Service]]
"""Runs a service for as long as the context lasts; ``NoService`` if it is not available."""


@dataclass
class Ours:
    """A MonoVertex."""

    fill: Fill
    job: str
    pace: int
    name = MONO
    mode = "unary"

    def run(self, ground: Ground, messages: int, size: int) -> Round:
        """By the service's own times."""
        ends = self.fill(messages, size, ground.seed)
        mono = MonoVertex("bench").source(ends.source).map(upper)
        plans = planned(ground, mono.sink(ends.sink))
        lay_out(ground, plans)
        with running(ground, plans):
            found = watched(spark_processes, ends.done, messages, _EVERY)
        return _round(found, messages, ends)


@dataclass
class Loop:
    """A bare loop on the service's own client."""

    name: str
    module: str
    fill: Fill
    job: str
    pace: int
    mode = "unary"

    def run(self, ground: Ground, messages: int, size: int) -> Round:
        """By the service's own times."""
        ends = self.fill(messages, size, ground.seed)
        command = [sys.executable, "-m", f"benchmarks.workers.{self.module}", *ends.words]
        with peers.process_of(command) as process:
            found = watched(lambda: [process], ends.done, messages, _EVERY)
        return _round(found, messages, ends)


def _round(found: Watched, messages: int, ends: Ends) -> Round:
    arrived = ends.check()
    return replace(found.round(messages, arrived.seconds), copies=arrived.copies)
