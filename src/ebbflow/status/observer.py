"""The observer of a run, on the driver: it makes the status of a pipeline from all that is known.

The counts come from the positions, which are exact across crashes; what tasks do at the moment from
their events; restarts and failures from those who start the tasks. Nothing depends on an observer:
what it cannot read it leaves as it was.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from ebbflow.buffers.names import Names
from ebbflow.buffers.positions import read_all
from ebbflow.core.position import Position
from ebbflow.core.routing import Edge
from ebbflow.nats.link import Link
from ebbflow.outcome import Counts
from ebbflow.runtime.events import TaskListener
from ebbflow.runtime.plan import DataFrameMap, MonoPlan, SinksPlan, SqlMap, VertexPlan
from ebbflow.status.conditions import describe_vertex, judge, list_concerns
from ebbflow.status.model import (
    Concern,
    EdgeStatus,
    Ended,
    ErrorGroup,
    Phase,
    PipelineStatus,
    VertexStatus,
)
from ebbflow.status.rates import RateWindow

_NEVER: dict[str, Counts] = {}


@dataclass(frozen=True, slots=True)
class JobFacts:
    """What is known of the jobs of a vertex by those who start them.

    ``failure`` says why it makes no progress, ``up`` that all its tasks are at work.
    """

    restarts: int = 0
    failure: str | None = None
    up: bool = False
    errors: tuple[ErrorGroup, ...] = ()


class Observer:
    """Looks at one run. Used by the run's own thread."""

    def __init__(
        self, link: Link, plans: Sequence[VertexPlan], listener: TaskListener, kind: str
    ) -> None:
        self._link = link
        self._plans = plans
        self._names = Names(plans[0].pipeline)
        self._listener = listener
        self._rates = RateWindow()
        self.before = self.totals = _NEVER
        self.beside: Callable[[], tuple[Concern, ...]] = tuple
        """Returns what else people should know, that concerns no vertex."""
        self._status = PipelineStatus(
            self._names.pipeline,
            kind,
            run=plans[0].run,
            host=socket.gethostname(),
            pid=os.getpid(),
            phase="starting",
            began=datetime.now(UTC),
        )

    def begin(self) -> None:
        """Remembers the counts that there are before the run adds to them."""
        self.before = self.totals = self._count(self._read_positions())

    def link_to(self, name: str, address: str) -> None:
        """Names an address that people may open, as that of a page."""
        self._status = replace(self._status, links=self._status.links | {name: address})

    def look(
        self, phase: Phase, jobs: Mapping[str, JobFacts], ended: Ended | None = None
    ) -> PipelineStatus:
        """Returns the state of the pipeline now; raises what NATS raises when it cannot be read."""
        positions, at = self._read_positions(), datetime.now(UTC)
        self.totals = self._count(positions)
        vertices = tuple(
            self._look_at(plan, jobs.get(plan.vertex, JobFacts()), positions, at)
            for plan in self._plans
        )
        status = replace(
            self._status,
            phase=phase,
            ended=ended,
            at=at,
            vertices=vertices,
            edges=tuple(self._look_at_edges()),
            ready=bool(jobs) and all(facts.up for facts in jobs.values()),
        )
        return replace(status, problems=(*list_concerns(status), *self.beside()))

    def _read_positions(self) -> dict[tuple[str, int], Position]:
        return self._link.run(read_all(self._link, self._names))

    def _count(self, positions: Mapping[tuple[str, int], Position]) -> dict[str, Counts]:
        totals = {plan.vertex: Counts() for plan in self._plans}
        for (vertex, _), position in positions.items():
            if vertex in totals:
                totals[vertex] += position.counts
        return totals

    def _look_at(
        self,
        plan: VertexPlan,
        job: JobFacts,
        positions: Mapping[tuple[str, int], Position],
        at: datetime,
    ) -> VertexStatus:
        name, heard, now = plan.vertex, self._listener, time.monotonic()
        own = [positions[name, p] for p in range(plan.partitions) if (name, p) in positions]
        totals, waiting, halted = self.totals[name], heard.waiting(name), heard.halted(name)
        counts = totals - self.before.get(name, Counts())
        vertex = VertexStatus(
            name,
            kind_of(plan),
            plan.partitions,
            counts=counts,
            totals=totals,
            rate_in=self._rates.update(f"{name} in", counts.read, now),
            rate_out=self._rates.update(f"{name} out", counts.written, now),
            source_pending=heard.pending(name),
            in_call=heard.in_call(name),
            watermark=min((p.watermark for p in own if p.watermark), default=None),
            restarts=job.restarts,
            failure=job.failure or halted or (waiting.what if waiting else None),
            errors=job.errors,
            nack_reason=heard.reason(name),
            publishing=heard.tally(name),
            waiting=None if job.failure else waiting,
            halted=halted,
            exhausted=bool(own) and all(position.exhausted for position in own),
        )
        vertex = replace(vertex, condition=judge(vertex, at))
        return replace(vertex, words=describe_vertex(vertex, at))

    def _look_at_edges(self) -> list[EdgeStatus]:
        return [
            EdgeStatus(plan.vertex, edge.to, describe_tags(edge))
            for plan in self._plans
            for edge in plan.edges
        ]


def kind_of(plan: VertexPlan) -> str:
    """Returns what a vertex is, in a word."""
    role = plan.role
    if isinstance(role, MonoPlan):
        return "mono"
    if plan.is_source:
        return "source"
    if isinstance(role, SqlMap):
        return "sql"
    if isinstance(role, DataFrameMap):
        return "dataframe"
    return "sink" if isinstance(role, SinksPlan) else "map"


def describe_tags(edge: Edge) -> str:
    """Returns the condition of an edge in words; empty if there is none."""
    if not edge.values:
        return ""
    how = {"or": "any of", "and": "all of", "not": "none of"}[edge.operator]
    return f"{how} {', '.join(sorted(edge.values))}"
