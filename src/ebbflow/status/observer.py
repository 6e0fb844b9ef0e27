"""The observer of a run, on the driver: it assembles and publishes the status of a pipeline.

Counts come from the positions, which are exact across crashes. Waiting and parked messages are read
from the streams once a second. Events from the tasks say what they do at the moment, and the code
that starts tasks reports restarts and failures. Other processes read the published status.

It only reports, so nothing here ends, fails or delays a run. Each call to NATS has a bound. When
NATS does not reply, the status keeps the numbers that were read last and says since when.

A vertex *falls behind* if its backlog has grown for ``FALLING_AFTER`` seconds, from one minute's
average to the next, and its oldest message has waited for ``LATE`` seconds. It does so until the
backlog shrinks. A burst's backlog shrinks once the burst is over, and a run that begins with a
backlog works it off: neither falls behind.
"""

from __future__ import annotations

import asyncio
import logging
import math
import os
import socket
import time
from collections import deque
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from typing import Any

from ebbflow.accounts.listener import ReportedChunk, TaskListener
from ebbflow.accounts.numbers import Histogram
from ebbflow.domain.outcome import Counts
from ebbflow.engine.causes import Raised, RaisedErrors
from ebbflow.engine.position import Position, count_by_vertex
from ebbflow.engine.routing import Edge
from ebbflow.nats.link import Link
from ebbflow.runtime.plan import DataFrameMap, MonoPlan, SinksPlan, SqlMap, VertexPlan
from ebbflow.status.backlog import Backlog, LetterCauses, VertexBacklog, age_of
from ebbflow.status.conditions import LATE, describe_unread, describe_vertex, judge, list_concerns
from ebbflow.status.model import (
    BackPressure,
    ChunkTimes,
    Concern,
    EdgeStatus,
    Ended,
    ErrorGroup,
    Latency,
    Phase,
    PipelineStatus,
    VertexStatus,
    WorkInFlight,
    list_causes,
)
from ebbflow.status.nodes import NodeWatch
from ebbflow.status.stored import SAMPLE_EVERY, StatusPublisher
from ebbflow.streams.names import Names, bucket_stream
from ebbflow.streams.positions import read_positions

_LOGGER = logging.getLogger("ebbflow")
# Seconds between two reads of the streams, and between two published statuses.
_READ_EVERY = 0.9
# Seconds that reading and sending may take. At the end they outlast an election, because the
# summary of a run has the numbers that were read last.
_READ_WITHIN, _SEND_WITHIN, _END_WITHIN, _STORE_WITHIN = 5.0, 2.0, 10.0, 5.0
# Seconds for the causes of dead letters; the rest is counted by the next read.
_LETTERS_WITHIN = 0.3
_MOST_ERRORS = 20
_SILENT = 5.0

OVER = 10.0
"""Seconds that a rate is averaged over."""

STEP, FALLING_AFTER = 60.0, 300.0
"""Seconds that a backlog is averaged over, and for which it has to grow to fall behind."""

# The shares of a backlog by which it has to grow or shrink in a step, or be below its peak.
_GROWS, _SHRINKS, _BELOW_PEAK = 0.001, 0.01, 0.05


@dataclass(frozen=True, slots=True)
class JobFacts:
    """Facts about the jobs of a vertex from the code that starts them.

    ``failure`` says why it makes no progress, ``up`` that all its tasks are at work, ``opened``
    that its user code was opened in this run. ``silent`` is for how many seconds a task has not
    reported, if that is long, and ``silent_because`` is the reason, as far as Spark knows it.
    """

    restarts: int = 0
    failure: str | None = None
    up: bool = False
    opened: bool = True
    silent: float | None = None
    silent_because: str | None = None
    errors: tuple[ErrorGroup, ...] = ()
    error_count: int = 0

    @classmethod
    def with_errors(cls, log: RaisedErrors, **facts: Any) -> JobFacts:
        """Returns the facts, with the errors that made jobs fail."""
        return cls(errors=tuple(map(_to_group, log.newest_first())), error_count=log.count, **facts)


class Observer:
    """Observes one run. Used by the run's own thread; ``last`` is its latest status."""

    def __init__(
        self, link: Link, plans: Sequence[VertexPlan], listener: TaskListener, kind: str
    ) -> None:
        client, names = link.client, Names(plans[0].pipeline)
        self._link = link
        self._plans = plans
        self._names = names
        self._listener = listener
        self._rates = RateWindow()
        self._trends = {plan.vertex: TrendWatch() for plan in plans}
        self._pressure = PressureWatch()
        self._backlogs = self._open_backlogs()
        self._waits: dict[str, VertexBacklog] = {}
        self._positions: dict[tuple[str, int], Position] = {}
        self.unread: str | None = None
        """Why the last read of the numbers failed, if it did."""
        self._letters = LetterCauses(client, names)
        self.nodes = NodeWatch(client, bucket_stream(names.positions))
        self._publisher = StatusPublisher(client, names)
        self._read_at = self._sampled_at = -math.inf
        self._numbers_at: datetime | None = None
        self._chunks_published: dict[str, ReportedChunk] = {}
        self.more_concerns: Callable[[], tuple[Concern, ...]] = tuple
        """Returns further concerns, which are about no vertex."""
        self.before: dict[str, Counts] = {}
        self.totals: dict[str, Counts] = {}
        self.last = PipelineStatus(
            names.pipeline,
            kind,
            run=plans[0].run.id,
            host=socket.gethostname(),
            pid=os.getpid(),
            phase="starting",
            began=datetime.now(UTC),
            vertices=tuple(
                VertexStatus(p.vertex, kind_of(p), p.partitions, condition="starting")
                for p in plans
            ),
            edges=tuple(
                EdgeStatus(p.vertex, edge.to, describe_tags(edge))
                for p in plans
                for edge in p.edges
            ),
        )

    def _open_backlogs(self) -> dict[str, Backlog]:
        client, names = self._link.client, self._names
        return {plan.vertex: Backlog(client, names, plan.streams) for plan in self._plans}

    def begin(self) -> None:
        """Remembers the counts from before the run, and publishes that the run begins.

        Raises NATS's error if the counts cannot be read, as the run has not begun yet.
        """
        self._positions = self._link.run(read_positions(self._link.client, self._names))
        self._try(self._letters.begin_run(), _READ_WITHIN)
        self.before = self.totals = self._count()
        self._numbers_at = datetime.now(UTC)
        self.last = replace(self.last, at=datetime.now(UTC), numbers_at=self._numbers_at)
        self._try(self._publisher.publish(self.last), _SEND_WITHIN)

    def link_to(self, name: str, address: str) -> None:
        """Adds an address that people may open, such as the web UI's, under a name."""
        self.last = replace(self.last, links=self.last.links | {name: address})

    def look(self, phase: Phase, jobs: Mapping[str, JobFacts]) -> PipelineStatus:
        """Returns the status of the pipeline now, with the numbers that were read last."""
        now = time.monotonic()
        is_due = now - self._read_at >= _READ_EVERY
        if is_due:
            self._read_at = now
        self.unread = self._try(self._read(is_due), _READ_WITHIN)
        self.last = self._assemble(phase, jobs)
        if is_due:
            self._try(self._publish(self.last, now), _SEND_WITHIN)
        return self.last

    def end(self, ended: Ended) -> PipelineStatus:
        """Returns the final status of the run, and stores it if that is possible.

        It keeps why vertices made no progress before they were stopped.
        """
        self._backlogs = self._open_backlogs()  # backlogs are counted again, not remembered
        self.unread = self._try(self._read(within=_END_WITHIN / 2), _END_WITHIN)
        self.last = self._sum_up(ended)
        self._try(self._publish_sample(self.last), _SEND_WITHIN)
        self._try(self._publisher.publish_last(self.last), _STORE_WITHIN)
        return self.last

    def _try(self, call: Coroutine[Any, Any, None], within: float) -> str | None:
        """Reads or sends something that no message depends on; returns why it failed, if so."""
        try:
            self._link.run(call, within)
        except Exception as error:
            _LOGGER.debug("a report was not made", exc_info=True)
            return _first_line(error) or f"no answer within {within:.0f} s"
        return None

    async def _read(self, streams: bool = True, within: float = _LETTERS_WITHIN) -> None:
        """Reads the positions of the vertices and, if asked, the streams."""
        self._positions = await read_positions(self._link.client, self._names)
        if streams:
            await self._read_streams(within)
        self._numbers_at = datetime.now(UTC)

    def _sum_up(self, ended: Ended) -> PipelineStatus:
        self.totals = self._count()
        # Nothing is in flight now: unsettled messages are in their buffers, or at their source.
        idle: dict[str, Any] = {"in_flight": None, "drain_seconds": None, "falling_behind": False}
        vertices = [replace(self._with_numbers(v), **idle) for v in self.last.vertices]
        status = replace(
            self.last,
            phase="ended",
            ended=ended,
            at=datetime.now(UTC) if self.unread else self._numbers_at,
            numbers_at=self._numbers_at,
            ready=False,
            vertices=tuple(vertices),
        )
        return self._with_problems(status)

    async def _read_streams(self, within: float) -> None:
        """Reads waiting and parked messages, the dead letters, and which nodes are up."""
        backlogs = map(self._read_backlog, self._plans)
        await asyncio.gather(self._letters.look(within), self.nodes.look(), *backlogs)

    async def _read_backlog(self, plan: VertexPlan) -> None:
        self._waits[plan.vertex] = await self._backlogs[plan.vertex].look(self._of(plan))

    def _of(self, plan: VertexPlan) -> list[Position | None]:
        return [self._positions.get((plan.vertex, number)) for number in range(plan.partitions)]

    async def _publish(self, status: PipelineStatus, now: float) -> None:
        await self._publisher.publish(status)
        if now - self._sampled_at >= SAMPLE_EVERY:
            self._sampled_at = now
            await self._publish_sample(status)

    async def _publish_sample(self, status: PipelineStatus) -> None:
        await self._publisher.publish_sample(status)
        for plan in self._plans:
            await self._publish_chunks(plan.vertex)

    async def _publish_chunks(self, vertex: str) -> None:
        chunks = self._listener.chunks(vertex)
        if chunks and chunks[-1] != self._chunks_published.get(vertex):
            self._chunks_published[vertex] = chunks[-1]
            times = [ChunkTimes(c.at, c.partition, c.rows, **c.seconds) for c in chunks]
            await self._publisher.publish_chunks(vertex, times)

    # --- putting it together ----------------------------------------------------------------------

    def _count(self) -> dict[str, Counts]:
        counted = count_by_vertex(self._positions)
        return {plan.vertex: counted.get(plan.vertex, Counts()) for plan in self._plans}

    def _assemble(self, phase: Phase, jobs: Mapping[str, JobFacts]) -> PipelineStatus:
        self.totals, at = self._count(), datetime.now(UTC)
        vertices = []
        for plan in self._plans:
            vertex = self._describe_vertex(plan, jobs.get(plan.vertex, JobFacts()), self._of(plan))
            vertex = replace(vertex, condition=judge(vertex, at))
            vertices.append(replace(vertex, words=describe_vertex(vertex, at)))
        paused = bool(vertices) and all(vertex.paused for vertex in vertices)
        status = replace(
            self.last,
            phase="paused" if paused and phase == "running" else phase,
            at=at,
            numbers_at=self._numbers_at,
            vertices=tuple(vertices),
            edges=tuple(self._describe_edges()),
            ready=bool(jobs) and all(facts.up for facts in jobs.values()),
        )
        return self._with_problems(status)

    def _with_problems(self, status: PipelineStatus) -> PipelineStatus:
        unread = (describe_unread(status, self.unread),) if self.unread else ()
        down = self.nodes.list_concerns()
        return replace(
            status, problems=(*unread, *list_concerns(status), *down, *self.more_concerns())
        )

    def _describe_vertex(
        self, plan: VertexPlan, job: JobFacts, positions: Sequence[Position | None]
    ) -> VertexStatus:
        name, listener, now = plan.vertex, self._listener, time.monotonic()
        own = [position for position in positions if position is not None]
        waiting, halted = listener.waiting(name), listener.halted(name)
        numbers, raised = listener.numbers(name), listener.errors(name)
        groups = [*map(_to_group, raised.newest_first()), *job.errors]
        in_flight = None if job.failure else listener.in_flight(name)
        vertex = VertexStatus(
            name,
            kind_of(plan),
            plan.partitions,
            source_pending=listener.pending(name),
            in_call=listener.in_call(name),
            watermark=min((p.watermark for p in own if p.watermark), default=None),
            restarts=job.restarts,
            failure=job.failure or halted or (waiting.what if waiting else None),
            in_flight=WorkInFlight(*in_flight) if in_flight else None,
            errors=tuple(sorted(groups, key=lambda group: group.last, reverse=True)[:_MOST_ERRORS]),
            error_count=raised.count + job.error_count,
            nack_reasons=list_causes(listener.reasons(name)),
            nack_reason=listener.reason(name),
            latency={stage: _latency(spread) for stage, spread in numbers.spreads.items()},
            spreads=numbers.spreads,
            never_opened=not job.opened,
            partitions_up=plan.partitions if job.up else listener.count_reporting(name, _SILENT),
            silent=job.silent,
            silent_because=job.silent_because,
            batched=plan.streams.batched,
            publishing=listener.tally(name),
            waiting=None if job.failure else waiting,
            halted=halted,
            exhausted=bool(own) and all(position.exhausted for position in own),
            paused=bool(own) and all(position.paused for position in own),
        )
        vertex = self._with_trend(self._with_numbers(vertex), now)
        return replace(
            vertex,
            rate_in=self._rates.update(f"{name} in", vertex.counts.read, now),
            rate_out=self._rates.update(f"{name} out", vertex.counts.written, now),
            back_pressure=self._pressure.look(name, self._full_next(plan), vertex.publishing.full),
        )

    def _with_numbers(self, vertex: VertexStatus) -> VertexStatus:
        """Returns the vertex with its numbers from positions and streams."""
        name, totals = vertex.name, self.totals[vertex.name]
        waits = self._waits.get(name, VertexBacklog())
        own = totals - self.before.get(name, Counts())
        return replace(
            vertex,
            counts=own,
            totals=totals,
            pending=waits.pending,
            pending_exact=waits.exact,
            oldest_waiting_seconds=age_of(waits.oldest, datetime.now(UTC)),
            parked=waits.parked,
            dead_letters=self._letters.count(name),
            dead_letter_causes=self._letters.causes(name),
            run_dead_letter_causes=self._letters.run_causes(name, own.dead_lettered),
        )

    def _with_trend(self, vertex: VertexStatus, now: float) -> VertexStatus:
        """Returns the vertex with the trend of its backlog, at the source and in its buffer."""
        waiting = vertex.pending + (vertex.source_pending or 0)
        oldest = vertex.oldest_waiting_seconds
        if self.unread is None:  # else the numbers are old
            self._trends[vertex.name].update(waiting, oldest, now)
        trend = self._trends[vertex.name].last
        return replace(
            vertex,
            drain_seconds=trend.drain_seconds,
            backlog_growing_seconds=trend.growing_seconds,
            falling_behind=trend.falling_behind,
        )

    def _full_next(self, plan: VertexPlan) -> str | None:
        """Returns a next vertex whose buffer is full, if there is one."""
        return next((e.to for e in plan.edges if self._waits.get(e.to, VertexBacklog()).full), None)

    def _describe_edges(self) -> Iterator[EdgeStatus]:
        now = time.monotonic()
        for plan in self._plans:
            frm, sent = plan.vertex, self._count_by_edge(plan)
            for edge in plan.edges:
                written = sent.get(edge.to, 0)
                yield EdgeStatus(
                    frm,
                    edge.to,
                    describe_tags(edge),
                    self._rates.update(f"{frm} to {edge.to}", written, now),
                    written,
                    self._waits.get(edge.to, VertexBacklog()).pending,
                    self._listener.is_inline(frm, edge.to),
                )

    def _count_by_edge(self, plan: VertexPlan) -> dict[str, int]:
        """Returns this run's messages by edge; a single edge has all that the vertex wrote."""
        if len(plan.edges) != 1:
            return self._listener.numbers(plan.vertex).sent
        name = plan.vertex
        return {plan.edges[0].to: (self.totals[name] - self.before[name]).written}


def _first_line(error: Exception) -> str:
    return next((line for line in str(error).splitlines() if line.strip()), "")


def _to_group(raised: Raised) -> ErrorGroup:
    return ErrorGroup(**asdict(raised))


def _latency(spread: Histogram) -> Latency:
    return Latency(spread.quantile(0.5), spread.quantile(0.99), spread.mean, spread.count)


def kind_of(plan: VertexPlan) -> str:
    """Returns the kind of a vertex, in a word."""
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


# --- changes over time --------------------------------------------------------------------------


class RateWindow:
    """The rates of several counters, by name, per second."""

    def __init__(self) -> None:
        self._seen: dict[str, deque[tuple[float, int]]] = {}

    def update(self, name: str, count: int, now: float) -> float:
        """Records a counter at a time, in seconds of a monotonic clock; returns its rate."""
        seen = self._seen.setdefault(name, deque())
        seen.append((now, count))
        while len(seen) > 2 and now - seen[1][0] >= OVER:
            seen.popleft()
        then, before = seen[0]
        return (count - before) / (now - then) if now > then else 0.0


@dataclass(frozen=True, slots=True)
class BacklogTrend:
    """The trend of a backlog.

    ``drain_seconds`` is the time until it is empty at its present rate, ``None`` if it does not
    shrink; ``growing_seconds`` is for how long it has grown, ``None`` if it does not.
    """

    drain_seconds: float | None = None
    growing_seconds: float | None = None
    falling_behind: bool = False


class TrendWatch:
    """Follows the backlog of one vertex."""

    def __init__(self) -> None:
        self.last = BacklogTrend()
        self._recent: deque[tuple[float, int]] = deque()
        self._step: list[int] = []
        self._step_began: float | None = None
        self._average: float | None = None
        self._growing = self._peak = 0.0
        self._falling = False

    def update(self, waiting: int, oldest: float | None, now: float) -> BacklogTrend:
        """Records a backlog at a time, with the age of its oldest message."""
        self._add(waiting, now)
        if not waiting or oldest is None or oldest < LATE:
            self._falling = False
        elif self._growing >= FALLING_AFTER:
            self._falling = True
        drain = self._drain(waiting, now)
        self.last = BacklogTrend(drain, self._growing or None, self._falling)
        return self.last

    def _add(self, waiting: int, now: float) -> None:
        self._recent.append((now, waiting))
        while now - self._recent[0][0] > STEP / 2:
            self._recent.popleft()
        if self._step_began is None:
            self._step_began = now
        if now - self._step_began >= STEP:
            self._end_step(now)
        self._step.append(waiting)

    def _end_step(self, now: float) -> None:
        """Compares the average of a step with that of the previous step."""
        assert self._step_began is not None
        average, before = sum(self._step) / len(self._step), self._average
        took, self._step, self._step_began, self._average = now - self._step_began, [], now, average
        # A backlog that neither grows nor shrinks, like a full buffer, has not improved.
        floor = max((before or 0) * (1 - _SHRINKS), self._peak * (1 - _BELOW_PEAK))
        if before is None or average < floor:
            self._growing, self._falling, self._peak = 0.0, False, 0.0
        elif average > before * (1 + _GROWS) + 1:
            self._growing += took
        self._peak = max(self._peak, average)

    def _drain(self, waiting: int, now: float) -> float | None:
        then, before = self._recent[0]
        if not waiting or now - then < OVER or before <= waiting:
            return None
        return waiting * (now - then) / (before - waiting)


class PressureWatch:
    """Detects back-pressure by how often publishing met a full buffer."""

    def __init__(self) -> None:
        self._seen: dict[str, int] = {}
        self._since: dict[str, BackPressure] = {}

    def look(self, vertex: str, full: str | None, refusals: int) -> BackPressure | None:
        """Returns what a vertex waits for; ``full`` is the next vertex whose buffer is full.

        ``refusals`` counts how often a buffer refused its messages in this run.
        """
        before, self._seen[vertex] = self._seen.get(vertex, 0), refusals
        present = self._since.get(vertex)
        if full is None or (refusals == before and present is None):
            self._since.pop(vertex, None)
            return None
        if present is None or present.to != full:
            self._since[vertex] = BackPressure(full, datetime.now(UTC))
        return self._since[vertex]
