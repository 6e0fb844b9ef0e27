"""Short ways to write the shape of a pipeline."""

from ebbflow.spec.graph import PipelineShape, ShapeEdge, ShapeVertex


def shape_of(*edges: str, **details: str) -> PipelineShape:
    """A shape of edges such as ``in>out``, or ``in>out:tags a`` with a condition."""
    made = []
    for edge in edges:
        ends, _, condition = edge.partition(":")
        frm, _, to = ends.partition(">")
        made.append(ShapeEdge(frm, to, condition))
    names = dict.fromkeys(name for edge in made for name in (edge.frm, edge.to))
    vertices = tuple(ShapeVertex(name, "map", details.get(name, "")) for name in names)
    return PipelineShape("p", "Pipeline", vertices, tuple(made))
