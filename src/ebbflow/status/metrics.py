"""The metrics of pipelines, in the formats that Prometheus reads; ``metric_table`` lists them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from ebbflow.accounts.numbers import BOUNDS, Histogram
from ebbflow.status.metric_table import METRICS, MetricType, Value
from ebbflow.status.model import PipelineStatus

_MICROSECONDS = 1_000_000


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
    """What is scraped at one moment."""

    def __init__(self, statuses: Sequence[PipelineStatus]) -> None:
        self._statuses = statuses

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
    so_far = 0
    for bound, count in zip(bounds, spread.buckets, strict=True):
        so_far += count
        yield bound, so_far
