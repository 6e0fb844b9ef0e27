"""Ebbflow's part: vertices on the Spark session, fed from a buffer that was filled in advance."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks import contest
from benchmarks.broker import Ground, spark_processes
from benchmarks.contest import Round, Watched, watched
from benchmarks.work import MAPS, payloads, write
from ebbflow.connectors.generator import GeneratorPlan
from ebbflow.connectors.plans import UserSink
from ebbflow.domain.code import Mode
from ebbflow.domain.durations import DEFAULT_ON_ERROR
from ebbflow.domain.outcome import Counts
from ebbflow.engine.position import Position, count_by_vertex
from ebbflow.engine.routing import Edge
from ebbflow.runtime.control import STOP
from ebbflow.runtime.feeds import Feeds
from ebbflow.runtime.plan import (
    CallLimits,
    MonoPlan,
    Policy,
    Role,
    RunFacts,
    SinksPlan,
    UserMap,
    VertexPlan,
)
from ebbflow.runtime.planning import make_plans
from ebbflow.runtime.provision import provision
from ebbflow.spark.supervisor import Supervisor
from ebbflow.streams import catalogue
from ebbflow.streams.names import Names, VertexStreams
from ebbflow.streams.positions import read_positions
from ebbflow.streams.provision import ensure
from ebbflow.usercode.monovertex import Bypass

if TYPE_CHECKING:
    from ebbflow.builders import Builder

NAMES = Names("bench")
EBBFLOW = "Ebbflow"
_LONG = 3600.0
_BUFFER = 10**6
_STOP = 30.0
Positions = dict[tuple[str, int], Position]


def vertex(
    ground: Ground,
    name: str,
    role: Role,
    to: Sequence[str] = (),
    partitions: int = 1,
    source: GeneratorPlan | None = None,
    batch_size: int = 500,
) -> VertexPlan:
    """A vertex of the pipeline ``bench``, with the defaults of a spec."""
    return VertexPlan(
        RunFacts(NAMES.pipeline, ground.link.server, ground.link.client.max_payload),
        VertexStreams(name, partitions, has_buffer=source is None, max_frames=_BUFFER),
        role,
        CallLimits(batch_size, concurrency=500),
        Policy(DEFAULT_ON_ERROR),
        tuple(map(Edge, to)),
        source,
    )


def chained(plans: Sequence[VertexPlan]) -> list[VertexPlan]:
    """The plans of a chain of vertices that share a task, as a run begins with it."""
    names = [plan.vertex for plan in plans]
    return [replace(plan, inline=tuple(names[number + 1 :])) for number, plan in enumerate(plans)]


def mapping(mode: Mode) -> UserMap:
    """The work as a map."""
    return UserMap(MAPS[mode], mode)


SINKS = SinksPlan(UserSink(write))


def lay_out(ground: Ground, plans: Sequence[VertexPlan], *ends: str) -> None:
    """Creates the streams of these vertices, all empty, and buffers for the output of the last."""
    ground.fresh()
    ground.link.run(provision(ground.link, plans))
    for end in ends:
        ground.link.run(ensure(ground.link.client, catalogue.buffer_config(NAMES, end, 0, _BUFFER)))


def planned(ground: Ground, builder: Builder) -> list[VertexPlan]:
    """The plans of a pipeline or MonoVertex ``bench``, as a run makes them."""
    return make_plans(builder.spec, ground.link.server, ground.link.client.max_payload, None)


@contextmanager
def running(ground: Ground, plans: Sequence[VertexPlan], epoch: float = _LONG) -> Iterator[None]:
    """Runs the vertices, and what feeds them, for as long as the context lasts."""
    supervisor = Supervisor(ground.spark, plans, lambda: epoch)
    supervisor.start()
    client = ground.link.client
    try:
        with (
            tempfile.TemporaryDirectory(prefix="ebbflow-bench-") as memory,
            Feeds(_ignore, Path(memory), False).running(ground.link, ground.spark, plans),
        ):
            yield
    finally:
        stop = NAMES.control_subject
        supervisor.stop(lambda: ground.link.run(client.publish(stop, STOP)), _STOP)


def _ignore(_line: str) -> None:
    """Ignores the messages of feeds."""


def counts(ground: Ground, name: str) -> Counts:
    """Returns the counts of a vertex so far."""
    return _counted(ground.link.run(read_positions(ground.link.client, NAMES)), name)


def _counted(found: Positions, name: str) -> Counts:
    return count_by_vertex(found).get(name, Counts())


def worked(ground: Ground, plans: Sequence[VertexPlan], messages: int) -> Watched:
    """Runs the vertices until the last of them is done with that many messages.

    The measurement begins when the first has done something.
    """
    first, last = plans[0].vertex, plans[-1].vertex

    def done() -> int:
        found = ground.link.run(read_positions(ground.link.client, NAMES))
        return _counted(found, last).done or min(1, _counted(found, first).done)

    with running(ground, plans):
        return watched(spark_processes, done, messages)


@dataclass
class Hop:
    """One map between two buffers."""

    mode: Mode
    pace: int
    name = EBBFLOW
    job = contest.HOP

    def run(self, ground: Ground, messages: int, size: int) -> Round:
        """By the server's own times of the first and the last output."""
        plan = vertex(ground, "map", mapping(self.mode), ["out"])
        lay_out(ground, [plan], "out")
        ground.load_frames(NAMES.buffer_subject("map", 0), messages, size)
        found = worked(ground, [plan], messages)
        return found.round(messages, ground.span(NAMES.buffer("out", 0)))


@dataclass
class Sink:
    """A user's sink behind a buffer; sinks always receive batches."""

    pace: int
    mode = "batch"
    name = EBBFLOW
    job = contest.SINK

    def run(self, ground: Ground, messages: int, size: int) -> Round:
        """By the sink's own count."""
        plan = vertex(ground, "sink", SINKS)
        lay_out(ground, [plan])
        ground.load_frames(NAMES.buffer_subject("sink", 0), messages, size)
        return worked(ground, [plan], messages).round(messages)


@dataclass
class Mono:
    """Generator, map and sink in one task."""

    mode: Mode
    pace: int
    name = EBBFLOW
    job = contest.MONO

    def run(self, ground: Ground, messages: int, size: int) -> Round:
        """By its own count."""
        role = MonoPlan(None, mapping(self.mode), SINKS, Bypass())
        source = GeneratorPlan(None, messages, blob=payloads(size, ground.seed)[0])
        plan = vertex(ground, "mono", role, source=source)
        lay_out(ground, [plan])
        return worked(ground, [plan], messages).round(messages)


@dataclass
class Three:
    """Two maps and a sink, which share a task."""

    mode: Mode
    pace: int
    name = EBBFLOW
    job = contest.THREE

    def run(self, ground: Ground, messages: int, size: int) -> Round:
        """From the first messages that the first map has done to the last at the sink."""
        plans = [
            vertex(ground, "map", mapping(self.mode), ["second"]),
            vertex(ground, "second", mapping(self.mode), ["sink"]),
            vertex(ground, "sink", SINKS),
        ]
        plans = chained(plans)
        lay_out(ground, plans)
        ground.load_frames(NAMES.buffer_subject("map", 0), messages, size)
        return worked(ground, plans, messages).round(messages)
