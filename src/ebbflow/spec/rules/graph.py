"""Rules about edges and the graph they make.

Maps may send messages back, to themselves or to an earlier map, as long as a source leads there.

An edge with a misspelt vertex counts as leading to the vertex that was probably meant, so that one
mistake is not also reported as a broken graph.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator

from ebbflow.domain.spelling import did_you_mean, nearest
from ebbflow.spec.model import MonoVertexBody, PipelineSpec, VertexKind
from ebbflow.spec.sections import Conditions, EdgeSpec, TagCondition
from ebbflow.spec.validate import FieldPath, Finding


def check_edge_tags(edge: EdgeSpec, path: FieldPath) -> Iterator[Finding]:
    """Reports a condition that names no tags; an edge may well have no condition."""
    tags = edge.conditions.tags if edge.conditions is not None else None
    if tags is not None:
        yield from _tags(tags, (*path, "conditions"))


def check_bypass(body: MonoVertexBody) -> Iterator[Finding]:
    """Reports a bypass that has no condition, or that leads to a sink that is missing."""
    path: FieldPath = ("spec", "bypass")
    bypass, sink = body.bypass, body.sink
    yield from _condition(bypass.sink, (*path, "sink"))
    yield from _condition(bypass.fallback, (*path, "fallback"))
    yield from _condition(bypass.on_success, (*path, "onSuccess"))
    if sink is None:
        return  # this has been reported, and the missing sink may have the target
    if bypass.fallback is not None and sink.fallback is None:
        yield _leads_nowhere("fallback")
    if bypass.on_success is not None and sink.on_success is None:
        yield _leads_nowhere("onSuccess")


def _condition(condition: Conditions | None, path: FieldPath) -> Iterator[Finding]:
    # Unlike an edge, a bypass without a condition is a mistake: it would take every message.
    if condition is not None:
        yield from _tags(condition.tags or TagCondition(), path)


def _leads_nowhere(target: str) -> Finding:
    message = f"bypass to {target!r}, but the sink has no {target!r}"
    return Finding("EB209", message, ("spec", "bypass", target), at_key=True)


def _tags(tags: TagCondition, path: FieldPath) -> Iterator[Finding]:
    if not tags.values:
        message = f"the condition needs values: the tags to look for with {tags.operator!r}"
        yield Finding("EB303", message, (*path, "tags"))


Link = tuple[str, str]

# Kind → whether edges may lead into it and out of it; where they may, they must.
_EDGES = {
    VertexKind.SOURCE: (False, True),
    VertexKind.MAP: (True, True),
    VertexKind.SINK: (True, False),
}


def check_graph(spec: PipelineSpec) -> Iterator[Finding]:
    """Reports what is wrong with the edges."""
    if not spec.vertices:
        return
    if not spec.edges:
        yield Finding("EB202", "the pipeline has no edges: connect its vertices", ("spec",))
        return
    for index, edge in enumerate(spec.edges):
        yield from _edge(spec, index, edge)
    links = _links(spec)
    yield from _shape(spec)
    yield from _unreachable(spec, links)
    yield from _apart(spec, links)


def _edge(spec: PipelineSpec, index: int, edge: EdgeSpec) -> Iterator[Finding]:
    path: FieldPath = ("spec", "edges", index)
    # Without the empty names that replace missing names.
    names = list(dict.fromkeys(vertex.name for vertex in spec.vertices if vertex.name))
    for end, name in (("from", edge.from_), ("to", edge.to)):
        if name not in names:
            message = f"there is no vertex {name!r}; {did_you_mean(name, names, 'there are')}"
            yield Finding("EB301", message, (*path, end))
    if any((edge.from_, edge.to) == (other.from_, other.to) for other in spec.edges[:index]):
        yield Finding("EB302", f"the edge {edge.from_} → {edge.to} is already there", path)
    yield from check_edge_tags(edge, path)


def _links(spec: PipelineSpec) -> set[Link]:
    """Each pair of connected vertices."""
    names = [vertex.name for vertex in spec.vertices]
    meant = ((_meant(edge.from_, names), _meant(edge.to, names)) for edge in spec.edges)
    return {(from_, to) for from_, to in meant if from_ is not None and to is not None}


def _meant(name: str, names: list[str]) -> str | None:
    return name if name in names else nearest(name, names)


def _shape(spec: PipelineSpec) -> Iterator[Finding]:
    names = [vertex.name for vertex in spec.vertices]
    leaving = {_meant(edge.from_, names) for edge in spec.edges}
    entered = {_meant(edge.to, names) for edge in spec.edges}
    for index, vertex in enumerate(spec.vertices):
        path: FieldPath = ("spec", "vertices", index, "name")
        if vertex.name not in leaving | entered:
            yield Finding("EB305", f"vertex {vertex.name!r} is in no edge", path)
        if vertex.name not in leaving | entered or len(vertex.roles) != 1:
            continue
        may_enter, may_leave = _EDGES[vertex.kind]
        ends = (("into", entered, may_enter), ("out of", leaving, may_leave))
        for direction, having, allowed in ends:
            if (vertex.name in having) != allowed:
                verb = "needs an edge" if allowed else "cannot have edges"
                message = f"{vertex.kind} {vertex.name!r} {verb} {direction} it"
                swapped = vertex.kind is VertexKind.SINK and not allowed
                meant = _swapped(spec, vertex.name) if swapped else ""
                yield Finding("EB304", f"{message}{meant}", path)


def _swapped(spec: PipelineSpec, sink: str) -> str:
    """Returns the order that was probably meant, if a map after the sink leads nowhere."""
    before = [edge.from_ for edge in spec.edges if edge.to == sink]
    behind = [edge.to for edge in spec.edges if edge.from_ == sink]
    if len(before) != 1 or len(behind) != 1 or before == behind:
        return ""
    leads_on = any(edge.from_ == behind[0] for edge in spec.edges)
    return "" if leads_on else f"; did you mean {before[0]} → {behind[0]} → {sink}?"


def _unreachable(spec: PipelineSpec, links: set[Link]) -> Iterator[Finding]:
    # A vertex that lacks an incoming edge has been reported; the vertices after it are correct.
    entered = {to for _, to in links}
    starts = {v.name for v in spec.vertices if v.kind is VertexKind.SOURCE or v.name not in entered}
    reached = _reachable_from(starts, links)
    for index, vertex in enumerate(spec.vertices):
        if vertex.name not in reached:
            message = f"no source leads to {vertex.kind} {vertex.name!r}"
            yield Finding("EB306", message, ("spec", "vertices", index, "name"))


def _apart(spec: PipelineSpec, links: set[Link]) -> Iterator[Finding]:
    if len(links) < len({(edge.from_, edge.to) for edge in spec.edges}):
        return  # an edge that leads nowhere may be what should connect them
    both_ways = [*links, *((to, from_) for from_, to in links)]
    connected = {name for link in links for name in link}
    first = next((v.name for v in spec.vertices if v.name in connected), None)
    seen = _reachable_from({first} if first else set(), both_ways)
    for index, vertex in enumerate(spec.vertices):
        if vertex.name in connected - seen and vertex.kind is VertexKind.SOURCE:
            seen |= _reachable_from({vertex.name}, both_ways)
            message = f"source {vertex.name!r} is not connected to {first!r}: make it a separate"
            yield Finding("EB306", f"{message} pipeline", ("spec", "vertices", index, "name"))


def _reachable_from(starts: set[str], links: Iterable[Link]) -> set[str]:
    following: dict[str, list[str]] = defaultdict(list)
    for from_, to in links:
        following[from_].append(to)
    reached, waiting = set(starts), list(starts)
    while waiting:
        fresh = [name for name in following[waiting.pop()] if name not in reached]
        reached.update(fresh)
        waiting.extend(fresh)
    return reached
