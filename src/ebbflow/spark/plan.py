"""What a vertex task needs to know, made on the driver from the spec and shipped to workers.

Plain data, without pydantic: workers start faster and nothing of the spec's checking is repeated.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

from ebbflow.core.mono import Bypass
from ebbflow.core.retry import RetryStrategy
from ebbflow.core.routing import Edge
from ebbflow.jetstream.connection import Server
from ebbflow.jetstream.publisher import BUFFER, Retry
from ebbflow.options import Backoff
from ebbflow.sources.generator import GeneratorPlan

if TYPE_CHECKING:
    from ebbflow.spec import sections
    from ebbflow.spec.model import MonoVertexSpec, PipelineSpec, Spec, Vertex

Code = str | Callable[..., Any]
Mode = Literal["unary", "batch", "stream", "columnar", "pandas"]

# Room in a JetStream message for the facts of a dead letter beside the value.
_RESERVED = 64 * 1024


@dataclass(frozen=True, slots=True)
class UserMap:
    """A map or transformer of the user's."""

    code: Code
    mode: Mode = "unary"
    strategy: RetryStrategy | None = None


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


SinkPlan = UserSink | LogSink | BlackholeSink


@dataclass(frozen=True, slots=True)
class SinksPlan:
    """A sink and those beside it. ``store`` is the user's own, ``serves`` if there is any."""

    primary: SinkPlan
    fallback: SinkPlan | None = None
    on_success: SinkPlan | None = None
    strategy: RetryStrategy | None = None
    serves: bool = False
    store: Code | None = None


@dataclass(frozen=True, slots=True)
class MonoPlan:
    """Transformer, map and sinks in one."""

    transformer: UserMap | None
    map: UserMap | None
    sinks: SinksPlan
    bypass: Bypass


@dataclass(frozen=True, slots=True)
class Forward:
    """A source without a transformer: messages go on as they are."""


Role = UserMap | SinksPlan | MonoPlan | Forward


@dataclass(frozen=True, slots=True)
class VertexPlan:
    """One vertex, ready to run. ``max_payload`` is the server's limit for one message.

    ``feeders`` are the tasks that write to this vertex, ``bucket`` is where answers go if they are
    stored in NATS, and ``paused`` keeps a source from making anything.
    """

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
    namespace: str = "default"
    feeders: tuple[str, ...] = ()
    ordered: bool = False
    paused: bool = False
    bucket: str | None = None
    bucket_ttl: int = 0
    publish: Retry = BUFFER

    @property
    def largest(self) -> int:
        """The largest value that a message may have."""
        return self.max_payload - _RESERVED


def make_plans(
    spec: Spec, server: Server, max_payload: int, search: str | None
) -> list[VertexPlan]:
    """The plans of all vertices, sources first, so that a drain is checked downstream."""
    shared = {
        "pipeline": spec.name,
        "server": server,
        "max_payload": max_payload,
        "search": search,
        "namespace": spec.metadata.namespace or "default",
        "publish": _publish(spec.inter_step_buffer.publish),
        **_bucket(spec.serving_store),
    }
    if spec.kind == "MonoVertex":
        return [_mono(spec, shared)]
    return [_vertex(spec, vertex, shared) for vertex in _downstream_order(spec)]


def _publish(options: sections.Publish) -> Retry:
    ack_wait = math.inf if options.ack_wait is None else options.ack_wait / 1000
    return replace(
        BUFFER,
        wait=options.retry_wait / 1000,
        attempts=options.retry_attempts,
        ack_wait=ack_wait,
    )


def _bucket(store: sections.ServingStore | None) -> dict[str, Any]:
    if store is None or store.nats is None:
        return {}
    return {"bucket": store.nats.bucket, "bucket_ttl": store.nats.ttl}


def _downstream_order(spec: PipelineSpec) -> list[Vertex]:
    order = [vertex.name for vertex in spec.vertices if vertex.source is not None]
    for name in order:
        order += [e.to for e in spec.edges_from(name) if e.to not in order]
    return [spec.vertex(name) for name in order]


def _vertex(spec: PipelineSpec, vertex: Vertex, shared: dict[str, Any]) -> VertexPlan:
    limits = spec.limits_of(vertex)
    source = vertex.source
    return VertexPlan(
        vertex=vertex.name,
        partitions=vertex.partitions,
        role=_role(vertex, spec.serving_store),
        edges=_edges(spec, vertex.name),
        on_error=vertex.on_error.policy,
        batch_size=limits.read_batch_size,
        concurrency=limits.concurrency,
        buffer_frames=max(1, limits.buffer_max_length * limits.buffer_usage_limit // 100),
        generator=_generator(source.generator) if source and source.generator else None,
        paused=spec.paused and source is not None,
        feeders=_feeders(spec, vertex.name),
        ordered=spec.is_ordered(vertex),
        **shared,
    )


def _mono(spec: MonoVertexSpec, shared: dict[str, Any]) -> VertexPlan:
    limits, source = spec.limits, spec.source
    return VertexPlan(
        vertex=spec.name,
        partitions=spec.partitions,
        role=MonoPlan(
            _map(source.transformer),
            _map(spec.udf),
            _sinks(spec.sink, spec.serving_store),
            _bypass(spec.bypass),
        ),
        edges=(),
        on_error=spec.on_error.policy,
        batch_size=limits.read_batch_size,
        concurrency=limits.concurrency,
        buffer_frames=1,
        paused=spec.paused,
        generator=_generator(source.generator) if source.generator else None,
        **shared,
    )


def _feeders(spec: PipelineSpec, name: str) -> tuple[str, ...]:
    """The tasks that write to a vertex, but for those it feeds itself, which would wait for it."""
    following = _reachable(spec, name)
    writers = [e.from_ for e in spec.edges_into(name) if e.from_ not in following]
    return tuple(f"{w}.{p}" for w in writers for p in range(spec.vertex(w).partitions))


def _reachable(spec: PipelineSpec, name: str) -> list[str]:
    found = [edge.to for edge in spec.edges_from(name)]
    for one in found:
        found += [edge.to for edge in spec.edges_from(one) if edge.to not in found]
    return found


def _edges(spec: PipelineSpec, name: str) -> tuple[Edge, ...]:
    return tuple(
        _edge(
            edge.to,
            edge.conditions,
            spec.vertex(edge.to).partitions,
            keyed=spec.is_ordered(edge.to),
            discards=edge.on_full == "discardLatest",
        )
        for edge in spec.edges_from(name)
    )


def _edge(
    to: str,
    conditions: sections.Conditions | None,
    partitions: int = 1,
    keyed: bool = False,
    discards: bool = False,
) -> Edge:
    edge = Edge(to, partitions, keyed=keyed, discards=discards)
    tags = conditions.tags if conditions else None
    return replace(edge, operator=tags.operator, values=frozenset(tags.values)) if tags else edge


def _bypass(bypass: sections.Bypass) -> Bypass:
    return Bypass(
        *(
            _edge(name, rule) if rule else None
            for name in ("sink", "fallback", "on_success")
            for rule in [getattr(bypass, name)]
        )
    )


def _role(vertex: Vertex, store: sections.ServingStore | None) -> Role:
    if vertex.source is not None:
        return _map(vertex.source.transformer) or Forward()
    if vertex.sink is not None:
        return _sinks(vertex.sink, store)
    found = _map(vertex.udf)
    assert found is not None, "lint refuses a vertex that is neither source, map nor sink"
    return found


def _map(section: sections.Udf | sections.Transformer | None) -> UserMap | None:
    if section is None:
        return None
    mode: Mode = getattr(section, "mode", "unary")
    return UserMap(_code(section.python), mode, _strategy(section.retry_strategy))


def _sinks(sink: sections.Sink, store: sections.ServingStore | None) -> SinksPlan:
    return SinksPlan(
        primary=_sink(sink),
        fallback=_sink(sink.fallback) if sink.fallback else None,
        on_success=_sink(sink.on_success) if sink.on_success else None,
        strategy=_strategy(sink.retry_strategy),
        serves=store is not None,
        store=store.python if store else None,
    )


def _sink(target: sections.SinkTarget) -> SinkPlan:
    if target.udsink is not None:
        return UserSink(_code(target.udsink.python))
    return LogSink() if target.log is not None else BlackholeSink()


def _strategy(section: sections.RetryStrategy | None) -> RetryStrategy | None:
    return None if section is None else RetryStrategy(section.policy, section.on_failure)


def _code(python: Code | None) -> Code:
    assert python is not None, "lint refuses user code without python:"
    return python


def _generator(spec: sections.Generator) -> GeneratorPlan:
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
