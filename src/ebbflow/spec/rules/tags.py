"""Rules about tags: the conditions of edges, and those of a MonoVertex's bypass."""

from __future__ import annotations

from collections.abc import Iterator

from ebbflow.spec.findings import FieldPath, Finding
from ebbflow.spec.model import MonoVertexBody
from ebbflow.spec.sections import Conditions, EdgeSpec, TagCondition


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
        return  # has been reported, and may come with what is missing here
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
