"""Rules about vertices: their names and roles, and the parts of each step.

A step has a source, a udf or a sink, with user code and retries. The rules about it are the same
for a vertex of a pipeline and for a MonoVertex, which has all of them at once.

A vertex may work on whole batches with Spark, which also writes the audit table. A batch has no
order, no outcome for each message, and is planned by the driver. Features that need an order,
single outcomes or no driver cannot be combined with it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ebbflow.connectors.base import SinkSection
from ebbflow.connectors.plans import FILE_FORMATS
from ebbflow.connectors.user_code import CodeSection
from ebbflow.spec.model import (
    MonoVertexBody,
    MonoVertexSpec,
    PipelineSpec,
    Spec,
    Vertex,
    VertexKind,
)
from ebbflow.spec.rules.functions import check_code, check_target
from ebbflow.spec.rules.graph import check_bypass
from ebbflow.spec.sections import (
    OneOf,
    RetrySpec,
    ServingStoreSpec,
    SinkSpec,
    SinkTarget,
    SourceSpec,
    Transformer,
    Udf,
    WaitsSpec,
)
from ebbflow.spec.validate import FieldPath, Finding


def check_vertices(spec: PipelineSpec, search: Path | None) -> Iterator[Finding]:
    """Reports what is wrong with each vertex of a pipeline, whatever its edges are."""
    if not spec.vertices:
        yield Finding(
            "EB201", "the pipeline has no vertices: give it a source and a sink", ("spec",)
        )
        return
    yield from _ends(spec)
    seen: set[str] = set()
    for index, vertex in enumerate(spec.vertices):
        path: FieldPath = ("spec", "vertices", index)
        if vertex.name in seen:
            message = f"there is already a vertex named {vertex.name!r}"
            yield Finding("EB205", message, (*path, "name"))
        seen.add(vertex.name)
        yield from _vertex(vertex, path, search)


def _ends(spec: PipelineSpec) -> Iterator[Finding]:
    if any(len(vertex.roles) != 1 for vertex in spec.vertices):
        return  # one of those may be the missing source or sink
    kinds = {vertex.kind for vertex in spec.vertices}
    for code, kind in (("EB203", VertexKind.SOURCE), ("EB204", VertexKind.SINK)):
        if kind not in kinds:
            message = f"the pipeline has no {kind}"
            yield Finding(code, message, ("spec", "vertices"), at_key=True)


def _vertex(vertex: Vertex, path: FieldPath, search: Path | None) -> Iterator[Finding]:
    yield from check_name(vertex.name, (*path, "name"))
    if len(vertex.roles) != 1:
        said = f"it has {join_names(vertex.roles)}" if vertex.roles else "it has none of them"
        message = f"vertex {vertex.name!r} must have exactly one of source, udf and sink; {said}"
        yield Finding("EB206", message, path)
    yield from check_step(vertex, vertex.name, path, search)


def check_monovertex(spec: MonoVertexSpec, search: Path | None) -> Iterator[Finding]:
    """Reports what is wrong with a MonoVertex, its name aside."""
    body = spec.spec
    for code, part, section in (("EB203", "source", body.source), ("EB204", "sink", body.sink)):
        if section is None:
            yield Finding(code, f"the MonoVertex has no {part}", ("spec", part))
    yield from check_step(body, spec.name, ("spec",), search)
    yield from check_bypass(body)


_DNS_1035 = re.compile(r"[a-z]([-a-z0-9]{0,61}[a-z0-9])?")


def check_step(
    step: Vertex | MonoVertexBody, name: str, path: FieldPath, search: Path | None
) -> Iterator[Finding]:
    """Reports what is wrong with the parts that are set."""
    if step.source is not None:
        yield from _source(step.source, name, (*path, "source"), search)
    if step.udf is not None:
        yield from _udf(step.udf, name, (*path, "udf"), search)
        yield from _retry_without_fallback(step.udf, (*path, "udf"), "a map")
    if step.sink is not None:
        yield from _sink(step.sink, name, (*path, "sink"), search)
        yield from _writes_alone(step.sink, step.tasks, (*path, "sink"))
    yield from _backoff(step.on_error.backoff, (*path, "onError", "backoff"))
    yield from _backoff(step.on_unavailable.backoff, (*path, "onUnavailable", "backoff"))


def check_name(name: str, path: FieldPath) -> Iterator[Finding]:
    """Reports a name that does not fit into the names of streams and subjects."""
    if _DNS_1035.fullmatch(name) is None:
        message = (
            f"{name!r} is not a valid name: use at most 63 lower-case letters, digits and '-', "
            "starting with a letter and not ending with '-'"
        )
        yield Finding("EB107", message, path)


def check_store(store: ServingStoreSpec | None, search: Path | None) -> Iterator[Finding]:
    """Reports what is wrong with the store for answers."""
    path: FieldPath = ("spec", "servingStore")
    if store is None:
        return
    yield from _one_kind(store, path)
    if store.kinds in (("python",), ("container",)):
        yield from check_code(store, path, "servingStore", search)


def join_names(names: tuple[str, ...]) -> str:
    """Returns the names as they are listed in a sentence."""
    return " and ".join(filter(None, (", ".join(names[:-1]), names[-1])))


def _source(
    source: SourceSpec, name: str, path: FieldPath, search: Path | None
) -> Iterator[Finding]:
    yield from _one_kind(source, path)
    yield from _code_of(source, name, path, search)
    if source.transformer is not None:
        inside: FieldPath = (*path, "transformer")
        yield from check_code(source.transformer, inside, name, search)
        yield from _retry_without_fallback(source.transformer, inside, "a transformer")


def _udf(udf: Udf, name: str, path: FieldPath, search: Path | None) -> Iterator[Finding]:
    names = ("python", "container", "sql", "dataframe")
    chosen = tuple(name for name in names if getattr(udf, name) is not None)
    if udf.query is None:
        yield from check_code(udf, path, name, search)
    elif len(chosen) > 1:
        yield Finding("EB207", f"'udf' can be only one of {join_names(chosen)}", path)
    elif udf.dataframe is not None:
        yield from check_target(udf.dataframe, (*path, "dataframe"), search, "query")


def _sink(sink: SinkSpec, name: str, path: FieldPath, search: Path | None) -> Iterator[Finding]:
    yield from _sink_target(sink, name, path, search)
    if sink.fallback is not None:
        yield from _sink_target(sink.fallback, name, (*path, "fallback"), search)
    if sink.on_success is not None:
        yield from _sink_target(sink.on_success, name, (*path, "onSuccess"), search)
    yield from _retry(sink.retry_strategy, path)
    if sink.fallback is None or not sink.fallback.kinds:
        yield from _no_fallback(sink.retry_strategy, path, "there is no fallback sink")


def _writes_alone(sink: SinkSpec, tasks: int, path: FieldPath) -> Iterator[Finding]:
    """Reports sinks that must be alone in a vertex with one partition, and are not."""
    extra = {"fallback": sink.fallback, "onSuccess": sink.on_success}
    others = {place: target for place, target in extra.items() if target is not None}
    for place, target in {"": sink, **others}.items():
        section = target.section if len(target.kinds) == 1 else None
        if not isinstance(section, SinkSection) or (field := section.alone) is None:
            continue
        where = (*path, *filter(None, [place]), target.kind, field)
        if place or others:
            sinks = join_names(("sink", *others))
            message = f"{field!r} is for the only sink of a vertex; this one has {sinks}"
            yield Finding("EB213", message, where)
        elif tasks > 1:
            message = f"{field!r} needs a vertex with one partition; this one has {tasks}"
            yield Finding("EB213", message, where)


def _sink_target(
    target: SinkTarget, name: str, path: FieldPath, search: Path | None
) -> Iterator[Finding]:
    yield from _one_kind(target, path)
    yield from _code_of(target, name, path, search)


def _code_of(
    section: SourceSpec | SinkTarget, name: str, path: FieldPath, search: Path | None
) -> Iterator[Finding]:
    """Checks the user's code, if there is any."""
    for kind in section.kinds:
        part = getattr(section, kind)
        if isinstance(part, CodeSection):
            yield from check_code(part, (*path, kind), name, search)


def _one_kind(section: OneOf, path: FieldPath) -> Iterator[Finding]:
    if not section.kinds:
        unusable = section.unusable()
        offered = [kind for kind in section.KINDS if kind not in unusable]
        yield Finding("EB207", f"'{path[-1]}' needs one of {', '.join(offered)}", path)
    if len(section.kinds) > 1:
        message = f"'{path[-1]}' can be only one of {join_names(section.kinds)}"
        yield Finding("EB207", message, path)


def _retry_without_fallback(
    code: Udf | Transformer, path: FieldPath, who: str
) -> Iterator[Finding]:
    yield from _retry(code.retry_strategy, path)
    # Not even in a MonoVertex: its fallback sink is for messages that its sink could not write.
    why = f"{who} has no fallback sink: use retry or drop"
    yield from _no_fallback(code.retry_strategy, path, why)


def _retry(strategy: RetrySpec | None, path: FieldPath) -> Iterator[Finding]:
    if strategy is not None:
        yield from _backoff(strategy.backoff, (*path, "retryStrategy", "backoff"))


def _no_fallback(strategy: RetrySpec | None, path: FieldPath, why: str) -> Iterator[Finding]:
    if strategy is not None and strategy.on_failure == "fallback":
        message = f"onFailure is fallback, but {why}"
        yield Finding("EB502", message, (*path, "retryStrategy", "onFailure"))


def _backoff(backoff: WaitsSpec, path: FieldPath) -> Iterator[Finding]:
    # A cap alone is compared with the shortest possible interval.
    interval = 1 if backoff.interval is None else backoff.interval
    if backoff.cap is not None and backoff.cap < interval:
        message = f"'cap' ({backoff.cap} ms) is below 'interval' ({interval} ms)"
        yield Finding("EB501", message, (*path, "cap"))


@dataclass(frozen=True, slots=True)
class Missing:
    """A feature that Ebbflow does not have: its name, and what to do instead."""

    name: str
    instead: str

    @property
    def message(self) -> str:
        """The message of lint."""
        return f"{self.name} is not supported; {self.instead}"


_STEP: dict[str, Missing] = {
    "limits.rateLimit": Missing(
        "rateLimit", "bound what is worked on at a time with limits.concurrency"
    ),
    "udf.groupBy": Missing(
        "groupBy", "aggregate in a Spark job that reads what a jetstream sink writes"
    ),
}
"""The features that both a vertex of a pipeline and a MonoVertex lack."""

_SIDE_INPUTS = Missing("sideInputs", "have user code read such values itself, in its open()")

NOT_YET: dict[str, Missing] = {
    **{f"spec.{field}": feature for field, feature in _STEP.items()},
    **{f"spec.vertices[].{field}": feature for field, feature in _STEP.items()},
    "spec.sideInputs": _SIDE_INPUTS,
    "spec.vertices[].sideInputs": _SIDE_INPUTS,
}
"""Field → the feature that it needs."""


def check_support(spec: Spec) -> Iterator[Finding]:
    """Reports each use of a feature that Ebbflow does not have."""
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


# --- vertices that work on batches, and the audit table ------------------------------------------

_NAMES = {"sql": "SQL", "dataframe": "a DataFrame function"}


def check_batches(spec: PipelineSpec) -> Iterator[Finding]:
    """Reports settings that a pipeline's batch vertices cannot have."""
    for index, vertex in enumerate(spec.vertices):
        path: FieldPath = ("spec", "vertices", index)
        if vertex.udf is not None and vertex.udf.query is not None:
            yield from _query(vertex.udf, (*path, "udf"))
        if vertex.sink is not None:
            yield from _sinks(vertex.sink, (*path, "sink"))
        yield from _ordered(spec, vertex, path)


def check_no_batches(spec: MonoVertexSpec) -> Iterator[Finding]:
    """Reports batches in a MonoVertex: it runs as one task, but the driver plans batches."""
    body = spec.spec
    if body.udf is not None and (query := body.udf.query) is not None:
        message = f"a MonoVertex cannot have {_NAMES[query]}; write a Pipeline"
        yield Finding("EB210", message, ("spec", "udf", query), at_key=True)
    if body.sink is not None:
        if (kind := body.sink.batched) is not None:
            message = f"a MonoVertex cannot have {_a_sink(kind)}; write a Pipeline"
            yield Finding("EB210", message, ("spec", "sink", kind), at_key=True)
        yield from _check_secondary(body.sink, ("spec", "sink"))


def _query(udf: Udf, path: FieldPath) -> Iterator[Finding]:
    assert udf.query is not None
    what = _NAMES[udf.query]
    if udf.retry_strategy is not None:
        message = f"{what} reports no failures to retry; what it cannot work on is for onError"
        yield Finding("EB210", message, (*path, "retryStrategy"), at_key=True)
    if udf.mode != "unary":
        message = f"'mode' is for Python code; {what} always gets batches"
        yield Finding("EB210", message, (*path, "mode"))


def _sinks(sink: SinkSpec, path: FieldPath) -> Iterator[Finding]:
    if sink.batched is not None and sink.on_success is not None:
        message = f"{_a_sink(sink.batched)} passes nothing on to an on-success sink"
        yield Finding("EB210", message, (*path, "onSuccess"), at_key=True)
    yield from _check_secondary(sink, path)


def _check_secondary(sink: SinkSpec, path: FieldPath) -> Iterator[Finding]:
    for name, target in (("fallback", sink.fallback), ("onSuccess", sink.on_success)):
        if target is not None and target.batched is not None:
            message = f"'{name}' is called for single messages, which Spark cannot write"
            yield Finding("EB210", message, (*path, name, target.batched), at_key=True)


def _ordered(spec: PipelineSpec, vertex: Vertex, path: FieldPath) -> Iterator[Finding]:
    query = vertex.udf.query if vertex.udf is not None else None
    if not spec.is_ordered(vertex):
        return
    if query is not None:
        what, where = _NAMES[query], ("udf", query)
    elif vertex.sink is not None and (kind := vertex.sink.batched) is not None:
        what, where = _a_sink(kind), ("sink", kind)
    else:
        return
    own: FieldPath = (*path, "ordered") if vertex.ordered is not None else (*path, *where)
    message = f"{what} cannot be ordered; give {vertex.name!r} ordered: {{enabled: false}}"
    yield Finding("EB210", message, own, at_key=True)


def _a_sink(kind: str) -> str:
    return f"a {kind.capitalize()} sink"


_NOT_OURS = ("mode", "partitionBy", "maxRecordsPerFile")


def check_audit(spec: Spec) -> Iterator[Finding]:
    """Reports an audit table without a place, and options that would break it."""
    audit = spec.audit
    path: FieldPath = ("spec", "audit")
    if audit is None:
        return
    if audit.format.lower() not in FILE_FORMATS:
        if audit.retention is not None:
            message = (
                f"rows of a table of the format {audit.format!r} are not deleted: "
                "let its database do that, and leave out 'retention'"
            )
            yield Finding("EB703", message, (*path, "retention"), at_key=True)
        return
    if not audit.options.get("path", "").strip():
        message = "the audit table has no place: give options: {path: FOLDER}"
        yield Finding("EB701", message, path, at_key=True)
    for name in _NOT_OURS:
        if name in audit.options:
            message = f"{name!r} has no place here: each batch of audit rows is one file"
            yield Finding("EB702", message, (*path, "options", name), at_key=True)
