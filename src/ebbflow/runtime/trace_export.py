"""Whether traces are recorded, and where they go: OpenTelemetry's standard variables say so.

The driver looks at the variables and gives them to the tasks with their plans, so that workers on
other machines export to the same place. Each worker has one exporter; it never holds up a task.
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
from collections.abc import Mapping
from functools import cache
from importlib.metadata import entry_points
from importlib.util import find_spec
from typing import TYPE_CHECKING

from ebbflow.domain.version import __version__
from ebbflow.usercode.variables import Variables

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SpanExporter
    from opentelemetry.trace import Tracer

_EXPORTER = "OTEL_TRACES_EXPORTER"
_ENDPOINTS = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
_PROTOCOLS = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
_FLUSH_WITHIN = 3.0
_SAY_EVERY, _LONGEST = 60.0, 200
_SYSTEM_ERROR = re.compile(r"\[Errno -?\d+\] ([\w ]+)")

MISSING = (
    "traces are asked for, but OpenTelemetry is not installed; run: pip install 'ebbflow[otel]'"
)
"""What a run says that cannot record the traces it is asked for."""


def asks_for_traces(environment: Mapping[str, str]) -> bool:
    """Returns whether the variables name an exporter of traces, or where it sends them."""
    if environment.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        return False
    exporter = environment.get(_EXPORTER, "").strip().lower()
    if exporter:
        return exporter != "none"
    return any(environment.get(name, "").strip() for name in _ENDPOINTS)


def is_installed() -> bool:
    """Returns whether OpenTelemetry's SDK is there."""
    with contextlib.suppress(ModuleNotFoundError):
        return find_spec("opentelemetry.sdk") is not None
    return False


def read_trace_variables(environment: Mapping[str, str]) -> Variables:
    """Returns the variables that tasks need to record traces; none if they are to record nothing.

    They may hold the keys of a service, and are shown to nobody.
    """
    if not (asks_for_traces(environment) and is_installed()):
        return ()
    return tuple((name, text) for name, text in environment.items() if name.startswith("OTEL_"))


def open_tracer(pipeline: str, variables: Variables) -> Tracer:
    """Returns the tracer of this worker for a pipeline; its spans are exported in the background.

    The provider is the process's own: spans that user code makes go the same way. If user code has
    set up one itself, that is used.
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
    # Not shut down at exit: a worker that is told to end does not wait for a collector.
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
    """Says that traces are not exported, once a minute; an exporter says it for each attempt."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self._said = -math.inf

    def emit(self, record: logging.LogRecord) -> None:
        """Says it in one line, unless it was just said."""
        if time.monotonic() - self._said < _SAY_EVERY:
            return
        self._said = time.monotonic()
        text = record.getMessage()
        why = _SYSTEM_ERROR.search(text)
        what = why[1] if why else text[:_LONGEST]
        print(
            f"traces are not exported: {what}; the pipeline goes on without them", file=sys.stderr
        )


def flush_spans() -> None:
    """Has what is recorded exported, and waits for it a little; at the end of a run."""
    from opentelemetry import trace
    from opentelemetry.sdk.trace import TracerProvider

    provider = trace.get_tracer_provider()
    if isinstance(provider, TracerProvider):
        _flush(provider)


def _flush(provider: TracerProvider) -> None:
    # In a thread: an exporter whose collector is away does not keep to the time it is given.
    flushing = threading.Thread(target=provider.force_flush, daemon=True)
    flushing.start()
    flushing.join(_FLUSH_WITHIN)
