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
    """Returns the observers that publish the outcomes of a chunk's rows, before it is done."""
    observers: list[ChunkObserver] = [TrailObserver()] if plan.run.trail else []
    return [*observers, AuditObserver()] if plan.run.audit is not None else observers


def open_spans(plan: VertexPlan, partition: int) -> TaskSpans | None:
    """Returns the recorder of a task's traces; ``None`` if the plan asks for no traces."""
    if not plan.run.traces:
        return None
    tracer = open_tracer(plan.pipeline, plan.run.traces)
    return TaskSpans(plan.pipeline, plan.vertex, partition, plan.is_source, tracer)


def decision_rules(plan: VertexPlan, partition: int) -> DecisionRules:
    """Returns the rules by which chunks of a partition are decided and settled."""
    place = place_of(plan, partition)
    # An ordered vertex must not forward outputs that a held row may still have to precede.
    emits = bool(plan.edges) and not plan.ordered
    return DecisionRules(place, plan.policy.on_error, plan.largest_output, emits, _times(plan))


def _times(plan: VertexPlan) -> Times:
    if not plan.is_source:
        return no_times
    return source_times
