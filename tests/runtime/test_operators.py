"""Sinks as a worker makes them from a plan: what decides when a target is unavailable."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from ebbflow import Backoff, Datum, Pipeline, Response, connectors
from ebbflow.connectors import Generator, Log
from ebbflow.connectors.part import class_name
from ebbflow.connectors.plans import UserSink
from ebbflow.domain.code import SinkMode
from ebbflow.domain.outcome import DeadLetter, Retry
from ebbflow.engine.verdict import Verdict
from ebbflow.nats.login import Addresses
from ebbflow.runtime.operators import Operators
from ebbflow.runtime.plan import SinksPlan, VertexPlan
from ebbflow.runtime.planning import make_plans
from ebbflow.runtime.worker import WORKER
from tests.connectors.test_registry import CLIENTS, SAMPLE_SINKS
from tests.engine.sample_rows import some, verdict_on

ONE_RETRY = {"retry": Backoff("1ms", steps=1), "on_failure": "drop"}


def answer_rows(rows: pa.RecordBatch) -> dict[int, Response]:
    """A columnar sink whose target is down."""
    return dict.fromkeys(range(rows.num_rows), Response.unavailable(what="the archive"))


def answer_each(data: list[Datum]) -> list[Response]:
    """The same sink, in batches."""
    return [Response.unavailable(datum.id, "the archive") for datum in data]


def plan_of(**options: Any) -> VertexPlan:
    pipeline = Pipeline("shop").source("in", Generator()).sink("out", Log(), **options)
    return make_plans(pipeline.spec, Addresses.of("nats://x"), 1_000_000, None)[1]


def sinks_of(plan: VertexPlan) -> SinksPlan:
    assert isinstance(plan.role, SinksPlan)
    return plan.role


def decide(plan: VertexPlan, sink: UserSink) -> Verdict:
    """The verdict on two messages by a vertex that has this sink instead of its own."""
    plan = replace(plan, role=replace(sinks_of(plan), primary=sink))
    verdict = verdict_on(some("a", "b"))
    try:
        Operators(plan, lambda printed: None).operator()(verdict)
    finally:
        WORKER.close_vertex(plan.vertex_of_run)
    return verdict


MODES = pytest.mark.parametrize(
    ("mode", "code"), [("batch", answer_each), ("columnar", answer_rows)]
)


@MODES
def test_the_retry_strategy_applies_when_the_target_of_a_connector_is_down(
    mode: SinkMode, code
) -> None:
    verdict = decide(plan_of(**ONE_RETRY), UserSink(code, mode))
    letter = DeadLetter("retries exhausted", error="the archive (after 1 retries)")
    assert verdict.outcomes == {0: letter, 1: letter}


@MODES
@pytest.mark.parametrize(("options", "own"), [({}, False), ({}, True), (ONE_RETRY, True)], ids=repr)
def test_the_vertex_waits_without_a_retry_strategy_and_for_user_code(
    mode: SinkMode, code, options: dict[str, Any], own: bool
) -> None:
    sink = UserSink(code, mode, strategy_decides=not own)
    verdict = decide(plan_of(**options), sink)
    assert {type(outcome) for outcome in verdict.outcomes.values()} == {Retry}
    assert {outcome.failures for outcome in verdict.outcomes.values()} == {0}


@pytest.mark.parametrize("kind", sorted(SAMPLE_SINKS.keys() - {"serve"}))
def test_the_retry_strategy_applies_to_outages_of_every_sink_except_user_code(kind: str) -> None:
    if kind in CLIENTS:
        pytest.importorskip(CLIENTS[kind])
    options = {
        re.sub("([A-Z])", r"_\1", name).lower(): of for name, of in SAMPLE_SINKS[kind].items()
    }
    connector = None if kind == "udsink" else getattr(connectors, class_name(kind))
    sink = answer_each if connector is None else connector(**options)
    pipeline = Pipeline("shop").source("in", Generator()).sink("out", sink)
    plan = sinks_of(make_plans(pipeline.spec, Addresses.of("nats://x"), 1_000_000, None)[1]).primary
    if isinstance(plan, UserSink):
        assert plan.strategy_decides is (kind != "udsink")
