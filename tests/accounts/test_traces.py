"""The spans of a task, without Spark: how many are made, and what the rest of the rows keep."""

from __future__ import annotations

from typing import Any

import pytest

from ebbflow.accounts.traces import (
    CHUNKS_A_SECOND,
    MESSAGES_A_SECOND,
    TRACES_A_SECOND,
    TaskSpans,
    current_ids,
)
from ebbflow.domain.durations import DEFAULT_ON_ERROR
from ebbflow.engine import frames
from ebbflow.engine.checks import Rules
from ebbflow.engine.frames import Rows
from ebbflow.engine.trace_context import SCOPES, find_contexts
from ebbflow.engine.verdict import Verdict
from tests.engine.sample_rows import account_of

pytest.importorskip("opentelemetry.sdk")

from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, ALWAYS_ON, ParentBased, Sampler

PARENT = f"00-{'a' * 32}-{'b' * 16}-01"


class Recording:
    """A task's spans, and where they end up."""

    def __init__(self, is_source: bool, sampler: Sampler = ALWAYS_ON) -> None:
        self.exporter = InMemorySpanExporter()
        provider = TracerProvider(ParentBased(sampler), shutdown_on_exit=False)
        provider.add_span_processor(SimpleSpanProcessor(self.exporter))
        self.task = TaskSpans("orders", "in", 0, is_source, provider.get_tracer("test"))

    def follow(self, count: int, parent: str | None = None) -> Rows:
        """The rows that user code receives for a chunk of that size."""
        headers = None if parent is None else [[("traceparent", parent)]] * count
        columns: dict[str, Any] = {"id": [f"in-{n}" for n in range(count)], "value": [b""] * count}
        batch = frames.batch_of(columns | {"headers": headers}, count)
        with self.task.calling(Rows(batch)) as rows:
            verdict = Verdict(rows, Rules("in", DEFAULT_ON_ERROR, 100))
        self.task.see(account_of(verdict))
        return rows

    def named(self, name: str) -> list[Any]:
        return [span for span in self.exporter.get_finished_spans() if span.name == name]


def contexts(rows: Rows) -> list[str]:
    return list(find_contexts(rows.batch.column("headers")).values())


def test_a_source_begins_a_limited_number_of_traces_however_many_messages_arrive() -> None:
    source = Recording(is_source=True)

    rows = [source.follow(2_000) for _ in range(3)]

    begun = len(source.named("in process"))
    assert TRACES_A_SECOND <= begun <= 2 * TRACES_A_SECOND
    assert sum(len(contexts(chunk)) for chunk in rows) == begun


def test_messages_beyond_the_limit_keep_the_trace_that_they_arrived_with() -> None:
    vertex = Recording(is_source=False)

    rows = vertex.follow(MESSAGES_A_SECOND + 100, PARENT)

    spans, kept = vertex.named("in process"), contexts(rows).count(PARENT)
    assert len(spans) == MESSAGES_A_SECOND
    assert kept == 100
    assert {span.parent.span_id for span in spans} == {int("b" * 16, 16)}
    assert len(contexts(rows)) == len(rows)


def test_spans_of_chunks_are_limited() -> None:
    vertex = Recording(is_source=False)

    for _ in range(CHUNKS_A_SECOND + 30):
        vertex.follow(1)

    assert CHUNKS_A_SECOND <= len(vertex.named("in chunk")) < CHUNKS_A_SECOND + 30


def test_rows_that_the_sampler_rejects_stay_unchanged() -> None:
    source = Recording(is_source=True, sampler=ALWAYS_OFF)

    rows = source.follow(10)

    assert contexts(rows) == []
    assert source.exporter.get_finished_spans() == ()


def test_a_vertex_that_is_not_a_source_begins_no_trace() -> None:
    vertex = Recording(is_source=False)

    assert contexts(vertex.follow(10)) == []
    assert vertex.named("in process") == []


def test_scopes_end_with_the_chunk_even_when_user_code_raises() -> None:
    vertex = Recording(is_source=False)
    batch = frames.batch_of(
        {"id": ["a"], "value": [b""], "headers": [[("traceparent", PARENT)]]}, 1
    )

    def fail() -> None:
        with vertex.task.calling(Rows(batch)) as rows:
            (scope,) = SCOPES.of(rows).values()
            with scope():
                (span,) = contexts(rows)
                assert current_ids() == tuple(span.split("-")[1:3])
            raise KeyError("x")

    with pytest.raises(KeyError):
        fail()
    assert SCOPES.find is None
    assert len(vertex.named("in process")) == 1
