"""The spans of a task: one for a chunk, and one for each of its messages whose trace is recorded.

A message's span continues the ``traceparent`` among its headers, and takes its place there: what
the vertex sends on, and user code that looks at the headers, continue the span. A message that
comes again continues the span of the delivery before. A source begins a trace for messages without
one, as the sampler says (``OTEL_TRACES_SAMPLER``). The decision is made once: later vertices record
what the header says is recorded.

Spans cost Python time, so a task makes a limited number a second. A message beyond that keeps its
header as it is: its trace goes on, with a gap. Nothing here changes what is done with a message.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from itertools import islice
from typing import TYPE_CHECKING, Any

from ebbflow.domain.outcome import DONE, DeadLetter, Outcome, Redeliver, Retry
from ebbflow.engine import frames
from ebbflow.engine.frames import TRACEPARENT, Rows
from ebbflow.engine.trace_context import (
    SCOPES,
    TRACESTATE,
    Scope,
    find_contexts,
    find_recorded,
    with_contexts,
)
from ebbflow.engine.verdict import Verdict
from ebbflow.runtime.plan import VertexPlan
from ebbflow.runtime.trace_export import open_tracer

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.trace import Span, Tracer

MESSAGES_A_SECOND = 500
"""The most messages that a task makes spans for in a second, if they continue a trace."""
TRACES_A_SECOND = 50
"""The most traces that a task of a source begins in a second."""
CHUNKS_A_SECOND = 20
"""The most chunks that a task makes spans for in a second."""
# For how many messages a second the sampler is asked, which takes a while, too.
_ASKED_A_SECOND = 2_000
_MOST_LINKS = 100


class SpanBudget:
    """So many spans a second, and no more: what was not used is kept for one second."""

    def __init__(self, a_second: int) -> None:
        self._a_second = a_second
        self._left = float(a_second)
        self._at = time.monotonic()

    def take(self, wanted: int) -> int:
        """Returns how many of the spans may be made."""
        now = time.monotonic()
        gained = (now - self._at) * self._a_second
        self._left, self._at = min(self._left + gained, self._a_second), now
        granted = min(wanted, int(self._left))
        self._left -= granted
        return granted

    def give_back(self, unused: int) -> None:
        """Takes back what was granted and not used."""
        self._left += unused


def open_spans(plan: VertexPlan, partition: int) -> TaskSpans | None:
    """Returns who records the traces of a task; nobody unless the plan says so."""
    if not plan.run.traces:
        return None
    return TaskSpans(plan, partition, open_tracer(plan.pipeline, plan.run.traces))


class TaskSpans:
    """The spans of one task. Used by the task's thread."""

    def __init__(self, plan: VertexPlan, partition: int, tracer: Tracer) -> None:
        self._tracer = tracer
        self._begins = plan.is_source
        self._vertex = plan.vertex
        self._common = {
            "messaging.system": "ebbflow",
            "messaging.destination.name": plan.vertex,
            "messaging.destination.partition.id": str(partition),
            "ebbflow.pipeline": plan.pipeline,
            "ebbflow.vertex": plan.vertex,
        }
        self._messages = SpanBudget(MESSAGES_A_SECOND)
        self._traces = SpanBudget(TRACES_A_SECOND)
        self._asked = SpanBudget(_ASKED_A_SECOND)
        self._chunks = SpanBudget(CHUNKS_A_SECOND)

    @contextmanager
    def follow(self, rows: Rows) -> Iterator[ChunkSpans]:
        """Records spans while user code decides about the rows."""
        from opentelemetry import trace

        spans = self._begin_messages(rows)
        chunk = self._begin_chunk(rows, spans)
        followed = ChunkSpans(rows, spans, chunk)
        SCOPES.find = followed.find_scopes
        try:
            with trace.use_span(chunk, end_on_exit=True):
                yield followed
        finally:
            SCOPES.find = None
            followed.end()

    def _begin_chunk(self, rows: Rows, spans: Mapping[int, Span]) -> Span:
        from opentelemetry import trace

        if not self._chunks.take(1):
            return trace.INVALID_SPAN
        attributes: dict[str, Any] = {"messaging.batch.message_count": len(rows), **self._common}
        links = [trace.Link(span.get_span_context()) for span in [*spans.values()][:_MOST_LINKS]]
        name = f"{self._vertex} chunk"
        root: Context = trace.set_span_in_context(trace.INVALID_SPAN)
        return self._tracer.start_span(name, root, attributes=attributes, links=links)

    def _begin_messages(self, rows: Rows) -> dict[int, Span]:
        """Begins the spans of the messages whose trace is recorded, by their row."""
        headers = rows.batch.column("headers")
        recorded = find_recorded(headers)
        granted = self._messages.take(len(recorded))
        spans = self._begin_at(rows, [*recorded][:granted], granted)
        return spans | self._begin_traces(rows) if self._begins else spans

    def _begin_traces(self, rows: Rows) -> dict[int, Span]:
        """Begins traces for messages that have none, as far as the sampler wants them."""
        granted = self._traces.take(len(rows))
        known = find_contexts(rows.batch.column("headers")) if granted else {}
        without = (row for row in range(len(rows) if granted else 0) if row not in known)
        sampled = self._begin_at(rows, [*islice(without, self._asked.take(len(rows)))], granted)
        self._traces.give_back(granted - len(sampled))
        return sampled

    def _begin_at(self, rows: Rows, chosen: Sequence[int], most: int) -> dict[int, Span]:
        """Begins spans for these rows until so many are recorded; returns those."""
        if not chosen:
            return {}
        taken = Rows(frames.take_rows(rows.batch, chosen))
        spans = ((row, self._begin_message(taken, number)) for number, row in enumerate(chosen))
        return dict(islice((pair for pair in spans if pair[1].is_recording()), most))

    def _begin_message(self, rows: Rows, number: int) -> Span:
        from opentelemetry.trace import SpanKind

        return self._tracer.start_span(
            f"{self._vertex} process",
            _extract(rows.column("headers")[number]),
            SpanKind.CONSUMER,
            attributes={
                "messaging.operation.type": "process",
                "messaging.message.id": rows.column("id")[number],
                "messaging.message.body.size": len(rows.column("value")[number]),
                "ebbflow.deliveries": rows.column("deliveries")[number],
                **self._common,
            },
        )


class ChunkSpans:
    """The spans of one chunk and of its messages, by row. ``rows`` name them in their headers."""

    def __init__(self, rows: Rows, spans: Mapping[int, Span], chunk: Span) -> None:
        self._spans = spans
        self._chunk = chunk
        self._parents = {_inject(span): span for span in spans.values()}
        self._ended: dict[Span, int] = {}
        contexts = dict(zip(spans, self._parents, strict=True))
        self.rows = Rows(with_contexts(rows.batch, contexts), rows.watermark) if spans else rows

    def find_scopes(self, rows: Rows) -> Mapping[int, Scope]:
        """Returns the scopes of those rows that continue a span of this chunk."""
        if not self._parents:
            return {}
        recorded = find_recorded(rows.batch.column("headers"))
        known = {row: self._parents.get(text) for row, text in recorded.items()}
        return {row: _Scope(self, span) for row, span in known.items() if span is not None}

    def note_end(self, span: Span) -> None:
        """Takes down when user code was done with a message."""
        self._ended[span] = time.time_ns()

    def note(self, verdict: Verdict) -> None:
        """Takes down what became of the messages."""
        for row, span in self._spans.items():
            _describe_end(span, verdict.outcomes.get(row, DONE))
        self._chunk.set_attribute("ebbflow.not_done", len(verdict.outcomes))

    def end(self) -> None:
        """Ends the spans of the messages, each when user code was done with it."""
        for span in self._spans.values():
            span.end(self._ended.get(span))


class _Scope:
    """Makes a message's span the current one while user code is called with it."""

    def __init__(self, chunk: ChunkSpans, span: Span) -> None:
        self._chunk = chunk
        self._span = span

    def __call__(self) -> AbstractContextManager[object]:
        return self._enter()

    @contextmanager
    def _enter(self) -> Iterator[None]:
        from opentelemetry import trace

        with trace.use_span(self._span, record_exception=False, set_status_on_exception=False):
            try:
                yield
            finally:
                self._chunk.note_end(self._span)


def _describe_end(span: Span, outcome: Outcome) -> None:
    """Says on the span how the message ended in this delivery."""
    from opentelemetry.trace import StatusCode

    span.set_attribute("ebbflow.outcome", type(outcome).__name__)
    match outcome:
        case Redeliver(delay=delay, reason=reason):
            _add_facts(span, {"ebbflow.delay": delay / 1000, "ebbflow.reason": reason})
        case Retry(delay=delay, error=error):
            _add_facts(span, {"ebbflow.delay": delay / 1000, "ebbflow.reason": error})
        case DeadLetter(reason=reason, error=text, traceback=trace):
            kind = outcome.kind
            stack = {"exception.type": kind, "exception.message": text or reason}
            _add_facts(span, {"ebbflow.reason": reason, "error.type": kind})
            span.add_event("exception", _without_absent(stack | {"exception.stacktrace": trace}))
            span.set_status(StatusCode.ERROR, text or reason)


def _add_facts(span: Span, facts: Mapping[str, Any]) -> None:
    span.set_attributes(_without_absent(facts))


def _without_absent(facts: Mapping[str, Any]) -> dict[str, Any]:
    return {name: fact for name, fact in facts.items() if fact is not None}


def _extract(headers: Mapping[str, str]) -> Context:
    """Returns the context that the headers name; an empty one if they name none."""
    from opentelemetry.context import Context
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    ours = {name.lower(): text for name, text in headers.items()}
    carrier = {name: ours[name] for name in (TRACEPARENT, TRACESTATE) if name in ours}
    # Without one it must be empty: the current context is that of another message.
    return TraceContextTextMapPropagator().extract(carrier, Context())


def _inject(span: Span) -> str:
    """Returns the ``traceparent`` that continues the span."""
    context = span.get_span_context()
    return f"00-{context.trace_id:032x}-{context.span_id:016x}-{int(context.trace_flags):02x}"


def current_ids() -> tuple[str, str] | None:
    """Returns the ids of the trace and span that user code is in; nothing if none is recorded.

    Runs on a worker, in the thread that asks. Costs next to nothing while traces are off.
    """
    if SCOPES.find is None:
        return None
    from opentelemetry import trace

    context = trace.get_current_span().get_span_context()
    if not context.is_valid:
        return None
    return f"{context.trace_id:032x}", f"{context.span_id:016x}"
