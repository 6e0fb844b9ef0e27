"""Rules about answers: a sink that serves needs a store, and has it to itself."""

from __future__ import annotations

from collections.abc import Iterator

from ebbflow.connectors.serving.spec import ServeSinkSpec
from ebbflow.spec.findings import FieldPath, Finding
from ebbflow.spec.model import PipelineSpec, Spec
from ebbflow.spec.sections import SinkSpec, SinkTarget


def check_answers(spec: Spec) -> Iterator[Finding]:
    """Reports sinks that serve where they cannot."""
    for sink, path in _sinks(spec):
        if spec.serving_store is None and _serves(sink):
            message = "the serve sink has no store: name one with servingStore: {nats: {}}"
            yield Finding("EB211", message, (*path, "serve"), at_key=True)
        for name, beside in (("fallback", sink.fallback), ("onSuccess", sink.on_success)):
            if beside is not None and _serves(beside):
                message = f"{name} cannot be a serve sink: make it the sink of a vertex"
                yield Finding("EB211", message, (*path, name, "serve"), at_key=True)


def _sinks(spec: Spec) -> Iterator[tuple[SinkSpec, FieldPath]]:
    if isinstance(spec, PipelineSpec):
        for index, vertex in enumerate(spec.vertices):
            if vertex.sink is not None:
                yield vertex.sink, ("spec", "vertices", index, "sink")
    elif spec.spec.sink is not None:
        yield spec.spec.sink, ("spec", "sink")


def _serves(sink: SinkTarget) -> bool:
    return any(isinstance(getattr(sink, kind), ServeSinkSpec) for kind in sink.kinds)
