"""Rules about single vertices: names, what a vertex is, its user code, its retries."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from ebbflow.errors import TargetError
from ebbflow.spec import targets
from ebbflow.spec.model import (
    BackoffSpec,
    PipelineSpec,
    RetryStrategy,
    Sink,
    SinkTarget,
    Source,
    UserCode,
    Vertex,
    VertexKind,
)
from ebbflow.spec.problem import FieldPath, Finding

_DNS_1035 = re.compile(r"[a-z]([-a-z0-9]{0,61}[a-z0-9])?")


def check_vertices(spec: PipelineSpec, search: Path | None) -> Iterator[Finding]:
    """Everything that can be said about each vertex without looking at the edges."""
    yield from _name(spec.name, ("metadata", "name"))
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


def _name(name: str, path: FieldPath) -> Iterator[Finding]:
    if _DNS_1035.fullmatch(name) is None:
        message = (
            f"{name!r} is not a valid name: use at most 63 lower-case letters, digits and '-', "
            "starting with a letter and not ending with '-'"
        )
        yield Finding("EB107", message, path)


def _ends(spec: PipelineSpec) -> Iterator[Finding]:
    if any(len(vertex.roles) != 1 for vertex in spec.vertices):
        return  # one of those may be what is missing
    kinds = {vertex.kind for vertex in spec.vertices}
    for code, kind in (("EB203", VertexKind.SOURCE), ("EB204", VertexKind.SINK)):
        if kind not in kinds:
            message = f"the pipeline has no {kind}"
            yield Finding(code, message, ("spec", "vertices"), at_key=True)


def _vertex(vertex: Vertex, path: FieldPath, search: Path | None) -> Iterator[Finding]:
    yield from _name(vertex.name, (*path, "name"))
    if len(vertex.roles) != 1:
        said = f"it has {_joined(vertex.roles)}" if vertex.roles else "it has none of them"
        message = f"vertex {vertex.name!r} must have exactly one of source, udf and sink; {said}"
        yield Finding("EB206", message, path)
    if vertex.source is not None:
        yield from _source(vertex.source, (*path, "source"), search)
    if vertex.udf is not None:
        yield from _code(vertex.udf, (*path, "udf"), search)
        yield from _retry(vertex.udf.retry_strategy, (*path, "udf"))
    if vertex.sink is not None:
        yield from _sink(vertex.sink, (*path, "sink"), search)
    yield from _backoff(vertex.on_error.backoff, (*path, "onError", "backoff"))


def _source(source: Source, path: FieldPath, search: Path | None) -> Iterator[Finding]:
    yield from _one_kind(source, path)
    if source.udsource is not None:
        yield from _code(source.udsource, (*path, "udsource"), search)
    if source.transformer is not None:
        yield from _code(source.transformer, (*path, "transformer"), search)
        yield from _retry(source.transformer.retry_strategy, (*path, "transformer"))


def _sink(sink: Sink, path: FieldPath, search: Path | None) -> Iterator[Finding]:
    yield from _sink_target(sink, path, search)
    if sink.fallback is not None:
        yield from _sink_target(sink.fallback, (*path, "fallback"), search)
    if sink.on_success is not None:
        yield from _sink_target(sink.on_success, (*path, "onSuccess"), search)
    has_fallback = sink.fallback is not None and bool(sink.fallback.kinds)
    yield from _retry(sink.retry_strategy, path, has_fallback)


def _sink_target(target: SinkTarget, path: FieldPath, search: Path | None) -> Iterator[Finding]:
    yield from _one_kind(target, path)
    if target.udsink is not None:
        yield from _code(target.udsink, (*path, "udsink"), search)


def _one_kind(section: Source | SinkTarget, path: FieldPath) -> Iterator[Finding]:
    if not section.kinds:
        yield Finding("EB207", f"'{path[-1]}' needs one of {', '.join(section.KINDS)}", path)
    if len(section.kinds) > 1:
        message = f"'{path[-1]}' can be only one of {_joined(section.kinds)}"
        yield Finding("EB207", message, path)


def _code(code: UserCode, path: FieldPath, search: Path | None) -> Iterator[Finding]:
    if code.python is None and code.container is None:
        message = f"'{path[-1]}' has no code: name a Python function with python: module:attribute"
        yield Finding("EB208", message, path)
    elif code.python is None:
        message = "containers are not run yet; name a Python function with python: module:attribute"
        yield Finding("EB902", message, (*path, "container"), at_key=True)
    elif isinstance(code.python, str):
        yield from _target(code.python, (*path, "python"), search)


def _target(target: str, path: FieldPath, search: Path | None) -> Iterator[Finding]:
    if not targets.well_formed(target):
        yield Finding("EB401", f"{target!r} is not of the form module:attribute", path)
        return
    try:
        targets.resolve(target, search)
    except TargetError as error:
        yield Finding("EB402", str(error), path)


def _retry(
    strategy: RetryStrategy | None, path: FieldPath, has_fallback: bool = False
) -> Iterator[Finding]:
    if strategy is None:
        return
    yield from _backoff(strategy.backoff, (*path, "retryStrategy", "backoff"))
    if strategy.on_failure == "fallback" and not has_fallback:
        message = "onFailure is fallback, but there is no fallback sink"
        yield Finding("EB502", message, (*path, "retryStrategy", "onFailure"))


def _backoff(backoff: BackoffSpec, path: FieldPath) -> Iterator[Finding]:
    # A cap alone is compared with the shortest wait there is.
    interval = 1 if backoff.interval is None else backoff.interval
    if backoff.cap is not None and backoff.cap < interval:
        message = f"'cap' ({backoff.cap} ms) is below 'interval' ({interval} ms)"
        yield Finding("EB501", message, (*path, "cap"))


def _joined(names: tuple[str, ...]) -> str:
    return " and ".join(filter(None, (", ".join(names[:-1]), names[-1])))
