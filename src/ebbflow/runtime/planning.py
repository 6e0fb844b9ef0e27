"""From a spec to the plans of its vertices, on the driver."""

from __future__ import annotations

import math
import secrets
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from ebbflow.buffers.feed import FeedPlan
from ebbflow.connectors.file.sink import FileSettings, FileSink
from ebbflow.connectors.generator.source import GeneratorPlan
from ebbflow.connectors.http.sink import HttpSink, HttpSinkSettings
from ebbflow.connectors.http.source import HttpSettings
from ebbflow.connectors.jetstream.sink import JetStreamSink
from ebbflow.connectors.jetstream.source import JetStreamSettings, JetStreamSource
from ebbflow.connectors.kafka import planning as kafka
from ebbflow.connectors.nats.publishing import PublishSettings
from ebbflow.connectors.nats.sink import NatsSink
from ebbflow.connectors.nats.source import NatsSettings
from ebbflow.connectors.spark.sink import WriteSettings
from ebbflow.connectors.spark.source import SparkSettings
from ebbflow.core.monovertex import Bypass
from ebbflow.core.retry import RetryStrategy
from ebbflow.core.routing import Edge
from ebbflow.nats.address import Addresses
from ebbflow.nats.publish import BUFFER, Retry
from ebbflow.runtime.plan import (
    TABLE_ROWS,
    BlackholeSink,
    Code,
    DataFrameMap,
    Forward,
    LogSink,
    Mode,
    MonoPlan,
    Role,
    SinkPlan,
    SinksPlan,
    SparkSink,
    SqlMap,
    UserMap,
    UserSink,
    VertexPlan,
)
from ebbflow.runtime.source_process.client import SourcePlan

if TYPE_CHECKING:
    from ebbflow.spec import sections
    from ebbflow.spec.model import EffectiveLimits, MonoVertexSpec, PipelineSpec, Spec, Vertex

_BATCH_ROWS = 50_000


def make_plans(
    spec: Spec, server: Addresses, max_payload: int, search: str | None
) -> list[VertexPlan]:
    """The plans of all vertices, sources first, so that a drain is checked downstream."""
    shared = {
        "pipeline": spec.name,
        "server": server,
        "max_payload": max_payload,
        "search": search,
        "run": secrets.token_hex(8),
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
    asked = _rows_asked_for(spec.spec.limits, vertex.limits)
    source = vertex.source
    plan = VertexPlan(
        vertex=vertex.name,
        partitions=vertex.partitions,
        role=_role(vertex, spec.serving_store),
        edges=_edges(spec, vertex.name),
        on_error=vertex.on_error.policy,
        systems=vertex.on_unavailable.systems,
        on_unavailable=vertex.on_unavailable.policy,
        breaker=vertex.breaker.limit,
        batch_size=limits.read_batch_size,
        table_size=asked or TABLE_ROWS,
        concurrency=limits.concurrency,
        call_timeout=limits.call_timeout and limits.call_timeout / 1000,
        buffer_frames=limits.buffer_frames,
        source=_source(source, vertex.name, limits, shared),
        is_source=source is not None,
        paused=spec.paused and source is not None,
        feeders=_feeders(spec, vertex.name),
        ordered=spec.is_ordered(vertex),
        **shared,
    )
    # A batch for Spark is worth its while only with many rows, unless something else is said.
    return replace(plan, batch_size=asked or _BATCH_ROWS) if plan.batched else plan


def _rows_asked_for(*levels: sections.ReadLimits | None) -> int | None:
    """What a spec says about the rows of one call, the last level that says something."""
    said = (level.read_batch_size for level in reversed(levels) if level is not None)
    return next((rows for rows in said if rows is not None), None)


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
        systems=spec.spec.on_unavailable.systems,
        on_unavailable=spec.spec.on_unavailable.policy,
        breaker=spec.spec.breaker.limit,
        batch_size=limits.read_batch_size,
        table_size=_rows_asked_for(spec.spec.limits) or TABLE_ROWS,
        concurrency=limits.concurrency,
        call_timeout=limits.call_timeout and limits.call_timeout / 1000,
        buffer_frames=limits.buffer_frames,
        paused=spec.paused,
        source=_source(source, spec.name, limits, shared),
        is_source=True,
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
    return _query(vertex.udf) or _mapped(vertex.udf)


def _query(udf: sections.Udf | None) -> SqlMap | DataFrameMap | None:
    if udf is None or udf.query is None:
        return None
    return SqlMap(udf.sql) if udf.sql is not None else DataFrameMap(_code(udf.dataframe))


def _mapped(udf: sections.Udf | None) -> UserMap:
    found = _map(udf)
    assert found is not None, "lint refuses a vertex that is neither source, map nor sink"
    return found


def _map(section: sections.Udf | sections.Transformer | None) -> UserMap | None:
    if section is None:
        return None
    mode: Mode = getattr(section, "mode", "unary")
    return UserMap(_code(section.python), mode, _strategy(section.retry_strategy))


def _sinks(sink: sections.Sink, store: sections.ServingStore | None) -> SinksPlan:
    retried = sink.retry_strategy is not None
    return SinksPlan(
        primary=_sink(sink, retried),
        fallback=_sink(sink.fallback, retried) if sink.fallback else None,
        on_success=_sink(sink.on_success, retried) if sink.on_success else None,
        strategy=_strategy(sink.retry_strategy),
        serves=store is not None,
        store=store.python if store else None,
    )


def _sink(target: sections.SinkTarget, retried: bool) -> SinkPlan:
    if target.udsink is not None:
        return UserSink(_code(target.udsink.python))
    if target.http is not None:
        return UserSink(partial(HttpSink, HttpSinkSettings.of(target.http, retried)))
    if target.file is not None:
        return UserSink(partial(FileSink, FileSettings.of(target.file, retried)))
    if target.jetstream is not None:
        return UserSink(partial(JetStreamSink, PublishSettings.of(target.jetstream, retried)))
    if target.nats is not None:
        return UserSink(partial(NatsSink, PublishSettings.of(target.nats, retried)))
    if target.kafka is not None:
        return UserSink(kafka.sink_code(target.kafka, retried))
    if target.spark is not None:
        return SparkSink(WriteSettings.of(target.spark, "the Spark sink"))
    return LogSink() if target.log is not None else BlackholeSink()


def _strategy(section: sections.RetryStrategy | None) -> RetryStrategy | None:
    return None if section is None else RetryStrategy(section.policy, section.on_failure)


def _code(python: Code | None) -> Code:
    assert python is not None, "lint refuses user code without python:"
    return python


def _source(
    source: sections.Source | None, vertex: str, limits: EffectiveLimits, shared: dict[str, Any]
) -> GeneratorPlan | SourcePlan | FeedPlan | None:
    """What a source vertex gets its messages from."""
    if source is None:
        return None
    if source.generator is not None:
        return _generator(source.generator)
    if source.http is not None:
        return HttpSettings.of(source.http, vertex)
    if source.jetstream is not None:
        stream = JetStreamSettings.of(source.jetstream, shared["pipeline"], vertex)
        return _pulled(partial(JetStreamSource, stream), limits, shared)
    if source.nats is not None:
        return NatsSettings.of(source.nats, vertex)
    if source.kafka is not None:
        group = "-".join(dict.fromkeys((shared["pipeline"], vertex)))
        return _pulled(kafka.source_code(source.kafka, group), limits, shared)
    if source.spark is not None:
        return SparkSettings.of(source.spark, vertex)
    assert source.udsource is not None, "lint refuses other sources"
    return _pulled(_code(source.udsource.python), limits, shared)


def _pulled(code: Code, limits: EffectiveLimits, shared: dict[str, Any]) -> SourcePlan:
    return SourcePlan(
        code,
        limit=limits.read_batch_size,
        timeout=limits.read_timeout / 1000,
        run=shared["run"],
        search=shared["search"],
    )


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
