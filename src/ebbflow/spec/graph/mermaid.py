"""The graph of a pipeline in Mermaid's language, for Markdown pages that draw it."""

from __future__ import annotations

from ebbflow.spec.graph.shape import PipelineShape, ShapeVertex

_SHAPES = {"source": ("([", "])"), "sink": ("[[", "]]")}


def draw_mermaid(shape: PipelineShape) -> str:
    """Returns the text of a Mermaid flowchart, from left to right."""
    numbers = {vertex.name: f"v{n}" for n, vertex in enumerate(shape.vertices)}
    lines = ["flowchart LR", *(f"  {numbers[v.name]}{_box(v)}" for v in shape.vertices)]
    for edge in shape.edges:
        label = f"|{_quote(edge.condition)}|" if edge.condition else ""
        lines.append(f"  {numbers[edge.frm]} -->{label} {numbers[edge.to]}")
    return "\n".join(lines)


def _box(vertex: ShapeVertex) -> str:
    left, right = _SHAPES.get(vertex.kind, ("[", "]"))
    text = vertex.title + (f"<br/>{vertex.detail}" if vertex.detail else "")
    return f"{left}{_quote(text)}{right}"


def _quote(text: str) -> str:
    """Returns a text of Mermaid's; a quotation mark in it is written as its entity."""
    return '"' + text.replace('"', "#quot;") + '"'
