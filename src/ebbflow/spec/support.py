"""What the model knows and the runtime does not do yet.

Lint refuses these, so that nothing in a spec is silently without effect. When the runtime learns
one, its line here goes.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ebbflow.spec.model import PipelineSpec
from ebbflow.spec.problem import FieldPath, Finding

ANY = object()
"""Whatever the value is, as long as there is one."""

NOT_YET: dict[str, tuple[str, object]] = {
    "spec.limits.rateLimit": ("rateLimit", ANY),
    "spec.ordered.enabled": ("ordered processing", True),
    "spec.sideInputs": ("sideInputs", ANY),
    "spec.vertices[].sideInputs": ("sideInputs", ANY),
    "spec.vertices[].ordered.enabled": ("ordered processing", True),
    "spec.vertices[].limits.rateLimit": ("rateLimit", ANY),
    "spec.vertices[].source.udsource": ("a user-defined source", ANY),
    "spec.vertices[].source.http": ("the http source", ANY),
    "spec.vertices[].source.jetstream": ("the jetstream source", ANY),
    "spec.vertices[].source.nats": ("the nats source", ANY),
    "spec.vertices[].source.kafka": ("the kafka source", ANY),
    "spec.vertices[].source.pulsar": ("the pulsar source", ANY),
    "spec.vertices[].source.sqs": ("the sqs source", ANY),
    "spec.vertices[].source.serving": ("the serving source", ANY),
    "spec.vertices[].source.transformer.retryStrategy": ("retryStrategy of a transformer", ANY),
    "spec.vertices[].udf.groupBy": ("groupBy", ANY),
    "spec.vertices[].udf.retryStrategy": ("retryStrategy of a udf", ANY),
    "spec.vertices[].sink.kafka": ("the kafka sink", ANY),
    "spec.vertices[].sink.pulsar": ("the pulsar sink", ANY),
    "spec.vertices[].sink.sqs": ("the sqs sink", ANY),
    "spec.vertices[].sink.serve": ("the serve sink", ANY),
    "spec.vertices[].sink.fallback": ("a fallback sink", ANY),
    "spec.vertices[].sink.onSuccess": ("an onSuccess sink", ANY),
    "spec.vertices[].sink.retryStrategy": ("retryStrategy of a sink", ANY),
    "spec.edges[].onFull": ("onFull: discardLatest", "discardLatest"),
}
"""Field → what to call it, and the value that needs the missing feature."""

KINDS_NOT_YET = ("MonoVertex", "ServingPipeline", "InterStepBufferService")
"""Numaflow's other kinds of resource."""


def check_support(spec: PipelineSpec) -> Iterator[Finding]:
    """One finding for each use of a feature that is not there yet."""
    data = spec.model_dump(by_alias=True, exclude_none=True)
    for pattern, (feature, needing) in NOT_YET.items():
        for path, value in _matches(data, pattern.replace("[]", ".[]").split("."), ()):
            if needing is ANY or value == needing:
                yield Finding("EB901", f"{feature} is not supported yet", path, at_key=True)


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
