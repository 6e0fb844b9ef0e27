"""Prometheus' own parsers read every metric back, and all labels are bounded."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from datetime import timedelta
from typing import Any, get_args

import pytest
from prometheus_client import openmetrics
from prometheus_client.openmetrics.parser import (
    text_string_to_metric_families as parse_openmetrics,
)
from prometheus_client.parser import text_string_to_metric_families as parse_text

import ebbflow
from ebbflow.accounts.numbers import Histogram
from ebbflow.domain.outcome import Counts
from ebbflow.status.metrics import METRICS, render_metrics
from ebbflow.status.model import Cause, Condition, PipelineStatus, VertexStatus
from tests.status.test_model import BUSY, NOON, WHOLE

NUMAFLOW = {
    "build_info", "forwarder_ack_processing_time", "forwarder_ack_total",
    "forwarder_critical_error_total", "forwarder_data_read_total", "forwarder_drop_total",
    "forwarder_fbsink_write_total", "forwarder_nack_total",
    "forwarder_onsuccess_sink_write_total", "forwarder_processing_time",
    "forwarder_read_processing_time", "forwarder_read_total", "forwarder_udf_processing_time",
    "forwarder_udf_read_total", "forwarder_udf_write_total", "forwarder_write_processing_time",
    "forwarder_write_total", "isb_jetstream_buffer_pending", "monovtx_ack_time",
    "monovtx_ack_total", "monovtx_critical_error_total", "monovtx_dropped_total",
    "monovtx_fallback_sink_write_total", "monovtx_nack_total",
    "monovtx_onsuccess_sink_write_total", "monovtx_pending_raw", "monovtx_processing_time",
    "monovtx_read_time", "monovtx_read_total", "monovtx_sink_write_total",
    "pipeline_data_processing_health", "pipeline_processing_lag", "pipeline_watermark_cmp_now",
    "vertex_pending_messages_raw",
}  # fmt: skip
"""The metric names that Ebbflow uses from Numaflow's documentation."""


def spread(*seconds: float) -> Histogram:
    made = Histogram()
    for duration in seconds:
        made.add(duration)
    return made


STAGES = {name: spread(0.002, 4000.0) for name in ("read", "call", "publish", "settle", "message")}
COUNTS = Counts(read=9, written=8, done=3, redelivered=2, dead_lettered=1, dropped=2, fallback=1)
STEP = replace(BUSY, totals=COUNTS, spreads=STAGES, restarts=3)
PIPELINE = replace(
    WHOLE,
    kind="Pipeline",
    phase="running",
    ended=None,
    at=NOON + timedelta(seconds=40),
    vertices=(
        replace(STEP, name="in", kind="source"),
        STEP,
        replace(STEP, name="out", kind="sink", condition="running"),
    ),
)
MONO = replace(PIPELINE, pipeline="alone", kind="MonoVertex", vertices=(STEP,), edges=())

Labels = tuple[tuple[str, str], ...]
Series = dict[tuple[str, Labels], float]


def series_of(families: Iterable[Any]) -> Series:
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in families
        for sample in family.samples
    }


def scrape(*statuses: PipelineStatus) -> Series:
    return series_of(parse_text(render_metrics(statuses).body.decode()))


def value(series: Series, name: str, **labels: str) -> float:
    (found,) = [v for (n, own), v in series.items() if n == name and labels.items() <= {*own}]
    return found


@pytest.mark.parametrize(
    ("accept", "content_type", "parse"),
    [
        ("", "text/plain; version=0.0.4; charset=utf-8", parse_text),
        (
            "application/openmetrics-text;version=1.0.0,text/plain;q=0.5",
            "application/openmetrics-text; version=1.0.0; charset=utf-8; escaping=underscores",
            parse_openmetrics,
        ),
    ],
    ids=["text", "openmetrics"],
)
def test_prometheus_parsers_read_the_same_values_from_both_formats(
    accept: str, content_type: str, parse: Callable[[str], Iterable[Any]]
) -> None:
    sent = render_metrics([PIPELINE, MONO], accept)

    assert sent.content_type == content_type
    assert series_of(parse(sent.body.decode())) == scrape(PIPELINE, MONO)


def test_every_metric_of_the_table_is_sent_with_its_type_and_description() -> None:
    text = render_metrics([PIPELINE, MONO]).body.decode()
    sent = {family.name: family for family in parse_text(text)}

    assert {m.name for m in METRICS} == sent.keys()
    assert {m.name: m.kind for m in METRICS} == {name: f.type for name, f in sent.items()}
    assert {m.name: m.about for m in METRICS} == {name: f.documentation for name, f in sent.items()}


def test_metric_names_are_numaflows_or_start_with_ebbflow() -> None:
    names = {metric.full_name for metric in METRICS}

    assert {name for name in names if not name.startswith("ebbflow_")} == NUMAFLOW


def test_counters_are_totals_and_every_message_read_is_counted_as_acked_or_nacked() -> None:
    step = {"pipeline": "orders", "vertex": "enrich", "vertex_type": "MapUDF"}
    series = scrape(PIPELINE)

    assert value(series, "forwarder_read_total", **step) == 9
    assert value(series, "forwarder_ack_total", **step) == 7
    assert value(series, "forwarder_nack_total", **step) == 2
    assert value(series, "forwarder_drop_total", **step) == 2
    assert value(series, "forwarder_write_total", **step) == 8
    assert value(series, "ebbflow_dead_lettered_total", **step) == 1
    assert value(series, "ebbflow_dead_letters", **step) == 2
    assert value(series, "forwarder_critical_error_total", **step) == 3


def test_only_sinks_have_fallback_sinks_and_only_maps_have_user_functions() -> None:
    series = scrape(PIPELINE)

    def types(name: str) -> set[str]:
        return {dict(labels)["vertex_type"] for n, labels in series if n == name}

    assert types("forwarder_fbsink_write_total") == {"Sink"}
    assert types("forwarder_udf_read_total") == {"MapUDF"}
    assert types("forwarder_read_total") == {"Source", "MapUDF", "Sink"}


def test_waiting_messages_are_counted_at_the_source_and_in_the_buffer() -> None:
    series = scrape(PIPELINE)

    assert value(series, "vertex_pending_messages_raw", vertex="in") == 11
    assert value(series, "ebbflow_source_messages", vertex="in") == 7
    assert value(series, "isb_jetstream_buffer_pending", buffer="orders-out") == 4
    assert value(series, "ebbflow_in_flight_seconds", vertex="enrich") == 40
    assert value(series, "ebbflow_parked_next_due_timestamp_seconds", vertex="enrich") == (
        NOON.timestamp()
    )


def test_times_are_histograms_in_microseconds() -> None:
    series = scrape(PIPELINE)
    name, step = "forwarder_udf_processing_time", {"vertex": "enrich"}

    assert value(series, f"{name}_bucket", le="1000.0", **step) == 0
    assert value(series, f"{name}_bucket", le="2500.0", **step) == 1
    assert value(series, f"{name}_bucket", le="+Inf", **step) == 2
    assert value(series, f"{name}_count", **step) == 2
    assert value(series, f"{name}_sum", **step) == pytest.approx(4000.002 * 1e6)


def test_a_monovertex_has_numaflows_metric_names_and_ours() -> None:
    series = scrape(MONO)

    assert value(series, "monovtx_read_total", mvtx_name="alone") == 9
    assert value(series, "monovtx_pending_raw", mvtx_name="alone") == 7
    assert value(series, "ebbflow_parked_messages", vertex_type="MonoVertex") == 1
    assert not [name for name, _ in series if name.startswith(("forwarder_", "vertex_"))]


def test_exactly_one_condition_and_one_phase_are_set() -> None:
    series = scrape(PIPELINE)
    chosen = [own for (n, own), v in series.items() if n == "ebbflow_vertex_condition" and v]

    assert [dict(own)["condition"] for own in chosen] == ["busy", "busy", "running"]
    assert value(series, "ebbflow_phase", phase="running") == 1
    assert sum(v for (n, _), v in series.items() if n == "ebbflow_phase") == 1
    assert value(series, "build_info", version=ebbflow.__version__) == 1


def test_unknown_values_are_not_sent() -> None:
    bare = PipelineStatus("new", phase="starting", vertices=(VertexStatus("in", "source"),))
    names = {name for name, _ in scrape(bare)}

    assert "ebbflow_watermark_timestamp_seconds" not in names
    assert "vertex_pending_messages_raw" not in names
    assert value(scrape(bare), "pipeline_data_processing_health") == 0


@pytest.mark.guarantee("metrics-are-bounded")
def test_no_label_contains_text_from_a_message_or_an_error() -> None:
    text = 'customer 17 is "new"\n'
    talkative = replace(
        STEP,
        failure=text,
        nack_reason=text,
        words=text,
        halted=text,
        errors=(),
        nack_reasons=(Cause(text, 3),),
        dead_letter_causes=(Cause(text, 3),),
    )
    changed = replace(PIPELINE, vertices=(PIPELINE.vertices[0], talkative, PIPELINE.vertices[2]))

    assert scrape(changed).keys() == scrape(PIPELINE).keys()


@pytest.mark.guarantee("metrics-are-bounded")
@pytest.mark.parametrize("condition", get_args(Condition))
def test_the_number_of_series_does_not_depend_on_the_state(condition: Condition) -> None:
    changed = replace(PIPELINE, vertices=(replace(STEP, condition=condition),))

    assert len(scrape(changed)) == len(scrape(replace(PIPELINE, vertices=(STEP,))))


def test_openmetrics_output_ends_with_its_end_marker() -> None:
    body = render_metrics([PIPELINE], openmetrics.exposition.CONTENT_TYPE_LATEST).body

    assert body.endswith(b"# EOF\n")
