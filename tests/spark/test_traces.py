"""Traces and metrics of a real pipeline.

A request's trace continues through vertices, nacks and dead letters.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ebbflow import Backoff, Datum, Message, NackOptions, Pipeline
from ebbflow.connectors import Http, Ports
from ebbflow.deadletters import DeadLetters, LetterFilter
from ebbflow.nats.locate import open_link, start_embedded
from ebbflow.status.metrics import render_metrics
from ebbflow.streams.logs import LogEntry, read_logs
from ebbflow.streams.names import Names
from ebbflow.testing.background_run import BackgroundRun, until
from tests.connectors.http.receiver import Receiver
from tests.connectors.http.test_source_runs import post
from tests.ports import free_port
from tests.runtime.collector import Collector, SeenSpan

pytest.importorskip("opentelemetry.sdk")
pytestmark = [pytest.mark.slow, pytest.mark.long, pytest.mark.usefixtures("spark")]

TRACE, CALLER = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"


def step(datum: Datum) -> Message:
    from opentelemetry import trace

    with trace.get_tracer("user").start_as_current_span(f"user {datum.value.decode()}"):
        if datum.value == b"without":
            logging.getLogger("shop").warning("a trace begins")
        if datum.value == b"dies":
            raise ValueError("no good")
        if datum.value == b"comes again" and datum.deliveries == 1:
            return Message.to_nack(NackOptions(reason="not yet"))
        return Message(datum.value)


def parent(flags: str) -> str:
    return f"00-{TRACE}-{CALLER}-{flags}"


@pytest.fixture(scope="module")
def traced(spark: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SimpleNamespace]:
    """Two runs of one pipeline; between them its dead letter is replayed."""
    state, port = tmp_path_factory.mktemp("traces") / "state", free_port()
    with Collector() as collector, Receiver() as receiver, pytest.MonkeyPatch.context() as patch:
        patch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.url)
        patch.setenv("OTEL_BSP_SCHEDULE_DELAY", "200")
        pipeline = (
            Pipeline("traced")
            .source("in", Http(ports=Ports(http=port)))
            .map("step", step, on_error=Backoff("1s", steps=0))
            .sink("out", Http(url=receiver.url))
        )
        live = BackgroundRun(pipeline, state)
        try:
            post(port, "in", b"comes again", traceparent=parent("01"), tracestate="a=b")
            post(port, "in", b"dies", traceparent=parent("01"))
            post(port, "in", b"not recorded", traceparent=parent("00"))
            post(port, "in", b"without")
            assert until(lambda: len(receiver.taken) == 3, 120), live.failures
            assert until(lambda: any(s.failed for s in collector.spans.copy()), 120)
            # Positions are read; the duration of a chunk is reported by its task a moment later.
            assert until(lambda: live.status["out"].totals.done == 3, 120)
            assert until(lambda: _timed(live, "step") == 5 and _timed(live, "out") == 3, 120)
            metrics = render_metrics([live.status]).body.decode()
        finally:
            live.stop()
        logs = _read_logs_and_replay(state)
        live = BackgroundRun(pipeline, state)
        try:
            assert until(lambda: len(collector.named("step process")) >= 5, 120), live.failures
        finally:
            live.stop()
        yield SimpleNamespace(collector=collector, taken=receiver.taken, metrics=metrics, logs=logs)


def _timed(live: BackgroundRun, vertex: str) -> int:
    """The number of messages of a vertex with a known duration."""
    spread = live.status[vertex].spreads.get("message")
    return 0 if spread is None else spread.count


def _read_logs_and_replay(state: Path) -> Sequence[LogEntry]:
    with start_embedded(state) as server, open_link(server) as link:
        letters = DeadLetters(link, "traced")
        letters.replay(LetterFilter())
        return link.run(read_logs(link.client, Names("traced"), "step", 10)).entries


def spans_of(traced: SimpleNamespace, name: str, trace: str = TRACE) -> list[SeenSpan]:
    return [span for span in traced.collector.named(name) if span.trace == trace]


@pytest.mark.guarantee("a-trace-goes-where-its-message-goes")
def test_the_trace_of_a_request_continues_through_vertices_and_nacks(
    traced: SimpleNamespace,
) -> None:
    ids = {span.id: span for span in traced.collector.spans}
    again = [s for s in spans_of(traced, "step process") if "dies" not in name_of(ids, s)]
    first, second = [s for s in again if s.attributes["ebbflow.deliveries"] in (1, 2)][:2]
    (taken,) = [t for t in traced.taken if t.body == b"comes again"]
    (out,) = [s for s in spans_of(traced, "out process") if s.parent == second.id]

    assert ids[first.parent].name == "in process"
    assert ids[first.parent].parent == CALLER
    assert (
        first.attributes["ebbflow.outcome"],
        second.attributes["ebbflow.outcome"],
    ) == (
        "Redeliver",
        "Done",
    )
    assert first.attributes["ebbflow.reason"] == "not yet"
    assert second.parent == first.id
    assert taken.headers["traceparent"] == f"00-{TRACE}-{out.id}-01"
    assert taken.headers["tracestate"] == "a=b"


def name_of(ids: dict[str, SeenSpan], span: SeenSpan) -> str:
    """The name of the span that user code created within this one."""
    return next((s.name for s in ids.values() if s.parent == span.id and s.name[:5] == "user "), "")


def test_spans_of_user_code_are_in_the_span_of_their_message(traced: SimpleNamespace) -> None:
    ids = {span.id: span for span in traced.collector.spans}
    own = [span for span in traced.collector.spans if span.name.startswith("user ")]

    assert {span.name for span in own} >= {"user comes again", "user dies", "user without"}
    assert {ids[s.parent].name for s in own if s.trace == TRACE} == {"step process"}
    assert {span.service for span in traced.collector.spans} == {"traced"}


@pytest.mark.guarantee("a-trace-goes-where-its-message-goes")
def test_a_dead_letter_and_its_replay_belong_to_the_same_trace(traced: SimpleNamespace) -> None:
    dead = [s for s in spans_of(traced, "step process") if s.failed]

    assert [span.attributes["ebbflow.outcome"] for span in dead] == [
        "DeadLetter",
        "DeadLetter",
    ]
    assert dead[0].attributes["error.type"] == "ValueError"
    assert dead[0].events == ("exception",)
    assert dead[1].parent == dead[0].id


@pytest.mark.guarantee("a-trace-goes-where-its-message-goes")
def test_an_unsampled_trace_is_propagated_without_spans(traced: SimpleNamespace) -> None:
    (taken,) = [t for t in traced.taken if t.body == b"not recorded"]
    ids = {span.attributes.get("messaging.message.id") for span in traced.collector.spans}

    assert taken.headers["traceparent"] == parent("00")
    assert len(traced.collector.named("in process")) == 3
    assert len(ids - {None}) >= 3


def test_a_message_without_a_trace_starts_one_at_its_source(traced: SimpleNamespace) -> None:
    (taken,) = [t for t in traced.taken if t.body == b"without"]
    trace = taken.headers["traceparent"].split("-")[1]
    way = {span.name for span in traced.collector.spans if span.trace == trace}

    assert way == {"in process", "step process", "out process", "user without"}


def test_the_span_of_a_chunk_links_to_the_spans_of_its_messages(traced: SimpleNamespace) -> None:
    chunks = traced.collector.named("step chunk")
    linked = {link for chunk in chunks for link in chunk.links}

    assert {span.id for span in traced.collector.named("step process")} == linked
    assert all(chunk.attributes["messaging.batch.message_count"] >= 1 for chunk in chunks)


def test_log_entries_of_user_code_name_their_span(traced: SimpleNamespace) -> None:
    (entry,) = [entry for entry in traced.logs if entry.printed.text == "a trace begins"]
    (span,) = traced.collector.named("user without")

    assert entry.trace == (span.trace, span.id)


@pytest.mark.guarantee("metrics-are-bounded")
def test_the_metrics_of_a_run_count_the_outcomes_of_its_messages(traced: SimpleNamespace) -> None:
    lines = traced.metrics.splitlines()

    def value(name: str, vertex: str, kind: str) -> float:
        series = f'{name}{{pipeline="traced",vertex="{vertex}",vertex_type="{kind}"}} '
        return next(float(line.removeprefix(series)) for line in lines if line.startswith(series))

    assert value("forwarder_read_total", "in", "Source") == 4
    assert value("forwarder_read_total", "step", "MapUDF") == 5
    assert value("forwarder_nack_total", "step", "MapUDF") == 1
    assert value("forwarder_ack_total", "step", "MapUDF") == 4
    assert value("ebbflow_dead_lettered_total", "step", "MapUDF") == 1
    assert value("forwarder_write_total", "out", "Sink") == 3
    assert value("forwarder_udf_processing_time_count", "step", "MapUDF") == 5
    assert 1 <= value("forwarder_processing_time_count", "out", "Sink") <= 3
    assert value("ebbflow_vertex_up", "out", "Sink") == 1
    assert 'ebbflow_ready{pipeline="traced"} 1.0' in lines
