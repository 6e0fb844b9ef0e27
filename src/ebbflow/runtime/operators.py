"""Operators, which decide the chunks of a vertex; made on a worker from the vertex's role."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import assert_never

from ebbflow.accounts.events import Events
from ebbflow.connectors.plans import (
    BlackholeSink,
    LogSink,
    ServeSink,
    SinkPlan,
    SparkSink,
    UserSink,
)
from ebbflow.domain.code import Code, Variables
from ebbflow.engine.blame import SystemOutage
from ebbflow.engine.dead_letter import set_aside_dead
from ebbflow.engine.outage import OpenCode
from ebbflow.engine.position import LINEAGE
from ebbflow.engine.retry import Pause
from ebbflow.engine.verdict import Operator, Verdict
from ebbflow.runtime.plan import (
    DataFrameMap,
    Forward,
    MonoPlan,
    SinksPlan,
    SqlMap,
    UserMap,
    VertexPlan,
)
from ebbflow.runtime.worker import WORKER, Worker
from ebbflow.usercode.call_watch import RUNNING
from ebbflow.usercode.calling import (
    Handler,
    call_with_retries,
    in_environment,
    in_its_environment,
    map_in_mode,
    sink_in_mode,
)
from ebbflow.usercode.monovertex import Mono, MonoStep, run_mono
from ebbflow.usercode.poison import Child, PoisonIsolation
from ebbflow.usercode.printing import LOG_LEVEL, Emit, Printed
from ebbflow.usercode.sinks import Sinks, Store, run_sinks


class CurrentVertex:
    """The vertex whose user code this process calls: environment and prints are that vertex's.

    One vertex at a time: a task calls user code on one thread.
    """

    def __init__(self) -> None:
        self._events: Events | None = None

    def report_for(self, events: Events, variables: Mapping[str, str]) -> None:
        """Switches the process to a vertex."""
        if self._events is not events:
            os.environ |= variables
            self._events = events

    def log(self, printed: Printed) -> None:
        """Sends what user code prints."""
        if self._events is not None:
            self._events.log(printed)

    def in_call(self, seconds: float | None) -> None:
        """Reports how long user code has been in one call. Safe to call from any thread."""
        if self._events is not None:
            self._events.in_call(seconds)


def vertex_variables(plan: VertexPlan, partition: int) -> dict[str, str]:
    """Returns the environment variables with which Numaflow describes a vertex to user code.

    Variables of containers are set only around calls of their functions.
    """
    mono = {"NUMAFLOW_MONO_VERTEX_NAME": plan.vertex} if isinstance(plan.role, MonoPlan) else {}
    return mono | {
        "NUMAFLOW_NAMESPACE": plan.run.namespace,
        "NUMAFLOW_POD": f"{plan.pipeline}-{plan.vertex}-{partition}",
        "NUMAFLOW_REPLICA": str(partition),
        "NUMAFLOW_PIPELINE_NAME": plan.pipeline,
        "NUMAFLOW_VERTEX_NAME": plan.vertex,
        LINEAGE: plan.run.lineage,
        LOG_LEVEL: plan.run.log_level,
    }


class UserCode:
    """The user code of a vertex on a worker: opened on first use, and called with chunks.

    ``isolate`` if the vertex's last worker died: then child processes call it first. ``worker``
    keeps open handlers, and ``pause`` waits between short retries. ``enter`` is called before user
    code is opened or called, if other vertices are called in the same process.
    """

    def __init__(
        self,
        plan: VertexPlan,
        emit: Emit,
        isolate: bool,
        worker: Worker = WORKER,
        pause: Pause = time.sleep,
        enter: Callable[[], None] | None = None,
    ) -> None:
        self._plan = plan
        self._emit = emit
        self._worker = worker
        self._pause = pause
        self._enter = enter
        self._isolate = isolate and not isinstance(plan.role, Forward)
        self._operator: Operator | None = None
        self._in_children: PoisonIsolation | None = None

    def open(self) -> OpenCode:
        """Opens it, unless it is open; raises what user code raises then.

        A handler that encountered an outage is closed and opened again.
        """
        if self._enter is not None:
            self._enter()
        resident = self._worker.vertex(self._plan.vertex_of_run)
        for handler in resident.handlers:
            if handler.blame.outage is not None:
                handler.renew()
        if self._in_children is not None and self._in_children.outage is not None:
            self._in_children.close()  # the next child opens it again
        if self._operator is None:
            self._operator = self._make_operator()
        blames = [handler.blame for handler in resident.handlers]
        operator = self._operator if self._enter is None else self._decide
        return OpenCode(operator, [*filter(None, [self._in_children]), *blames])

    def _decide(self, verdict: Verdict) -> None:
        assert self._operator is not None
        assert self._enter is not None
        self._enter()
        self._operator(verdict)

    def close(self) -> None:
        """Ends the child, if there is one; handlers of this process stay open."""
        if self._in_children is not None:
            self._in_children.close()

    def _make_operator(self) -> Operator:
        plan = self._plan
        operator = Operators(plan, self._emit, self._worker, self._pause).operator()
        if self._isolate:
            operator = self._in_children = PoisonIsolation(operator, self._child, self._emit)
        fed = plan.is_source and plan.streams.has_buffer
        return set_aside_dead(operator) if fed else operator

    def _child(self) -> Child:
        plan = self._plan
        fresh, close = (
            partial(_fresh_operator, plan),
            partial(WORKER.close_vertex, plan.vertex_of_run),
        )
        return Child(fresh, close, partial(_outage_of, plan), plan.calls.timeout)


def _outage_of(plan: VertexPlan) -> SystemOutage | None:
    outages = (handler.blame.outage for handler in WORKER.vertex(plan.vertex_of_run).handlers)
    return next((outage for outage in outages if outage is not None), None)


def _fresh_operator(plan: VertexPlan, emit: Emit) -> Operator:
    """Makes the operator again for a child process, which must not use its parent's handlers."""
    WORKER.forget_handlers()
    return Operators(plan, emit).operator()


class Operators:
    """Makes the operator of one vertex."""

    def __init__(
        self,
        plan: VertexPlan,
        emit: Emit,
        worker: Worker = WORKER,
        pause: Pause = time.sleep,
    ) -> None:
        self._plan = plan
        self._emit = emit
        self._worker = worker
        self._pause = pause

    def operator(self) -> Operator:
        """Returns the operator of the vertex's role."""
        match self._plan.role:
            case UserMap() as role:
                name = "transformer" if self._plan.is_source else "map"
                return partial(
                    call_with_retries,
                    call=self._map(role, name),
                    strategy=role.strategy,
                    pause=self._pause,
                    what=name,
                )
            case SinksPlan() as role:
                return partial(run_sinks, sinks=self.sinks(role), pause=self._pause)
            case MonoPlan() as role:
                return partial(run_mono, mono=self._mono(role), pause=self._pause)
            case Forward():
                return Verdict.forward_inputs
            case SqlMap() | DataFrameMap():
                raise AssertionError("the driver plans these; see batch")
            case never:
                assert_never(never)

    def _handler(self, role: str, code: Code, env: Variables = ()) -> Handler:
        plan, resident = self._plan, self._worker.vertex(self._plan.vertex_of_run)
        return resident.handler(role, code, plan.run.search, plan.policy.systems, env)

    def _map(self, role: UserMap, name: str) -> Operator:
        handler = self._handler(name, role.code, role.env)
        return in_its_environment(handler, self._caller(role, handler))

    def _caller(self, role: UserMap, handler: Handler) -> Operator:
        """Returns the operator that calls a map in its mode."""
        calls = self._plan.calls
        sizes = {"unary": calls.concurrency, "batch": calls.batch_size}
        return map_in_mode(handler, role.mode, sizes.get(role.mode) or calls.rows_of(role))

    def sinks(self, role: SinksPlan) -> Sinks:
        """Returns a sink, its fallback and its on-success sink."""
        sink = partial(self._sink, retried=role.strategy is not None)
        return Sinks(
            primary=sink(role.primary, "sink"),
            fallback=sink(role.fallback, "fallback") if role.fallback else None,
            on_success=sink(role.on_success, "on_success") if role.on_success else None,
            strategy=role.strategy,
            serves=role.serves,
            store=self._store(role.store, role.store_env) if role.store else None,
            batch_size=self._call_size(role.primary),
        )

    def _call_size(self, role: SinkPlan) -> int:
        if isinstance(role, UserSink) and role.mode != "batch":
            return self._plan.calls.rows_of(role)
        return self._plan.calls.batch_size

    def _sink(self, role: SinkPlan, name: str, retried: bool) -> Operator:
        """Returns one sink; ``retried`` if there is a retry strategy."""
        match role:
            case UserSink():
                return self._user_sink(role, name, retried)
            case LogSink():
                return partial(role.write, emit=self._emit, role=name)
            case BlackholeSink() | ServeSink() | SparkSink():
                return role.write
            case never:
                assert_never(never)

    def _user_sink(self, role: UserSink, name: str, retried: bool) -> Operator:
        """Returns a sink of user code. A retry strategy decides about outages of connectors."""
        handler = self._handler(name, role.code, role.env)
        fails = retried and role.strategy_decides
        calls = self._plan.calls
        size = calls.batch_size if role.mode == "batch" else calls.rows_of(role)
        return in_its_environment(handler, sink_in_mode(handler, role.mode, size, fails))

    def _store(self, code: Code, env: Variables) -> Store:
        handler = self._handler("store", code, env)

        def put(request: str, payloads: Sequence[bytes]) -> None:
            with RUNNING, in_environment(handler.variables):
                handler.finish(handler.instance.put(request, payloads))

        return Store(put, handler.blame)

    def _mono(self, role: MonoPlan) -> Mono:
        steps = (("transformer", role.transformer), ("map", role.map))
        return Mono(
            [MonoStep(name, self._map(step, name), step.strategy) for name, step in steps if step],
            self.sinks(role.sinks),
            role.bypass,
        )
