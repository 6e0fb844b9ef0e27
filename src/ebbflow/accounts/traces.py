"""The spans of a task: one for a chunk, and one for each of its messages whose trace is recorded.

A message's span continues the ``traceparent`` in its headers and replaces it, so outputs of the
vertex and user code that reads the headers continue the span. A redelivered message continues the
span of its previous delivery. A source begins a trace for messages without one, if the sampler says
so (``OTEL_TRACES_SAMPLER``). The decision is made once: later vertices record a message if its
header says so.

Spans cost Python time, so a task makes a limited number a second. A message beyond that keeps its
header as it is: its trace continues, with a gap. Nothing here changes the outcome of a message.

OpenTelemetry's standard variables say whether traces are recorded, and where they go. The driver
reads the variables and sends them to the tasks with their plans, so that workers on other machines
export to the same place. Each worker has one exporter; it never holds up a task.
"""

from __future__ import annotations

import contextlib
import logging
import math
import os
import re
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache, partial
from importlib.metadata import entry_points
from importlib.util import find_spec
from itertools import islice
from typing import TYPE_CHECKING, Any

from ebbflow.domain import __version__
from ebbflow.domain.code import Variables
from ebbflow.domain.outcome import DONE, DeadLetter, Outcome, Redeliver, Retry
from ebbflow.engine import frames
from ebbflow.engine.account import Account, ChunkObserver
from ebbflow.engine.frames import TRACEPARENT, Rows
from ebbflow.engine.trace_context import (
    SCOPES,
    TRACESTATE,
    Scope,
    find_contexts,
    find_recorded,
    with_contexts,
)

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SpanExporter
    from opentelemetry.trace import Span, Tracer

MESSAGES_A_SECOND = 500
"""The most messages that a task makes spans for in a second, if they continue a trace."""
TRACES_A_SECOND = 50
"""The most traces that a task of a source begins in a second."""
CHUNKS_A_SECOND = 20
"""The most chunks that a task makes spans for in a second."""
# The most messages a second for which the sampler is called, which takes time, too.
_ASKED_A_SECOND = 2_000
_MOST_LINKS = 100

_EXPORTER = "OTEL_TRACES_EXPORTER"
_ENDPOINTS = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
_PROTOCOLS = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
_FLUSH_WITHIN = 3.0
_PRINT_EVERY, _LONGEST = 60.0, 200
_SYSTEM_ERROR = re.compile(r"\[Errno -?\d+\] ([\w ]+)")

MISSING = (
    "traces are asked for, but OpenTelemetry is not installed; run: pip install 'ebbflow[otel]'"
)
"""The message of a run that cannot record the traces it is asked for."""


class SpanBudget:
    """Limits spans to a number a second; an unused budget is kept for one second."""

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
        """Returns unused spans to the budget."""
        self._left += unused


class TaskSpans(ChunkObserver):
    """The spans of one task; a source's task ``begins`` traces. Used by the task's thread."""

    def __init__(
        self, pipeline: str, vertex: str, partition: int, begins: bool, tracer: Tracer
    ) -> None:
        self._tracer = tracer
        self._begins = begins
        self._vertex = vertex
        self._common = {
            "messaging.system": "ebbflow",
            "messaging.destination.name": vertex,
            "messaging.destination.partition.id": str(partition),
            "ebbflow.pipeline": pipeline,
            "ebbflow.vertex": vertex,
        }
        self._messages = SpanBudget(MESSAGES_A_SECOND)
        self._traces = SpanBudget(TRACES_A_SECOND)
        self._asked = SpanBudget(_ASKED_A_SECOND)
        self._chunks = SpanBudget(CHUNKS_A_SECOND)
        self._called: ChunkSpans | None = None

    @contextmanager
    def calling(self, rows: Rows) -> Iterator[Rows]:
        """Records spans while user code decides about the rows; their headers name the spans."""
        from opentelemetry import trace

        spans = self._begin_messages(rows)
        chunk = self._begin_chunk(rows, spans)
        called = ChunkSpans(rows, spans, chunk)
        SCOPES.find = called.find_scopes
        try:
            with trace.use_span(chunk):
                yield called.rows
        except BaseException:
            called.end()
            raise
        finally:
            SCOPES.find = None
        called.note_return()
        self._called = called

    def see(self, account: Account) -> None:
        """Records the outcomes of the decided chunk on its spans, and ends the spans."""
        if self._called is not None and not account.is_early:
            self._called.describe(account)
            self._called.end()
            self._called = None

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
        """Begins traces for messages without one, if the sampler selects them."""
        granted = self._traces.take(len(rows))
        known = find_contexts(rows.batch.column("headers")) if granted else {}
        without = (row for row in range(len(rows) if granted else 0) if row not in known)
        sampled = self._begin_at(rows, [*islice(without, self._asked.take(len(rows)))], granted)
        self._traces.give_back(granted - len(sampled))
        return sampled

    def _begin_at(self, rows: Rows, chosen: Sequence[int], most: int) -> dict[int, Span]:
        """Begins spans for these rows until ``most`` are recorded; returns the recorded ones."""
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
        self._returned: int | None = None
        contexts = dict(zip(spans, self._parents, strict=True))
        self.rows = Rows(with_contexts(rows.batch, contexts), rows.watermark) if spans else rows

    def find_scopes(self, rows: Rows) -> Mapping[int, Scope]:
        """Returns the scopes of those rows that continue a span of this chunk."""
        if not self._parents:
            return {}
        recorded = find_recorded(rows.batch.column("headers"))
        known = {row: self._parents.get(text) for row, text in recorded.items()}
        return {row: partial(self._enter, span) for row, span in known.items() if span is not None}

    @contextmanager
    def _enter(self, span: Span) -> Iterator[None]:
        """Makes a message's span the current one while user code is called with it."""
        from opentelemetry import trace

        with trace.use_span(span, record_exception=False, set_status_on_exception=False):
            try:
                yield
            finally:
                self._ended[span] = time.time_ns()

    def note_return(self) -> None:
        """Notes when user code returned from the chunk."""
        self._returned = time.time_ns()

    def describe(self, account: Account) -> None:
        """Records the outcomes of the messages on their spans."""
        part, held = account.parts[0], account.held
        settled = part.batch.num_rows
        for row, span in self._spans.items():
            if row < settled:
                _describe_end(span, part.outcomes.get(row, DONE))
            elif row == settled and held is not None:
                _describe_end(span, held.outcome)
        self._chunk.set_attribute("ebbflow.not_done", len(part.outcomes) + (held is not None))

    def end(self) -> None:
        """Ends all spans: each message's when user code returned from it, or from the chunk."""
        for span in self._spans.values():
            span.end(self._ended.get(span, self._returned))
        self._chunk.end(self._returned)


def _describe_end(span: Span, outcome: Outcome) -> None:
    """Records on the span the outcome of this delivery."""
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
    # The base must be empty: the current context belongs to another message.
    return TraceContextTextMapPropagator().extract(carrier, Context())


def _inject(span: Span) -> str:
    """Returns the ``traceparent`` that continues the span."""
    context = span.get_span_context()
    return f"00-{context.trace_id:032x}-{context.span_id:016x}-{int(context.trace_flags):02x}"


def current_ids() -> tuple[str, str] | None:
    """Returns the ids of user code's current trace and span; ``None`` if none is recorded.

    Called on a worker, in the thread of user code. Costs almost nothing while traces are off.
    """
    if SCOPES.find is None:
        return None
    from opentelemetry import trace

    context = trace.get_current_span().get_span_context()
    if not context.is_valid:
        return None
    return f"{context.trace_id:032x}", f"{context.span_id:016x}"


# --- where spans go -----------------------------------------------------------------------------


def asks_for_traces(environment: Mapping[str, str]) -> bool:
    """Returns whether the variables name an exporter of traces, or where it sends them."""
    if environment.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        return False
    exporter = environment.get(_EXPORTER, "").strip().lower()
    if exporter:
        return exporter != "none"
    return any(environment.get(name, "").strip() for name in _ENDPOINTS)


def is_installed() -> bool:
    """Returns whether OpenTelemetry's SDK is installed."""
    with contextlib.suppress(ModuleNotFoundError):
        return find_spec("opentelemetry.sdk") is not None
    return False


def read_trace_variables(environment: Mapping[str, str]) -> Variables:
    """Returns the variables that tasks need to record traces; none if they record no traces.

    They may contain the keys of a service, so they are never shown.
    """
    if not (asks_for_traces(environment) and is_installed()):
        return ()
    return tuple((name, text) for name, text in environment.items() if name.startswith("OTEL_"))


def open_tracer(pipeline: str, variables: Variables) -> Tracer:
    """Returns the tracer of this worker for a pipeline; its spans are exported in the background.

    The provider is global to the process, so spans of user code are exported the same way. If user
    code has set up a provider itself, that one is used.
    """
    os.environ |= dict(variables)
    _set_up_provider(os.environ.get("OTEL_SERVICE_NAME") or pipeline)
    from opentelemetry import trace

    return trace.get_tracer("ebbflow", __version__)


@cache
def _set_up_provider(service: str) -> None:
    """Sets the provider of this process, once."""
    from opentelemetry import trace
    from opentelemetry.sdk.resources import SERVICE_NAME, Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    if isinstance(trace.get_tracer_provider(), TracerProvider):
        return
    exporters = logging.getLogger("opentelemetry.exporter")
    exporters.addHandler(_ExportTrouble())
    exporters.propagate = False
    # Not shut down at exit: a worker that has to end must not wait for a collector.
    resource = Resource.create({SERVICE_NAME: service})
    provider = TracerProvider(resource=resource, shutdown_on_exit=False)
    for exporter in _make_exporters():
        provider.add_span_processor(BatchSpanProcessor(exporter))
    trace.set_tracer_provider(provider)


def _make_exporters() -> list[SpanExporter]:
    """Returns the exporters that the variables name; one that is not installed is left out."""
    names = (os.environ.get(_EXPORTER) or "otlp").split(",")
    known = {entry.name: entry for entry in entry_points(group="opentelemetry_traces_exporter")}
    wanted = [_full_name(name.strip().lower()) for name in names]
    return [known[name].load()() for name in wanted if name in known]


def _full_name(name: str) -> str:
    """Returns the name under which an exporter is registered: OTLP has one for each protocol."""
    if name != "otlp":
        return name
    protocol = next(
        (os.environ[variable] for variable in _PROTOCOLS if os.environ.get(variable)), ""
    )
    return "otlp_proto_grpc" if protocol == "grpc" else "otlp_proto_http"


class _ExportTrouble(logging.Handler):
    """Prints once a minute that traces are not exported; an exporter logs each failed attempt."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self._printed_at = -math.inf

    def emit(self, record: logging.LogRecord) -> None:
        """Prints one line, unless one was just printed."""
        if time.monotonic() - self._printed_at < _PRINT_EVERY:
            return
        self._printed_at = time.monotonic()
        text = record.getMessage()
        why = _SYSTEM_ERROR.search(text)
        what = why[1] if why else text[:_LONGEST]
        print(
            f"traces are not exported: {what}; the pipeline continues without them", file=sys.stderr
        )


def flush_spans() -> None:
    """Exports recorded spans, and waits for that a little; called at the end of a run."""
    from opentelemetry import trace
    from opentelemetry.sdk.trace import TracerProvider

    provider = trace.get_tracer_provider()
    if isinstance(provider, TracerProvider):
        _flush(provider)


def _flush(provider: TracerProvider) -> None:
    # In a thread: an exporter whose collector is down exceeds its timeout.
    flushing = threading.Thread(target=provider.force_flush, daemon=True)
    flushing.start()
    flushing.join(_FLUSH_WITHIN)
