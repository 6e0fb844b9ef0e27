"""The streams of a vertex task, opened on a worker by what the plan says the vertex reads."""

from __future__ import annotations

import threading
from dataclasses import replace

from ebbflow.buffers.ledger import Ledger
from ebbflow.buffers.names import Names
from ebbflow.buffers.reader import FrameReader
from ebbflow.connectors.generator.source import GeneratorInlet, GeneratorPlan
from ebbflow.core.inlet import Inlet
from ebbflow.core.position import Mark, Span
from ebbflow.nats.link import Link
from ebbflow.runtime.events import Events
from ebbflow.runtime.handlers import patience_of
from ebbflow.runtime.plan import VertexPlan
from ebbflow.runtime.source_process.client import SourcePlan
from ebbflow.runtime.source_process.inlet import PulledInlet


def open_redeliveries(
    plan: VertexPlan, partition: int, link: Link, start: Mark, wake: threading.Event
) -> Inlet:
    """Opens the stream of rows that come back to the vertex itself."""
    names = Names(plan.pipeline)
    stream = names.redelivery(plan.vertex, partition)
    return FrameReader(link, stream, names.due_subject(plan.vertex, partition), start, wake)


def open_ledger(plan: VertexPlan, partition: int, link: Link) -> Ledger | None:
    """Opens the memory of what a source's messages have been through, if there is a source."""
    if not isinstance(plan.source, SourcePlan):
        return None
    names = Names(plan.pipeline)
    ledger = Ledger(link, names, plan.vertex, partition, plan.partitions, plan.publish)
    link.run(ledger.load())
    return ledger


def open_inlet(
    plan: VertexPlan,
    partition: int,
    link: Link,
    done: Span,
    wake: threading.Event,
    ledger: Ledger | None,
    events: Events,
) -> Inlet:
    """Opens the buffer, the generator or the source that the vertex reads, behind ``done``."""
    source, vertex, names = plan.source, plan.vertex, Names(plan.pipeline)
    if isinstance(source, GeneratorPlan):
        return GeneratorInlet(source, vertex, partition, plan.partitions, done.inlet)
    if isinstance(source, SourcePlan):
        assert ledger is not None
        patience = patience_of(plan.whose, f"source {partition}", plan.on_unavailable)
        source = replace(source, systems=plan.systems)
        return PulledInlet(source, vertex, partition, done.inlet, ledger, wake, events, patience)
    buffer, subject = names.buffer(vertex, partition), names.buffer_subject(vertex, partition)
    return FrameReader(link, buffer, subject, done.inlet, wake, done.known)
