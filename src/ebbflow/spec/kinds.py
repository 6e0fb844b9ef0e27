"""The kinds of document that a file may hold, and how to tell which kind one is of.

Pipelines, MonoVertices and ServingPipelines can be run. Companions stand beside them. Documents of
other systems, as a Service of Kubernetes, are nobody's business here and are left alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from ebbflow.connectors.schema.fields import shown
from ebbflow.spec.companions import COMPANIONS, CompanionDocument
from ebbflow.spec.findings import Finding
from ebbflow.spec.model import API_VERSION, MonoVertexSpec, PipelineSpec, Spec
from ebbflow.spec.serving import ServingPipelineSpec

Runnable = Spec | ServingPipelineSpec
"""What can be run."""

RUNNABLE: dict[str, type[Runnable]] = {
    "Pipeline": PipelineSpec,
    "MonoVertex": MonoVertexSpec,
    "ServingPipeline": ServingPipelineSpec,
}

Readable = Runnable | CompanionDocument
"""What a document can hold."""

KINDS: dict[str, type[Readable]] = {**RUNNABLE, **COMPANIONS}
"""Every kind of document that is read."""

_GROUP = API_VERSION.partition("/")[0]
_FIELDS = ("apiVersion", "kind", "metadata", "spec")


def model_of(data: Mapping[str, Any]) -> type[Readable] | None:
    """Returns what the document says it is, or what it looks like if it does not say."""
    if "kind" in data:
        return KINDS.get(str(data["kind"]))
    spec = data.get("spec")
    return MonoVertexSpec if isinstance(spec, dict) and "source" in spec else PipelineSpec


def spec_of(resource: Readable) -> Spec | None:
    """Returns what runs for a resource; ``None`` for one that stands beside others."""
    if isinstance(resource, ServingPipelineSpec):
        return resource.as_pipeline
    return resource if isinstance(resource, Spec) else None


def is_companion(data: Any) -> bool:
    """Returns whether the document says that it stands beside a pipeline."""
    return isinstance(data, Mapping) and data.get("kind") in tuple(COMPANIONS)


def is_of_another_system(data: Any) -> bool:
    """Returns whether the document says that it is something that nobody here reads."""
    if not isinstance(data, Mapping):
        return False
    kind, version = data.get("kind"), str(data.get("apiVersion", API_VERSION))
    return kind not in (None, *KINDS) and not version.startswith(_GROUP)


def check_header(data: Any) -> Iterator[Finding]:
    """Reports an ``apiVersion`` or ``kind`` that is missing or wrong."""
    if not isinstance(data, Mapping):
        message = f"a pipeline is a mapping of {', '.join(_FIELDS)}, not {shown(data)}"
        yield Finding("EB103", message, ())
        return
    kind = data.get("kind")
    model = model_of(data)
    version = API_VERSION if model is None else model.VERSION
    if data.get("apiVersion") != version:
        yield from _wrong("apiVersion", data, version)
    if kind not in tuple(KINDS):
        *first, last = RUNNABLE
        yield from _wrong("kind", data, f"{', '.join(first)} or {last}")


def _wrong(field: str, data: Mapping[str, Any], expected: str) -> Iterator[Finding]:
    if field in data:
        message = f"unknown {field} {shown(data[field])}; expected {expected}"
        yield Finding("EB005", message, (field,))
    else:
        yield Finding("EB102", f"{field!r} is missing; write {field}: {expected}", (field,))
