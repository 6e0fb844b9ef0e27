"""Rules about answers: a sink that serves has a store, and every request gets an answer.

A caller gets the outcome of a request because every vertex records the outcomes of its messages.
A step that drops messages silently, or decides about whole batches, cannot do that.
"""

from __future__ import annotations

from collections.abc import Iterator

from ebbflow.connectors.base import SINKS, SOURCES
from ebbflow.connectors.serving.spec import ServeSinkSpec
from ebbflow.spec.kinds import ServingPipelineSpec
from ebbflow.spec.model import PipelineSpec, Spec, Vertex
from ebbflow.spec.sections import SinkSpec, SinkTarget
from ebbflow.spec.validate import FieldPath, Finding


def check_serving(spec: Spec) -> Iterator[Finding]:
    """Reports parts that a pipeline with a serving source lacks, or cannot have."""
    places = list(_serving_sources(spec))
    if not places:
        return
    place = places[0]
    for another in places[1:]:
        message = "there is already a serving source: a pipeline answers at one place"
        yield Finding("EB601", message, another, at_key=True)
    sinks = [step.sink for step in spec.steps if step.sink is not None]
    if sinks and not any(map(_may_answer, sinks)):
        kinds = " or ".join(name for name, kind in SINKS.items() if kind.answers)
        message = f"no sink answers the requests: one of them must be {kinds}"
        yield Finding("EB602", message, place, at_key=True)
    if isinstance(spec, PipelineSpec):
        yield from _unanswered(spec)


def check_serving_pipeline(spec: ServingPipelineSpec) -> Iterator[Finding]:
    """Reports fields that a ServingPipeline lacks beyond its pipeline, or has twice."""
    path: FieldPath = ("spec", "pipeline")
    body = spec.spec.pipeline
    sources = list(_serving_sources(spec.as_pipeline))
    if body.vertices and not sources:
        message = "no source takes requests: give one vertex source: {serving: {}}"
        yield Finding("EB601", message, (*path, "vertices"), at_key=True)
    for index, vertex in enumerate(body.vertices):
        section = getattr(vertex.source, "serving", None)
        if section is not None and section.model_fields_set:
            message = "in a ServingPipeline these fields belong in spec.serving; write serving: {}"
            where = (*path, "vertices", index, "source", "serving")
            yield Finding("EB601", message, where)
    if spec.spec.serving.store is not None and body.serving_store is not None:
        message = "there is already a store in spec.serving.store"
        yield Finding("EB601", message, (*path, "servingStore"), at_key=True)


def _serving_sources(spec: Spec) -> Iterator[FieldPath]:
    """Yields where the serving sources are."""
    for step in spec.steps:
        for kind in step.source.kinds if step.source is not None else ():
            if kind in SOURCES and SOURCES[kind].serves:
                yield (*step.path, "source", kind)


def _may_answer(sink: SinkSpec) -> bool:
    # A sink without a kind, or of an unknown kind, has been reported.
    return not sink.kinds or any(kind not in SINKS or SINKS[kind].answers for kind in sink.kinds)


def _unanswered(spec: PipelineSpec) -> Iterator[Finding]:
    """Reports steps that would end messages without an answer to their callers."""
    for index, edge in enumerate(spec.edges):
        if edge.on_full == "discardLatest":
            message = "callers of dropped messages would get no answer; use retryUntilSuccess"
            yield Finding("EB603", message, ("spec", "edges", index, "onFull"))
    for index, vertex in enumerate(spec.vertices):
        if (where := _batched(vertex)) is not None:
            message = f"{vertex.name!r} works on batches, so callers would get no answer"
            path = ("spec", "vertices", index, *where)
            yield Finding("EB603", f"{message}; use code for messages", path, at_key=True)


def _batched(vertex: Vertex) -> FieldPath | None:
    if vertex.udf is not None and vertex.udf.query is not None:
        return ("udf", vertex.udf.query)
    if vertex.sink is not None and vertex.sink.batched is not None:
        return ("sink", vertex.sink.batched)
    return None


def check_answers(spec: Spec) -> Iterator[Finding]:
    """Reports sinks that serve where they cannot."""
    for step in spec.steps:
        if (sink := step.sink) is None:
            continue
        path: FieldPath = (*step.path, "sink")
        if spec.serving_store is None and _serves(sink):
            message = "the serve sink has no store: name one with servingStore: {nats: {}}"
            yield Finding("EB211", message, (*path, "serve"), at_key=True)
        for name, secondary in (("fallback", sink.fallback), ("onSuccess", sink.on_success)):
            if secondary is not None and _serves(secondary):
                message = f"{name} cannot be a serve sink: make it the sink of a vertex"
                yield Finding("EB211", message, (*path, name, "serve"), at_key=True)


def _serves(sink: SinkTarget) -> bool:
    return any(isinstance(getattr(sink, kind), ServeSinkSpec) for kind in sink.kinds)
