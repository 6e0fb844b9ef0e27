"""The planner: makes the plans of all vertices from a spec, on the driver."""

from __future__ import annotations

import json
import math
import os
import secrets
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, cast

from ebbflow.accounts.traces import read_trace_variables
from ebbflow.connectors.base import SOURCES
from ebbflow.connectors.generator import GeneratorPlan
from ebbflow.connectors.plans import WHOLE_CHUNK, Pulled, SinkPlan
from ebbflow.domain.errors import EbbflowError, SetupError
from ebbflow.engine.inlet import Feeder
from ebbflow.engine.position import Position
from ebbflow.engine.retry import RetryStrategy
from ebbflow.engine.routing import Edge
from ebbflow.nats.login import Addresses
from ebbflow.nats.publish import BUFFER, PublishRetry
from ebbflow.numaflow.pynumaflow.adapters import mode_of
from ebbflow.runtime.plan import (
    CallLimits,
    DataFrameMap,
    Forward,
    MonoPlan,
    Policy,
    Role,
    RunFacts,
    SinksPlan,
    SqlMap,
    UserMap,
    VertexPlan,
)
from ebbflow.runtime.source_process.companion import COLUMNS_LIMIT, SourcePlan
from ebbflow.runtime.worker import resolve_code
from ebbflow.streams.feed import FeedPlan, StorePlan
from ebbflow.usercode.monovertex import Bypass

if TYPE_CHECKING:
    from ebbflow.spec import sections
    from ebbflow.spec.model import EffectiveLimits, MonoVertexSpec, PipelineSpec, Spec, Step, Vertex

_BATCH_ROWS = 50_000


@dataclass(frozen=True, slots=True)
class MapSetting:
    """The settings for planning the maps of a vertex; ``search`` is the folder with its code."""

    vertex: str
    limits: EffectiveLimits
    search: str | None


def make_plans(
    spec: Spec, server: Addresses, max_payload: int, search: str | None
) -> list[VertexPlan]:
    """Returns the plans of all vertices, sources first, so that a drain is checked downstream."""
    run = _describe_run(spec, server, max_payload, search)
    if spec.kind == "MonoVertex":
        return [_mono(spec, run)]
    steps = {step.name: step for step in spec.steps}
    plans = [_vertex(spec, vertex, steps[vertex.name], run) for vertex in _downstream_order(spec)]
    allowed = {vertex.name for vertex in spec.spec.vertices if spec.spec.inline and vertex.inline}
    plans = [replace(plan, inline=_inline(plan, plans, allowed)) for plan in plans]
    return [replace(plan, feeders=_feeders(spec, plan.vertex, plans)) for plan in plans]


def plan_replays(
    spec: Spec, plans: Sequence[VertexPlan], positions: Mapping[tuple[str, int], Position]
) -> list[VertexPlan]:
    """Returns the plans such that chunks in flight are replayed inline where they were inline.

    A vertex that the spec no longer allows to run inline still does, for these chunks only.
    """
    if spec.kind == "MonoVertex":
        return [*plans]
    ran: defaultdict[str, set[str]] = defaultdict(set)
    for (vertex, _), position in positions.items():
        for path in (f"{vertex}>{chain}".split(">") for chain in position.inline):
            for at, name in enumerate(path):
                ran[name].update(path[at + 1 :])
    planned = [_with_replays(plan, _inline(plan, plans, ran[plan.vertex])) for plan in plans]
    return [replace(plan, feeders=_feeders(spec, plan.vertex, planned)) for plan in planned]


def _with_replays(plan: VertexPlan, ran: Sequence[str]) -> VertexPlan:
    replays = tuple(name for name in ran if name not in plan.inline)
    return replace(plan, inline=(*plan.inline, *replays), inline_replays=replays)


def _inline(
    plan: VertexPlan, plans: Sequence[VertexPlan], allowed: Collection[str]
) -> tuple[str, ...]:
    """Returns those of the allowed vertices that may share the tasks of one, over any path."""
    # A task times all calls with one clock, which has one limit.
    able = {
        other.vertex: other
        for other in plans
        if other.vertex in allowed
        and other.can_run_inline
        and other.partitions == plan.partitions
        and other.calls.timeout == plan.calls.timeout
    }
    if not plan.can_run_others:
        return ()
    reached = [edge.to for edge in plan.edges if edge.to in able]
    for name in reached:
        reached += [e.to for e in able[name].edges if e.to in able and e.to not in reached]
    return tuple(name for name in reached if name != plan.vertex)


def _describe_run(spec: Spec, server: Addresses, max_payload: int, search: str | None) -> RunFacts:
    store = spec.nats_store
    return RunFacts(
        spec.name,
        server,
        max_payload,
        search,
        id=secrets.token_hex(8),
        namespace=spec.metadata.namespace or "default",
        publish=_publish(spec.inter_step_buffer.publish),
        bucket=spec.bucket,
        bucket_ttl=0 if store is None else store.ttl,
        trail=any(step.streams.serves for step in spec.steps),
        audit=None if spec.audit is None else describe_table(spec.audit),
        traces=read_trace_variables(os.environ),
    )


def describe_table(audit: sections.AuditSpec) -> str:
    """Returns the audit table as readers need it later, perhaps from another folder.

    It contains no secrets, only where they are.
    """
    options = dict(audit.options)
    path = options.get("path")
    if path is not None and "://" not in path and not path.startswith("file:"):
        options["path"] = os.path.abspath(path)
    secret = audit.model_dump(mode="json", by_alias=True, include={"secret_options"})
    return json.dumps({"format": audit.format, "options": options, **secret})


def _publish(options: sections.Publish) -> PublishRetry:
    ack_wait = math.inf if options.ack_wait is None else options.ack_wait / 1000
    return replace(
        BUFFER,
        wait=options.retry_wait / 1000,
        attempts=options.retry_attempts,
        ack_wait=ack_wait,
    )


def _downstream_order(spec: PipelineSpec) -> list[Vertex]:
    order = [vertex.name for vertex in spec.vertices if vertex.source is not None]
    for name in order:
        order += [e.to for e in spec.edges_from(name) if e.to not in order]
    return [spec.vertex(name) for name in order]


def _vertex(spec: PipelineSpec, vertex: Vertex, step: Step, run: RunFacts) -> VertexPlan:
    limits, asked = spec.limits_of(vertex), _rows_asked_for(spec.spec.limits, vertex.limits)
    if step.streams.batched:
        # A Spark batch only pays off with many rows, so that is the default.
        limits = replace(limits, read_batch_size=asked or _BATCH_ROWS)
    role = _role(vertex, spec.serving_store, MapSetting(vertex.name, limits, run.search))
    plan = _plan(spec, step, role, run, limits, asked, served=_is_served(spec, vertex))
    return replace(
        plan,
        edges=_edges(spec, vertex.name),
        ordered=spec.is_ordered(vertex),
    )


def _rows_asked_for(*levels: sections.ReadLimits | None) -> int | None:
    """Returns the rows of one call from the last level of a spec that sets them, if any."""
    sizes = (level.read_batch_size for level in reversed(levels) if level is not None)
    return next((rows for rows in sizes if rows is not None), None)


def _mono(spec: MonoVertexSpec, run: RunFacts) -> VertexPlan:
    (step,) = spec.steps
    setting = MapSetting(spec.name, spec.limits, run.search)
    role = MonoPlan(
        _map(spec.source.transformer, setting),
        _map(spec.udf, setting),
        _sinks(spec.sink, spec.serving_store),
        _bypass(spec.bypass),
    )
    asked = _rows_asked_for(spec.spec.limits)
    return _plan(spec, step, role, run, spec.limits, asked, served=step.streams.serves)


def _plan(
    spec: Spec,
    step: Step,
    role: Role,
    run: RunFacts,
    limits: EffectiveLimits,
    asked: int | None,
    *,
    served: bool,
) -> VertexPlan:
    """Returns what the plans of a vertex and of a MonoVertex have in common.

    ``asked`` are the rows of one call that the spec asks for; ``served`` if callers wait for the
    results of the step.
    """
    section, timeout = step.section, limits.call_timeout
    return VertexPlan(
        run,
        replace(step.streams, max_frames=limits.buffer_frames),
        role,
        CallLimits(
            limits.read_batch_size,
            limits.concurrency,
            table_size=asked,
            timeout=timeout and timeout / 1000,
        ),
        Policy(
            section.on_error.policy(served=served),
            section.on_unavailable.systems,
            section.on_unavailable.policy,
            section.breaker.limit,
        ),
        source=_source(spec, step, run, limits, asked),
        paused=spec.paused and step.source is not None,
    )


def _feeders(
    spec: PipelineSpec, name: str, plans: Sequence[VertexPlan], only_inline: bool = False
) -> tuple[Feeder, ...]:
    """Returns the vertices that write to one, except downstream ones, which wait for it.

    ``only_inline`` returns only those that may run it.
    """
    following = _reachable(spec, name)
    writers = {edge.from_ for edge in spec.edges_into(name) if edge.from_ not in following}
    if only_inline:
        runners = {p.vertex for p in plans if name in p.inline}
        writers &= runners
    return tuple(
        Feeder(
            tuple(f"{writer}.{number}" for number in range(spec.vertex(writer).partitions)),
            _feeders(spec, writer, plans, only_inline=True),
        )
        for writer in sorted(writers)
    )


def _is_served(spec: PipelineSpec, vertex: Vertex) -> bool:
    """Returns whether callers wait for the vertex: it is behind a source that serves."""
    serving = [step.name for step in spec.steps if step.streams.serves]
    return any(vertex.name in (name, *_reachable(spec, name)) for name in serving)


def _reachable(spec: PipelineSpec, name: str) -> list[str]:
    reached = [edge.to for edge in spec.edges_from(name)]
    for vertex in reached:
        reached += [edge.to for edge in spec.edges_from(vertex) if edge.to not in reached]
    return reached


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


def _bypass(bypass: sections.BypassSpec) -> Bypass:
    return Bypass(
        _edge("sink", bypass.sink) if bypass.sink else None,
        _edge("fallback", bypass.fallback) if bypass.fallback else None,
        _edge("on_success", bypass.on_success) if bypass.on_success else None,
    )


def _role(vertex: Vertex, store: sections.ServingStoreSpec | None, setting: MapSetting) -> Role:
    if vertex.source is not None:
        return _map(vertex.source.transformer, setting) or Forward()
    if vertex.sink is not None:
        return _sinks(vertex.sink, store)
    role = _query(vertex.udf) or _map(vertex.udf, setting)
    assert role is not None, "lint refuses a vertex that is neither source, map nor sink"
    return role


def _query(udf: sections.Udf | None) -> SqlMap | DataFrameMap | None:
    if udf is None or udf.query is None:
        return None
    if udf.sql is not None:
        return SqlMap(udf.sql)
    assert udf.dataframe is not None
    return DataFrameMap(udf.dataframe)


def _map(
    section: sections.Udf | sections.Transformer | None, setting: MapSetting
) -> UserMap | None:
    if section is None:
        return None
    mode = section.call_mode
    if mode == "unary" and section.in_process is not None:  # or left out, as in Numaflow's specs
        mode = mode_of(resolve_code(section.in_process, setting.search), mode, section.PLACE)
    strategy = _strategy(section.retry_strategy)
    if section.in_process is not None:
        return UserMap(section.code, mode, strategy, section.variables)
    # The caller of a function in its own process gets whole chunks, and passes them on in portions.
    limits = setting.limits
    portions = {"concurrency": limits.concurrency, "batch_size": limits.read_batch_size}
    code = partial(cast("Callable[..., Any]", section.code), vertex=setting.vertex, **portions)
    return UserMap(code, mode, strategy, rows=WHOLE_CHUNK)


def _sinks(sink: sections.SinkSpec, store: sections.ServingStoreSpec | None) -> SinksPlan:
    own = _own_store(store)
    return SinksPlan(
        primary=_plan_sink(sink),
        fallback=_plan_sink(sink.fallback) if sink.fallback else None,
        on_success=_plan_sink(sink.on_success) if sink.on_success else None,
        strategy=_strategy(sink.retry_strategy),
        serves=store is not None,
        store=own.code if own else None,
        store_env=own.variables if own else (),
    )


def _plan_sink(sink: sections.SinkTarget) -> SinkPlan:
    with _explaining_faults("sink", sink.kind):
        plan = sink.section.plan()
        if not isinstance(plan, SinkPlan):
            raise TypeError(f"plan() returned {type(plan).__name__} where a plan belongs")
        return plan


@contextmanager
def _explaining_faults(role: str, kind: str) -> Iterator[None]:
    """Raises ``SetupError`` for a connector that cannot be planned: it may be another package's."""
    try:
        yield
    except EbbflowError:
        raise
    except (Exception, SystemExit) as error:
        raise SetupError(
            f"The {role} {kind} cannot be planned: {type(error).__name__}: {error}.",
            "Correct the connector, or its section in the spec.",
        ) from error


def _own_store(store: sections.ServingStoreSpec | None) -> sections.ServingStoreSpec | None:
    """Returns the store if it is the user's own."""
    return store if store is not None and store.nats is None else None


def _store(store: sections.ServingStoreSpec | None, run: RunFacts) -> StorePlan | None:
    """Returns the plan of the store where feeds find answers, if the pipeline has a bucket."""
    if run.bucket is None:
        return None
    plan = StorePlan(run.bucket, run.bucket_ttl, search=run.search)
    own = _own_store(store)
    return plan if own is None else replace(plan, code=own.code, env=own.variables)


def _strategy(section: sections.RetrySpec | None) -> RetryStrategy | None:
    return None if section is None else RetryStrategy(section.policy, section.on_failure)


def _source(
    spec: Spec, step: Step, run: RunFacts, limits: EffectiveLimits, asked: int | None
) -> GeneratorPlan | SourcePlan | FeedPlan | None:
    """Returns the plan of a vertex's source, if it has one; ``asked`` are the rows of one read."""
    if step.source is None:
        return None
    with _explaining_faults("source", step.source.kind):
        plan = step.source.section.plan(run.pipeline, step.name)
        if not isinstance(plan, GeneratorPlan | Pulled | FeedPlan):
            raise TypeError(f"plan() returned {type(plan).__name__} where a plan belongs")
    if isinstance(plan, FeedPlan):
        return replace(plan, store=_store(spec.serving_store, run))
    if not isinstance(plan, Pulled):
        return plan
    kind = SOURCES[step.source.kind]
    if not (kind.returns or kind.serves):  # a simulation makes requests itself
        raise SetupError(
            f"The source {step.source.kind} is pulled, and is not registered as such.",
            f'Write @source("{step.source.kind}", returns=True) above its section.',
        )
    return SourcePlan(
        plan.code,
        limit=limits.read_batch_size,
        columns_limit=asked or COLUMNS_LIMIT,
        timeout=limits.read_timeout / 1000,
        run=run.id,
        search=run.search,
        env=plan.env,
    )
