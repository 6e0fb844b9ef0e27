"""Rules about vertices that work on whole batches, and about the audit table that Spark writes.

A batch has no order, is not decided about message by message, and is planned by the driver: what
needs one of these cannot be combined with it.
"""

from __future__ import annotations

from collections.abc import Iterator

from ebbflow.connectors.plans import FILE_FORMATS
from ebbflow.spec.model import MonoVertexSpec, PipelineSpec, Spec, Vertex
from ebbflow.spec.sections import SinkSpec, Udf
from ebbflow.spec.validate import FieldPath, Finding

_NAMES = {"sql": "SQL", "dataframe": "a DataFrame function"}


def check_batches(spec: PipelineSpec) -> Iterator[Finding]:
    """Reports what a pipeline's batch vertices cannot have."""
    for index, vertex in enumerate(spec.vertices):
        path: FieldPath = ("spec", "vertices", index)
        if vertex.udf is not None and vertex.udf.query is not None:
            yield from _query(vertex.udf, (*path, "udf"))
        if vertex.sink is not None:
            yield from _sinks(vertex.sink, (*path, "sink"))
        yield from _ordered(spec, vertex, path)


def check_no_batches(spec: MonoVertexSpec) -> Iterator[Finding]:
    """Reports batches in a MonoVertex: it does everything in one task, which has no planner."""
    body = spec.spec
    if body.udf is not None and (query := body.udf.query) is not None:
        message = f"a MonoVertex cannot have {_NAMES[query]}; write a Pipeline"
        yield Finding("EB210", message, ("spec", "udf", query), at_key=True)
    if body.sink is not None:
        if (kind := body.sink.batched) is not None:
            message = f"a MonoVertex cannot have {_a_sink(kind)}; write a Pipeline"
            yield Finding("EB210", message, ("spec", "sink", kind), at_key=True)
        yield from _beside(body.sink, ("spec", "sink"))


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
    yield from _beside(sink, path)


def _beside(sink: SinkSpec, path: FieldPath) -> Iterator[Finding]:
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
    """Reports an audit table without a place, and options that would take it apart."""
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
