"""OpenTelemetry's standard variables say whether traces are recorded; spans are limited."""

import logging

import pytest

from ebbflow.accounts import traces
from ebbflow.accounts.traces import SpanBudget, asks_for_traces, current_ids, read_trace_variables

ENDPOINT = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://collector:4318"}


@pytest.mark.parametrize(
    ("variables", "asks"),
    [
        ({}, False),
        (ENDPOINT, True),
        ({"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://collector:4318"}, True),
        ({"OTEL_TRACES_EXPORTER": "otlp"}, True),
        ({"OTEL_TRACES_EXPORTER": "console"}, True),
        ({"OTEL_TRACES_EXPORTER": "none", **ENDPOINT}, False),
        ({"OTEL_SDK_DISABLED": "true", **ENDPOINT}, False),
        ({"OTEL_SERVICE_NAME": "orders"}, False),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": ""}, False),
    ],
)
def test_an_exporter_or_an_endpoint_turns_traces_on(variables: dict[str, str], asks: bool) -> None:
    assert asks_for_traces(variables) is asks


def test_tasks_receive_the_variables_of_opentelemetry_and_no_others() -> None:
    environment = {"HOME": "/root", "OTEL_SERVICE_NAME": "orders", **ENDPOINT}

    assert dict(read_trace_variables(environment)) == {"OTEL_SERVICE_NAME": "orders", **ENDPOINT}
    assert read_trace_variables({"OTEL_SERVICE_NAME": "orders"}) == ()


def test_no_trace_is_recorded_without_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(traces, "is_installed", lambda: False)

    assert read_trace_variables(ENDPOINT) == ()


def test_spans_are_limited_and_an_unused_budget_is_kept_for_a_second(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = 100.0
    monkeypatch.setattr("ebbflow.accounts.traces.time.monotonic", lambda: now)
    budget = SpanBudget(10)

    taken = [budget.take(7), budget.take(7)]
    now += 0.5
    taken += [budget.take(7), budget.take(0)]
    now += 60
    taken += [budget.take(100)]

    assert taken == [7, 3, 5, 0, 10]


def test_an_unavailable_collector_is_reported_once_and_not_for_each_attempt(
    capsys: pytest.CaptureFixture[str],
) -> None:
    log = logging.getLogger("test of the exporter")
    log.propagate = False
    log.addHandler(traces._ExportTrouble())

    for _ in range(3):
        log.warning("Transient error %s encountered", "(Caused by [Errno 111] Connection refused)")

    assert capsys.readouterr().err == (
        "traces are not exported: Connection refused; the pipeline continues without them\n"
    )


def test_there_is_no_current_trace_while_none_is_recorded() -> None:
    assert current_ids() is None
