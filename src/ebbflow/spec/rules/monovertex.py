"""Rules about a MonoVertex as a whole: that it is complete, and where its bypass leads."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from ebbflow.spec.findings import FieldPath, Finding
from ebbflow.spec.model import MonoVertexBody, MonoVertexSpec
from ebbflow.spec.rules.steps import check_step, check_tags
from ebbflow.spec.sections import Conditions, TagCondition


def check_monovertex(spec: MonoVertexSpec, search: Path | None) -> Iterator[Finding]:
    """Everything that can be wrong with a MonoVertex, its name aside."""
    body = spec.spec
    for code, part, given in (("EB203", "source", body.source), ("EB204", "sink", body.sink)):
        if given is None:
            yield Finding(code, f"the MonoVertex has no {part}", ("spec", part))
    yield from check_step(body, ("spec",), search)
    yield from _bypass(body)


def _bypass(body: MonoVertexBody) -> Iterator[Finding]:
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
        yield from check_tags(condition.tags or TagCondition(), path)


def _leads_nowhere(target: str) -> Finding:
    message = f"bypass to {target!r}, but the sink has no {target!r}"
    return Finding("EB209", message, ("spec", "bypass", target), at_key=True)
