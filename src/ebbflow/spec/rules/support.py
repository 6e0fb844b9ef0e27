"""Features that the model knows and the runtime does not have yet.

Lint refuses these, so that nothing in a spec is silently without effect. When the runtime learns
one, its line here goes.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ebbflow.connectors.registry import SINKS_NOT_YET, SOURCES_NOT_YET
from ebbflow.spec.findings import FieldPath, Finding
from ebbflow.spec.model import Spec

ANY = object()
"""Whatever the value is, as long as there is one."""

_SINK_PLACES = ("sink", "sink.fallback", "sink.onSuccess")

_STEP: dict[str, tuple[str, object]] = {
    "limits.rateLimit": ("rateLimit", ANY),
    **{f"source.{name}": (f"the {name} source", ANY) for name in SOURCES_NOT_YET},
    "udf.groupBy": ("groupBy", ANY),
    **{
        f"{place}.{name}": (f"the {name} sink", ANY)
        for place in _SINK_PLACES
        for name in SINKS_NOT_YET
    },
}
"""What a vertex of a pipeline and a MonoVertex have in common."""

NOT_YET: dict[str, tuple[str, object]] = {
    **{f"spec.{field}": feature for field, feature in _STEP.items()},
    **{f"spec.vertices[].{field}": feature for field, feature in _STEP.items()},
    "spec.sideInputs": ("sideInputs", ANY),
    "spec.vertices[].sideInputs": ("sideInputs", ANY),
    "spec.streaming": ("streaming: true", True),
}
"""Field → what to call it, and the value that needs the missing feature."""

KINDS_NOT_YET = {
    "ServingPipeline": "make its spec.pipeline a Pipeline with an http source and a servingStore"
}
"""Numaflow's kinds of resource that are read and not run, and what to do instead."""


def check_kind(data: Any) -> Iterator[Finding]:
    """Reports a kind of document that is not run, in one sentence for all of it."""
    kind = data.get("kind") if isinstance(data, dict) else None
    if kind in tuple(KINDS_NOT_YET):
        message = f"kind {kind} is not supported yet; {KINDS_NOT_YET[kind]}"
        yield Finding("EB901", message, ("kind",))


def check_support(spec: Spec) -> Iterator[Finding]:
    """Reports each use of a feature that is not there yet."""
    data = spec.model_dump(by_alias=True, exclude_none=True)
    for pattern, (feature, needing) in NOT_YET.items():
        for path, value in find_fields(data, pattern):
            if needing is ANY or value == needing:
                yield Finding("EB901", f"{feature} is not supported yet", path, at_key=True)


def find_fields(data: Any, pattern: str) -> Iterator[tuple[FieldPath, Any]]:
    """Returns each field that a pattern such as ``spec.vertices[].scale`` leads to."""
    yield from _matches(data, pattern.replace("[]", ".[]").split("."), ())


def _matches(data: Any, pattern: list[str], path: FieldPath) -> Iterator[tuple[FieldPath, Any]]:
    if not pattern:
        yield path, data
        return
    part, rest = pattern[0], pattern[1:]
    if part == "[]":
        for index, item in enumerate(data):
            yield from _matches(item, rest, (*path, index))
    elif isinstance(data, dict) and part in data:
        yield from _matches(data[part], rest, (*path, part))
