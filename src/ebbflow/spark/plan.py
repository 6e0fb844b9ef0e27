"""What a vertex task needs to know, made on the driver from the spec and shipped to workers.

Plain data, without pydantic: workers start faster and nothing of the spec's checking is repeated.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ebbflow.core.routing import Edge
from ebbflow.jetstream.connection import Server
from ebbflow.options import Backoff
from ebbflow.sources.generator import GeneratorPlan

if TYPE_CHECKING:
    from ebbflow.spec.model import Generator, PipelineSpec, Vertex

Code = str | Callable[..., Any]

# Room in a JetStream message for the facts of a dead letter beside the value.
_RESERVED = 64 * 1024


@dataclass(frozen=True, slots=True)
class UserMap:
    """A map or transformer of the user's."""

    code: Code


@dataclass(frozen=True, slots=True)
class UserSink:
    """A sink of the user's."""

    code: Code


@dataclass(frozen=True, slots=True)
class LogSink:
    """Print every message."""


@dataclass(frozen=True, slots=True)
class BlackholeSink:
    """Forget every message."""


@dataclass(frozen=True, slots=True)
class Forward:
    """A source without a transformer: messages go on as they are."""


Role = UserMap | UserSink | LogSink | BlackholeSink | Forward


@dataclass(frozen=True, slots=True)
class VertexPlan:
    """One vertex, ready to run. ``max_payload`` is the server's limit for one message."""

    pipeline: str
    vertex: str
    partitions: int
    role: Role
    edges: tuple[Edge, ...]
    on_error: Backoff
    batch_size: int
    concurrency: int
    buffer_frames: int
    server: Server
    max_payload: int
    search: str | None = None
    generator: GeneratorPlan | None = None

    @property
    def largest(self) -> int:
        """The largest value that a message may have."""
        return self.max_payload - _RESERVED


def make_plans(
    spec: PipelineSpec, server: Server, max_payload: int, search: str | None
) -> list[VertexPlan]:
    """The plans of all vertices, sources first, so that a drain is checked downstream."""
    return [_plan(spec, vertex, server, max_payload, search) for vertex in _downstream_order(spec)]


def _downstream_order(spec: PipelineSpec) -> list[Vertex]:
    order = [vertex.name for vertex in spec.vertices if vertex.source is not None]
    for name in order:
        order += [e.to for e in spec.edges_from(name) if e.to not in order]
    return [spec.vertex(name) for name in order]


def _plan(
    spec: PipelineSpec, vertex: Vertex, server: Server, max_payload: int, search: str | None
) -> VertexPlan:
    limits = spec.limits_of(vertex)
    source = vertex.source
    return VertexPlan(
        pipeline=spec.name,
        vertex=vertex.name,
        partitions=vertex.partitions,
        role=_role(vertex),
        edges=_edges(spec, vertex.name),
        on_error=vertex.on_error.policy,
        batch_size=limits.read_batch_size,
        concurrency=limits.concurrency,
        buffer_frames=max(1, limits.buffer_max_length * limits.buffer_usage_limit // 100),
        server=server,
        max_payload=max_payload,
        search=search,
        generator=_generator(source.generator) if source and source.generator else None,
    )


def _edges(spec: PipelineSpec, name: str) -> tuple[Edge, ...]:
    return tuple(
        Edge(
            to=edge.to,
            partitions=spec.vertex(edge.to).partitions,
            operator=tags.operator if tags else "or",
            values=frozenset(tags.values if tags else ()),
        )
        for edge in spec.edges_from(name)
        for tags in [edge.conditions.tags if edge.conditions else None]
    )


def _role(vertex: Vertex) -> Role:
    if vertex.source is not None:
        transformer = vertex.source.transformer
        return UserMap(_code(transformer.python)) if transformer else Forward()
    if vertex.udf is not None:
        return UserMap(_code(vertex.udf.python))
    assert vertex.sink is not None
    if vertex.sink.udsink is not None:
        return UserSink(_code(vertex.sink.udsink.python))
    return LogSink() if vertex.sink.log is not None else BlackholeSink()


def _code(python: Code | None) -> Code:
    assert python is not None, "lint refuses user code without python:"
    return python


def _generator(spec: Generator) -> GeneratorPlan:
    # A fixed number of messages without a rate is made as fast as the buffers take them.
    unlimited = spec.messages is not None and "rpu" not in spec.model_fields_set
    return GeneratorPlan(
        rate=None if unlimited else spec.rpu * 1000 / max(1, spec.duration),
        messages=spec.messages,
        size=spec.msg_size,
        key_count=spec.key_count,
        value=spec.value,
        blob=spec.blob,
    )
