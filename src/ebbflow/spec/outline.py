"""The shape of a pipeline from its spec: what drawings, completion and ``send`` know of it."""

from __future__ import annotations

from dataclasses import replace

from ebbflow.connectors.user_code import CodeSection
from ebbflow.spec.graph.shape import PipelineShape, ShapeEdge, ShapeVertex
from ebbflow.spec.model import MonoVertexSpec, PipelineSpec, Spec, Step
from ebbflow.spec.sections import EdgeSpec, SinkSpec, SourceSpec, Udf


def outline(spec: Spec) -> PipelineShape:
    """Returns the vertices and edges of a pipeline that lint has nothing against."""
    if isinstance(spec, MonoVertexSpec):
        return PipelineShape(spec.name, spec.kind, (_outline_step(spec.steps[0], "mono"),))
    vertices = tuple(_outline_vertex(spec, step) for step in spec.steps)
    return PipelineShape(spec.name, spec.kind, vertices, tuple(map(_outline_edge, spec.edges)))


def _outline_vertex(spec: PipelineSpec, step: Step) -> ShapeVertex:
    vertex = spec.vertex(step.name)
    return replace(_outline_step(step, str(vertex.kind)), ordered=spec.is_ordered(vertex))


def _outline_step(step: Step, kind: str) -> ShapeVertex:
    words = (_source_words(step.source), _map_words(step.udf), _sink_words(step.sink))
    streams, detail = step.streams, " → ".join(filter(None, words))
    return ShapeVertex(
        streams.vertex,
        kind,
        detail,
        streams.partitions,
        streams.has_buffer,
        batched=streams.batched,
        serves=streams.serves,
    )


def _outline_edge(edge: EdgeSpec) -> ShapeEdge:
    tags = edge.conditions.tags if edge.conditions is not None else None
    if tags is None or not tags.values:
        return ShapeEdge(edge.from_, edge.to)
    words = {"or": "tags ", "and": "all tags ", "not": "not tags "}[tags.operator]
    return ShapeEdge(edge.from_, edge.to, words + ", ".join(tags.values))


def _source_words(source: SourceSpec | None) -> str:
    if source is None:
        return ""
    words = _part_words(source.kind, getattr(source, source.kind))
    return f"{words} → {_code_words(source.transformer)}" if source.transformer else words


def _sink_words(sink: SinkSpec | None) -> str:
    if sink is None:
        return ""
    beside = [("fallback", sink.fallback), ("on success", sink.on_success)]
    words = [_part_words(sink.kind, sink.section)]
    words += [f"{name}: {_part_words(t.kind, t.section)}" for name, t in beside if t is not None]
    return ", ".join(words)


def _map_words(udf: Udf | None) -> str:
    if udf is None:
        return ""
    return udf.query or _code_words(udf)


def _part_words(kind: str, section: object) -> str:
    return _code_words(section) if isinstance(section, CodeSection) else kind


def _code_words(section: CodeSection) -> str:
    code = section.python
    if isinstance(code, str):
        return code
    if code is not None:
        target = getattr(code, "func", code)
        return str(getattr(target, "__qualname__", type(target).__qualname__))
    return section.container.image if section.container and section.container.image else "code"
