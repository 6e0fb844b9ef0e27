"""Features of Numaflow that the model knows and the runtime does not have.

Lint refuses these with what to do instead, so that nothing in a spec is silently without effect and
no field of Numaflow is taken for a misspelt one. When the runtime learns one, its line here goes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from ebbflow.connectors.registry import SINKS_NOT_YET, SOURCES_NOT_YET
from ebbflow.spec.findings import FieldPath, Finding
from ebbflow.spec.model import Spec


@dataclass(frozen=True, slots=True)
class Missing:
    """A feature that is not there: its name, and what to do instead."""

    name: str
    instead: str

    @property
    def message(self) -> str:
        """The sentence that lint says."""
        return f"{self.name} is not supported; {self.instead}"


_SINK_PLACES = ("sink", "sink.fallback", "sink.onSuccess")

_STEP: dict[str, Missing] = {
    "limits.rateLimit": Missing(
        "rateLimit", "bound what is worked on at a time with limits.concurrency"
    ),
    **{
        f"source.{name}": Missing(f"the {name} source", instead)
        for name, instead in SOURCES_NOT_YET.items()
    },
    "udf.groupBy": Missing(
        "groupBy", "aggregate in a Spark job that reads what a jetstream sink writes"
    ),
    **{
        f"{place}.{name}": Missing(f"the {name} sink", instead)
        for place in _SINK_PLACES
        for name, instead in SINKS_NOT_YET.items()
    },
}
"""What a vertex of a pipeline and a MonoVertex have in common."""

_SIDE_INPUTS = Missing("sideInputs", "have user code read such values itself, in its open()")

NOT_YET: dict[str, Missing] = {
    **{f"spec.{field}": feature for field, feature in _STEP.items()},
    **{f"spec.vertices[].{field}": feature for field, feature in _STEP.items()},
    "spec.sideInputs": _SIDE_INPUTS,
    "spec.vertices[].sideInputs": _SIDE_INPUTS,
}
"""Field → the feature that it needs."""


def check_support(spec: Spec) -> Iterator[Finding]:
    """Reports each use of a feature that is not there."""
    data = spec.model_dump(by_alias=True, exclude_none=True)
    for pattern, missing in NOT_YET.items():
        for path in _find(data, pattern.replace("[]", ".[]").split("."), ()):
            yield Finding("EB901", missing.message, path, at_key=True)


def _find(data: Any, pattern: list[str], path: FieldPath) -> Iterator[FieldPath]:
    """Returns the paths of the fields that a pattern leads to from ``path``."""
    if not pattern:
        yield path
        return
    part, rest = pattern[0], pattern[1:]
    if part == "[]":
        for index, item in enumerate(data):
            yield from _find(item, rest, (*path, index))
    elif isinstance(data, dict) and part in data:
        yield from _find(data[part], rest, (*path, part))
