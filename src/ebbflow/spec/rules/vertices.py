"""Rules about vertices: the names and roles of a pipeline's, and that a MonoVertex is complete."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from ebbflow.spec.findings import FieldPath, Finding
from ebbflow.spec.model import MonoVertexSpec, PipelineSpec, Vertex, VertexKind
from ebbflow.spec.rules.steps import check_name, check_step, join_names
from ebbflow.spec.rules.tags import check_bypass


def check_vertices(spec: PipelineSpec, search: Path | None) -> Iterator[Finding]:
    """Reports what is wrong with each vertex of a pipeline, whatever its edges are."""
    if not spec.vertices:
        yield Finding(
            "EB201", "the pipeline has no vertices: give it a source and a sink", ("spec",)
        )
        return
    yield from _ends(spec)
    seen: set[str] = set()
    for index, vertex in enumerate(spec.vertices):
        path: FieldPath = ("spec", "vertices", index)
        if vertex.name in seen:
            message = f"there is already a vertex named {vertex.name!r}"
            yield Finding("EB205", message, (*path, "name"))
        seen.add(vertex.name)
        yield from _vertex(vertex, path, search)


def _ends(spec: PipelineSpec) -> Iterator[Finding]:
    if any(len(vertex.roles) != 1 for vertex in spec.vertices):
        return  # one of those may be what is missing
    kinds = {vertex.kind for vertex in spec.vertices}
    for code, kind in (("EB203", VertexKind.SOURCE), ("EB204", VertexKind.SINK)):
        if kind not in kinds:
            message = f"the pipeline has no {kind}"
            yield Finding(code, message, ("spec", "vertices"), at_key=True)


def _vertex(vertex: Vertex, path: FieldPath, search: Path | None) -> Iterator[Finding]:
    yield from check_name(vertex.name, (*path, "name"))
    if len(vertex.roles) != 1:
        said = f"it has {join_names(vertex.roles)}" if vertex.roles else "it has none of them"
        message = f"vertex {vertex.name!r} must have exactly one of source, udf and sink; {said}"
        yield Finding("EB206", message, path)
    yield from check_step(vertex, path, search)


def check_monovertex(spec: MonoVertexSpec, search: Path | None) -> Iterator[Finding]:
    """Reports what is wrong with a MonoVertex, its name aside."""
    body = spec.spec
    for code, part, section in (("EB203", "source", body.source), ("EB204", "sink", body.sink)):
        if section is None:
            yield Finding(code, f"the MonoVertex has no {part}", ("spec", part))
    yield from check_step(body, ("spec",), search)
    yield from check_bypass(body)
