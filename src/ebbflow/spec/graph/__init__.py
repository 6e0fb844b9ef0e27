"""The graph of a pipeline as people see it: what leads where, laid out and drawn.

``PipelineShape`` is the vertices and edges, with the few words that a drawing has of each. It is
pure data, without anything of a run, and without secrets: it may be stored and shown.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Self


@dataclass(frozen=True, slots=True)
class ShapeVertex:
    """A vertex: ``kind`` is source, map, sink or mono, ``detail`` what it is in a few words.

    ``has_buffer`` if messages for it wait in a buffer of its own, ``ordered`` if it keeps their
    order by keys, ``batched`` if Spark works on batches of them, ``serves`` if it answers requests.
    """

    name: str
    kind: str
    detail: str = ""
    partitions: int = 1
    has_buffer: bool = True
    ordered: bool = False
    batched: bool = False
    serves: bool = False

    @property
    def title(self) -> str:
        """Its name, and how many tasks it has if there are several."""
        return f"{self.name} x{self.partitions}" if self.partitions > 1 else self.name


@dataclass(frozen=True, slots=True)
class ShapeEdge:
    """An edge; ``condition`` says in words which messages take it, all of them if it is empty."""

    frm: str
    to: str
    condition: str = ""


@dataclass(frozen=True, slots=True)
class PipelineShape:
    """A pipeline's vertices, from the sources on, and its edges, as the spec names them."""

    pipeline: str
    kind: str
    vertices: tuple[ShapeVertex, ...]
    edges: tuple[ShapeEdge, ...] = ()

    def vertex(self, name: str) -> ShapeVertex | None:
        """Returns the vertex of that name, if there is one."""
        return next((vertex for vertex in self.vertices if vertex.name == name), None)

    def to_json(self) -> dict[str, Any]:
        """Returns it as JSON has it."""
        return {
            "pipeline": self.pipeline,
            "kind": self.kind,
            "vertices": [asdict(vertex) for vertex in self.vertices],
            "edges": [{"from": e.frm, "to": e.to, "condition": e.condition} for e in self.edges],
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        """Returns it from what ``to_json`` has returned."""
        return cls(
            data["pipeline"],
            data["kind"],
            tuple(ShapeVertex(**vertex) for vertex in data["vertices"]),
            tuple(ShapeEdge(e["from"], e["to"], e["condition"]) for e in data["edges"]),
        )
