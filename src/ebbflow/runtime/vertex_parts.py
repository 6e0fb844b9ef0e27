"""The parts of a vertex that do not depend on which task runs it: its rules and its observers."""

from __future__ import annotations

from ebbflow.accounts.audit import AuditObserver
from ebbflow.accounts.traces import TaskSpans, open_tracer
from ebbflow.accounts.trail import TrailObserver
from ebbflow.engine.account import ChunkObserver
from ebbflow.engine.publications import Place
from ebbflow.runtime.deciding import DecisionRules, Times, no_times, source_times
from ebbflow.runtime.plan import VertexPlan


def place_of(plan: VertexPlan, partition: int) -> Place:
    """Returns where the chunks of a partition are settled."""
    return Place(plan.vertex, partition, plan.edges, plan.run.max_payload, plan.run.bucket)


def late_observers(plan: VertexPlan) -> list[ChunkObserver]:
    """Returns who publishes the outcomes of the rows of each chunk, before it is done."""
    observers: list[ChunkObserver] = [TrailObserver()] if plan.run.trail else []
    return [*observers, AuditObserver()] if plan.run.audit is not None else observers


def open_spans(plan: VertexPlan, partition: int) -> TaskSpans | None:
    """Returns who records the traces of a task; no one unless the plan says so."""
    if not plan.run.traces:
        return None
    tracer = open_tracer(plan.pipeline, plan.run.traces)
    return TaskSpans(plan.pipeline, plan.vertex, partition, plan.is_source, tracer)


def decision_rules(plan: VertexPlan, partition: int) -> DecisionRules:
    """Returns the rules that chunks of a partition are decided and settled by."""
    place = place_of(plan, partition)
    # An ordered vertex must not pass on what a held row may still have to come before.
    emits = bool(plan.edges) and not plan.ordered
    return DecisionRules(place, plan.policy.on_error, plan.largest_output, emits, _times(plan))


def _times(plan: VertexPlan) -> Times:
    if not plan.is_source:
        return no_times
    return source_times
