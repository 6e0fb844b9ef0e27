"""The shape of a pipeline from its spec: what drawings, completion and ``send`` know of it."""

from __future__ import annotations

from dataclasses import replace

from ebbflow.connectors.user_code.spec import CodeSection
from ebbflow.spec.graph import PipelineShape, ShapeEdge, ShapeVertex
from ebbflow.spec.model import MonoVertexSpec, PipelineSpec, Spec, Vertex
from ebbflow.spec.sections import EdgeSpec, SinkSpec, SourceSpec, Udf
from ebbflow.streams.names import VertexStreams


def outline(spec: Spec) -> PipelineShape:
    """Returns the vertices and edges of a pipeline that lint has nothing against."""
    if isinstance(spec, MonoVertexSpec):
        return PipelineShape(spec.name, spec.kind, (_outline_mono(spec),))
    vertices = tuple(_outline_vertex(spec, vertex) for vertex in spec.vertices)
    return PipelineShape(spec.name, spec.kind, vertices, tuple(map(_outline_edge, spec.edges)))


def _outline_vertex(spec: PipelineSpec, vertex: Vertex) -> ShapeVertex:
    if vertex.source is not None:
        detail = _source_words(vertex.source)
    elif vertex.sink is not None:
        detail = _sink_words(vertex.sink)
    else:
        detail = _map_words(vertex.udf)
    ordered = spec.is_ordered(vertex)
    return replace(_of_streams(vertex.streams, str(vertex.kind), detail), ordered=ordered)


def _outline_mono(spec: MonoVertexSpec) -> ShapeVertex:
    parts = [_source_words(spec.source), _map_words(spec.udf), _sink_words(spec.sink)]
    detail = " → ".join(filter(None, parts))
    return _of_streams(spec.streams, "mono", detail)


def _of_streams(streams: VertexStreams, kind: str, detail: str) -> ShapeVertex:
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


def _source_words(source: SourceSpec) -> str:
    words = _part_words(source.kind, getattr(source, source.kind))
    return f"{words} → {_code_words(source.transformer)}" if source.transformer else words


def _sink_words(sink: SinkSpec) -> str:
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
