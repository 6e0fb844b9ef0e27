"""Every metric of a pipeline, how its values follow from the status, and their Prometheus formats.

Names and labels are those of Numaflow where it has the same metric, so that dashboards and alerts
made for Numaflow work here; all others begin with ``ebbflow_``. Labels are only pipelines, vertices
and conditions, never a text from messages or errors, so the number of series is bounded by the size
of the pipeline.

Counters are totals since the pipeline was first started, so that a new run does not reset them,
unless their description says that they are of the run.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector
from typing_extensions import override

from ebbflow.accounts.numbers import BOUNDS, Histogram
from ebbflow.domain import __version__
from ebbflow.status.conditions import judge_health
from ebbflow.status.model import Condition, Phase, PipelineStatus, VertexStatus

MetricType = Literal["counter", "gauge", "histogram"]
Value = float | Histogram | None
Labelled = Iterator[tuple[tuple[str, ...], Value]]

_TYPES = {"source": "Source", "sink": "Sink"}
_MONO_TYPE = "MonoVertex"
_PIPELINE_TYPES = (*_TYPES.values(), "MapUDF")
VERTEX = ("pipeline", "vertex", "vertex_type")
MONO = ("mvtx_name",)
_MICROSECONDS = 1_000_000


@dataclass(frozen=True, slots=True)
class MetricKind:
    """A metric: its name without ``_total``, and how its values follow from a status."""

    name: str
    kind: MetricType
    about: str
    labels: tuple[str, ...]
    values: Callable[[PipelineStatus], Labelled]

    @property
    def full_name(self) -> str:
        """The name of its series; those of a histogram also have suffixes."""
        return f"{self.name}_total" if self.kind == "counter" else self.name


# --- what the values are of ---------------------------------------------------------------------

Of = Callable[[VertexStatus], Value]


def _name(status: PipelineStatus, vertex: VertexStatus) -> tuple[str, str, str]:
    is_mono = status.kind == "MonoVertex"
    kind = _MONO_TYPE if is_mono else _TYPES.get(vertex.kind, "MapUDF")
    return status.pipeline, vertex.name, kind


def _of_vertices(
    of: Of, labels: tuple[str, ...], types: Collection[str]
) -> Callable[[PipelineStatus], Labelled]:
    """Returns the values for each vertex of some types."""

    def values(status: PipelineStatus) -> Labelled:
        for vertex in status.vertices:
            name = _name(status, vertex)
            if name[2] in types:
                yield name[: len(labels)], of(vertex)

    return values


def _of_whole(of: Callable[[PipelineStatus], Value]) -> Callable[[PipelineStatus], Labelled]:
    """Returns the one value for the pipeline."""

    def values(status: PipelineStatus) -> Labelled:
        yield (status.pipeline,), of(status)

    return values


def _acked(vertex: VertexStatus) -> Value:
    return vertex.totals.ended - vertex.totals.redelivered


def _waiting(vertex: VertexStatus) -> Value:
    """The messages that wait for the vertex: in its buffer and, for a source, at its source."""
    if vertex.kind == "source" and vertex.source_pending is None and not vertex.pending:
        return None
    return vertex.pending + (vertex.source_pending or 0)


def _buffered(status: PipelineStatus) -> Labelled:
    reached = {edge.to for edge in status.edges}
    for vertex in status.vertices:
        if vertex.name in reached:
            yield (status.pipeline, f"{status.pipeline}-{vertex.name}"), vertex.pending


def _stage(stage: str) -> Of:
    return lambda vertex: vertex.spreads.get(stage)


def _conditions(status: PipelineStatus) -> Labelled:
    for vertex in status.vertices:
        for condition in get_args(Condition):
            labels = (*_name(status, vertex), condition)
            yield labels, float(vertex.condition == condition)


def _phases(status: PipelineStatus) -> Labelled:
    for phase in get_args(Phase):
        yield (status.pipeline, phase), float(status.phase == phase)


def _problems(status: PipelineStatus) -> Labelled:
    levels = [concern.level for concern in judge_health(status).problems]
    for level in ("error", "warning"):
        yield (status.pipeline, level), levels.count(level)


def _sent(status: PipelineStatus) -> Labelled:
    for edge in status.edges:
        yield (status.pipeline, edge.frm, edge.to), edge.written


def _in_flight_for(status: PipelineStatus) -> Labelled:
    """How long the oldest message of each vertex has been in flight."""
    for vertex in status.vertices:
        in_flight, seconds = vertex.in_flight, 0.0
        if in_flight is not None and in_flight.messages and status.at is not None:
            seconds = max(0.0, (status.at - in_flight.since).total_seconds())
        yield _name(status, vertex), seconds


def _is_up(vertex: VertexStatus) -> Value:
    dead = ("starting", "restarting", "halted", "stuck", "ended")
    return float(vertex.condition not in dead)


def _health(status: PipelineStatus) -> Value:
    """Numaflow's number: 1 healthy, 0 unknown, -1 warning, -2 critical."""
    health = judge_health(status)
    if not health.alive or status.phase == "starting":
        return 0
    if not health.healthy:
        return -2
    return -1 if health.problems else 1


def _watermarks(status: PipelineStatus, sources: bool) -> list[float]:
    chosen = (v for v in status.vertices if not sources or v.kind in ("source", "mono"))
    return [v.watermark.timestamp() for v in chosen if v.watermark is not None]


def _lag(status: PipelineStatus) -> Value:
    times = _watermarks(status, sources=False)
    return (max(times) - min(times)) * 1000 if times else None


def _behind_now(status: PipelineStatus) -> Value:
    times = _watermarks(status, sources=True)
    return (status.at.timestamp() - max(times)) * 1000 if times and status.at else None


def _build(status: PipelineStatus) -> Labelled:
    yield ("ebbflow", status.pipeline, __version__), 1


# --- the metrics --------------------------------------------------------------------------------


def _vertex(name: str, kind: MetricType, about: str, of: Of, *types: str) -> MetricKind:
    values = _of_vertices(of, VERTEX, types or _PIPELINE_TYPES)
    return MetricKind(name, kind, about, VERTEX, values)


def _mono(name: str, kind: MetricType, about: str, of: Of) -> MetricKind:
    return MetricKind(name, kind, about, MONO, _of_vertices(of, MONO, (_MONO_TYPE,)))


def _own(name: str, kind: MetricType, about: str, of: Of) -> MetricKind:
    values = _of_vertices(of, VERTEX, (*_PIPELINE_TYPES, _MONO_TYPE))
    return MetricKind(f"ebbflow_{name}", kind, about, VERTEX, values)


def _whole(
    name: str, kind: MetricType, about: str, of: Callable[[PipelineStatus], Value]
) -> MetricKind:
    return MetricKind(name, kind, about, ("pipeline",), _of_whole(of))


_FORWARDER = (
    _vertex("forwarder_read", "counter", "Messages that the vertex has read, redeliveries "
            "included.", lambda v: v.totals.read),
    _vertex("forwarder_data_read", "counter", "The same as forwarder_read_total: all are data.",
            lambda v: v.totals.read),
    _vertex("forwarder_write", "counter", "Messages that the vertex has written to the next "
            "vertices or, a sink, to the outside.", lambda v: v.totals.written),
    _vertex("forwarder_ack", "counter", "Messages that have ended for good at this vertex.",
            _acked),
    _vertex("forwarder_nack", "counter", "Messages that were redelivered, for a nack, an error or "
            "a retry.", lambda v: v.totals.redelivered),
    _vertex("forwarder_drop", "counter", "Messages that ended without output: nothing returned, no "
            "edge took it, or a full buffer discards it.", lambda v: v.totals.dropped),
    _vertex("forwarder_critical_error", "counter", "How often the vertex was started again after "
            "a failure, in this run.", lambda v: v.restarts),
    _vertex("forwarder_udf_read", "counter", "Messages passed to user code of a map.",
            lambda v: v.totals.read, "MapUDF"),
    _vertex("forwarder_udf_write", "counter", "Messages returned by user code of a map.",
            lambda v: v.totals.written, "MapUDF"),
    _vertex("forwarder_fbsink_write", "counter", "Messages written by the fallback sink.",
            lambda v: v.totals.fallback, "Sink"),
    _vertex("forwarder_onsuccess_sink_write", "counter", "Messages written by the on-success "
            "sink.", lambda v: v.totals.on_success, "Sink"),
    _vertex("forwarder_read_processing_time", "histogram", "The time to gather the rows of a "
            "chunk, in microseconds, in this run.", _stage("read")),
    _vertex("forwarder_udf_processing_time", "histogram", "The time of user code for a message, in "
            "microseconds, in this run: the average of its chunk.", _stage("message")),
    _vertex("forwarder_processing_time", "histogram", "The time of user code for a chunk, in "
            "microseconds, in this run.", _stage("call")),
    _vertex("forwarder_write_processing_time", "histogram", "How long a chunk took to be published "
            "and confirmed, in microseconds, in this run.", _stage("publish")),
    _vertex("forwarder_ack_processing_time", "histogram", "How long a chunk took to be recorded as "
            "done, in microseconds, in this run.", _stage("settle")),
    _vertex("vertex_pending_messages_raw", "gauge", "Messages that wait for the vertex: in its "
            "buffer and, as far as that is known, at its source.", _waiting),
    MetricKind("isb_jetstream_buffer_pending", "gauge", "Messages that wait in a buffer.",
               ("pipeline", "buffer"), _buffered),
)  # fmt: skip

_MONOVERTEX = (
    _mono("monovtx_read", "counter", "Messages read from the source, redeliveries included.",
          lambda v: v.totals.read),
    _mono("monovtx_ack", "counter", "Messages that have ended for good.", _acked),
    _mono("monovtx_nack", "counter", "Messages that were redelivered, for a nack, an error or a "
          "retry.", lambda v: v.totals.redelivered),
    _mono("monovtx_dropped", "counter", "Messages that ended without output.",
          lambda v: v.totals.dropped),
    _mono("monovtx_critical_error", "counter", "How often it was started again after a failure, in "
          "this run.", lambda v: v.restarts),
    _mono("monovtx_sink_write", "counter", "Messages written by its sinks.",
          lambda v: v.totals.written),
    _mono("monovtx_fallback_sink_write", "counter", "Messages written by the fallback sink.",
          lambda v: v.totals.fallback),
    _mono("monovtx_onsuccess_sink_write", "counter", "Messages written by the on-success sink.",
          lambda v: v.totals.on_success),
    _mono("monovtx_pending_raw", "gauge", "Messages that wait at the source, if it knows.",
          lambda v: v.source_pending),
    _mono("monovtx_read_time", "histogram", "The time to gather the rows of a chunk, in "
          "microseconds, in this run.", _stage("read")),
    _mono("monovtx_processing_time", "histogram", "The time of all user code for a chunk, in "
          "microseconds, in this run.", _stage("call")),
    _mono("monovtx_ack_time", "histogram", "How long a chunk took to be recorded as done, in "
          "microseconds, in this run.", _stage("settle")),
)  # fmt: skip

_PIPELINE = (
    _whole("pipeline_processing_lag", "gauge", "Milliseconds between the highest and the "
           "lowest watermark of the vertices.", _lag),
    _whole("pipeline_watermark_cmp_now", "gauge", "Milliseconds that the watermark of the sources "
           "is behind the clock.", _behind_now),
    _whole("pipeline_data_processing_health", "gauge", "1 healthy, 0 unknown, -1 warning, "
           "-2 critical.", _health),
    MetricKind("build_info", "gauge", "The version that runs the pipeline.",
               ("component", "component_name", "version"), _build),
)  # fmt: skip

_OURS = (
    _whole("ebbflow_up", "gauge", "1 while the run reports its status.",
           lambda s: judge_health(s).alive),
    _whole("ebbflow_healthy", "gauge", "1 while no vertex is dead, stuck or stopped, and "
           "none falls behind.",
           lambda s: judge_health(s).healthy),
    _whole("ebbflow_ready", "gauge", "1 while every vertex has all its tasks at work.",
           lambda s: judge_health(s).ready),
    MetricKind("ebbflow_phase", "gauge", "1 for the phase that the run is in.",
               ("pipeline", "phase"), _phases),
    MetricKind("ebbflow_problems", "gauge", "Problems that need attention, by level.",
               ("pipeline", "level"), _problems),
    _whole("ebbflow_run_start_timestamp_seconds", "gauge", "When the run began.",
           lambda s: s.began.timestamp() if s.began else None),
    _whole("ebbflow_status_timestamp_seconds", "gauge", "When these numbers were gathered.",
           lambda s: s.at.timestamp() if s.at else None),
    MetricKind("ebbflow_edge_written", "counter", "Messages that took an edge, in this run.",
               ("pipeline", "from", "to"), _sent),
    _own("vertex_up", "gauge", "1 unless the vertex is starting, dead, stuck, stopped or ended.",
         _is_up),
    MetricKind("ebbflow_vertex_condition", "gauge", "1 for the condition that the vertex is in.",
               (*VERTEX, "condition"), _conditions),
    _own("partitions", "gauge", "The partitions of the vertex, each with a task.",
         lambda v: v.partitions),
    _own("partitions_up", "gauge", "The tasks that are at work.", lambda v: v.partitions_up),
    _own("restarts", "counter", "How often the vertex was started again after a failure, in this "
         "run.", lambda v: v.restarts),
    _own("dead_lettered", "counter", "Messages that went to the dead letters.",
         lambda v: v.totals.dead_lettered),
    _own("dead_letters", "gauge", "Dead letters that are stored now.", lambda v: v.dead_letters),
    _own("served", "counter", "Messages that were answered.", lambda v: v.totals.served),
    _own("buffer_messages", "gauge", "Messages that wait in the vertex's buffer.",
         lambda v: v.pending),
    _own("oldest_waiting_seconds", "gauge", "How long the oldest message in the vertex's buffer "
         "has waited; 0 if none waits.", lambda v: v.oldest_waiting_seconds or 0),
    _own("drain_seconds", "gauge", "Seconds until the backlog is empty at its present rate; not "
         "sent while it does not shrink.", lambda v: v.drain_seconds),
    _own("backlog_growing_seconds", "gauge", "For how long the backlog has grown; 0 if it has not.",
         lambda v: v.backlog_growing_seconds or 0),
    _own("falling_behind", "gauge", "1 while the backlog keeps growing and its oldest message "
         "is late.", lambda v: v.falling_behind),
    _own("source_messages", "gauge", "Messages that wait at the source, if it knows.",
         lambda v: v.source_pending),
    _own("parked_messages", "gauge", "Messages that wait for their redelivery.",
         lambda v: v.parked.messages),
    _own("parked_next_due_timestamp_seconds", "gauge", "When the next parked message is due.",
         lambda v: v.parked.next_due.timestamp() if v.parked.next_due else None),
    _own("in_flight_messages", "gauge", "Messages that tasks have read and not settled.",
         lambda v: v.in_flight.messages if v.in_flight else 0),
    MetricKind("ebbflow_in_flight_seconds", "gauge", "How long the oldest has been in flight.",
               VERTEX, _in_flight_for),
    _own("in_call_seconds", "gauge", "How long user code has been in one call, if that is long.",
         lambda v: v.in_call or 0),
    _own("back_pressure", "gauge", "1 while the vertex waits for room in a buffer.",
         lambda v: v.back_pressure is not None),
    _own("waiting_seconds", "gauge", "How long the vertex has waited for a system that is down.",
         lambda v: v.waiting.seconds if v.waiting else 0),
    _own("watermark_timestamp_seconds", "gauge", "The watermark of the vertex.",
         lambda v: v.watermark.timestamp() if v.watermark else None),
    _own("publish_attempts", "counter", "Messages sent to NATS, in this run.",
         lambda v: v.publishing.attempts),
    _own("publish_full", "counter", "How often a buffer had no room, in this run.",
         lambda v: v.publishing.full),
    _own("publish_unanswered", "counter", "How often NATS did not answer, in this run.",
         lambda v: v.publishing.unanswered),
)  # fmt: skip

METRICS: tuple[MetricKind, ...] = (*_FORWARDER, *_MONOVERTEX, *_PIPELINE, *_OURS)
"""Every metric there is, in the order in which they are sent."""


# --- the formats of Prometheus ------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Exposition:
    """Metrics as they are sent."""

    body: bytes
    content_type: str


def render_metrics(statuses: Sequence[PipelineStatus], accept: str = "") -> Exposition:
    """Returns the metrics of pipelines, in the best format that ``accept`` names."""
    encode, content_type = choose_encoder(accept)
    return Exposition(encode(_Collected(statuses)), content_type)


class _Collected(Collector):
    """The metrics of one scrape."""

    def __init__(self, statuses: Sequence[PipelineStatus]) -> None:
        self._statuses = statuses

    @override
    def collect(self) -> Iterable[Metric]:
        for metric in METRICS:
            family = _FAMILIES[metric.kind](metric.name, metric.about, labels=metric.labels)
            for status in self._statuses:
                for labels, value in metric.values(status):
                    _add(family, labels, value)
            if family.samples:
                yield family


_FAMILIES: Mapping[MetricType, Callable[..., Any]] = {
    "counter": CounterMetricFamily,
    "gauge": GaugeMetricFamily,
    "histogram": HistogramMetricFamily,
}


def _add(family: Any, labels: tuple[str, ...], value: Value) -> None:
    if isinstance(value, Histogram):
        family.add_metric(labels, list(_cumulate(value)), value.seconds * _MICROSECONDS)
    elif value is not None:
        family.add_metric(labels, value)


def _cumulate(spread: Histogram) -> Iterator[tuple[str, float]]:
    """Yields each bound in microseconds, as Numaflow has it, and how many took no longer."""
    bounds = [*(f"{bound * _MICROSECONDS:.1f}" for bound in BOUNDS), "+Inf"]
    total = 0
    for bound, count in zip(bounds, spread.buckets, strict=True):
        total += count
        yield bound, total
