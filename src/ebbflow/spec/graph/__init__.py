"""The graph of a pipeline for people: its vertices and edges, laid out and drawn.

``PipelineShape`` has the vertices and edges, with a few words about each. It is pure data, without
facts about a run and without secrets: it may be stored and shown.
``runtime`` stores it; operations, the web UI and the command line show it. Start with ``layout``.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from ebbflow.domain.records import stored_as


@dataclass(frozen=True, slots=True)
class ShapeVertex:
    """A vertex: ``kind`` is source, map, sink or mono, ``detail`` describes it in a few words.

    ``has_buffer`` if messages for it wait in a buffer, ``ordered`` if it keeps their
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

    frm: str = field(metadata=stored_as("from"))
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
