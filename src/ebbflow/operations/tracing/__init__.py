"""Tracing a message of any pipeline: what became of it at every vertex, and where it is now.

``trace_message`` reads the audit table, the audit rows that are not in it yet, and every stream
that holds messages. Where no audit table is kept it finds where the message is now, and says what
to add to the spec to know its past as well. It works beside a running pipeline and without one,
from anywhere that reaches its NATS server.
"""

from __future__ import annotations

from pathlib import Path

from ebbflow.connectors.serving.store import ServedRequest
from ebbflow.domain.errors import EbbflowError
from ebbflow.nats import api
from ebbflow.nats.link import Link
from ebbflow.nats.locate import open_link_to_pipeline
from ebbflow.operations.tracing.past import Past, read_past
from ebbflow.operations.tracing.places import Search
from ebbflow.operations.tracing.requests import find_request, step_of_request
from ebbflow.operations.tracing.way import Family, MessageTrace, TraceStep, Whereabouts
from ebbflow.status.model import WorkInHand
from ebbflow.status.reading import read_status
from ebbflow.streams.names import PREFIX, Names
from ebbflow.streams.provision import explain_unknown

__all__ = ["MessageTrace", "TraceStep", "Whereabouts", "trace_message", "trace_on_link"]

_LOOKS = 3
_NOT_KEPT = (
    "What became of messages is not kept. To keep it, add to the spec: "
    "audit: {options: {path: FOLDER}}"
)


def trace_message(
    pipeline: str, message: str, *, state: str | Path = ".ebbflow", nats: str | None = None
) -> MessageTrace:
    """Returns what is known of a message and of those made of it; blocks while it is read.

    An embedded server that nobody runs is started for as long as it takes. ``SetupError`` if the
    pipeline has not run there, ``EbbflowError`` if nobody knows the message.
    """
    names = Names(pipeline)
    with open_link_to_pipeline(Path(state), nats, inbox=names.inbox) as link:
        trace = trace_on_link(link, names, message)
    if not trace.is_known:
        raise EbbflowError(_explain_unknown(trace))
    return trace


def trace_on_link(link: Link, names: Names, message: str) -> MessageTrace:
    """Returns the same over a link that is open, also if nobody knows the message.

    Called from any thread but that of the link.
    """
    streams = link.run(api.list_streams(link.client, PREFIX))
    if names.dead_letters not in streams:
        raise explain_unknown(names.pipeline, streams)
    family, in_hand = Family(message), _read_in_hand(link, names)
    for _ in range(_LOOKS):
        # The places first: what moves on meanwhile is told of where it was by then. A message that
        # slips from a stream not yet searched to one that was is found by another look.
        places = link.run(Search(link, names, streams, family, in_hand).look())
        past = read_past(link, names, streams, family)
        request = link.run(find_request(link, names, streams, message))
        if places or past.has_ended or request:
            break
    return _assemble(names.pipeline, message, places, past, request)


def _read_in_hand(link: Link, names: Names) -> dict[str, WorkInHand]:
    """Returns what tasks have in hand, of vertices with one task; nothing if nobody runs it."""
    try:
        status = read_status(link, names)
    except (EbbflowError, api.ApiError):  # it has never run, or not all of it can be read
        return {}
    if status.phase == "ended":
        return {}
    return {v.name: v.in_hand for v in status.vertices if v.in_hand and v.partitions == 1}


def _assemble(
    pipeline: str,
    message: str,
    places: list[Whereabouts],
    past: Past,
    request: ServedRequest | None,
) -> MessageTrace:
    steps = past.steps
    if request is not None and not steps:
        steps = tuple(map(step_of_request, request.steps))
    ended = {(step.vertex, step.message) for step in steps if step.final}
    on_the_way = ("buffer", "in hand")
    now = [p for p in places if p.where not in on_the_way or (p.vertex, p.message) not in ended]
    notes = past.notes if past.kept or request else (*past.notes, _NOT_KEPT)
    in_order = tuple(sorted(steps, key=lambda step: step.at))
    return MessageTrace(pipeline, message, in_order, tuple(now), past.kept, notes, request)


def _explain_unknown(trace: MessageTrace) -> str:
    text = f"There is no message {trace.id!r} in {trace.pipeline}"
    if trace.kept:
        return " ".join((f"{text}: none of its vertices has had it.", *trace.notes))
    return " ".join((f"{text} now: it has ended, or has not come in.", *trace.notes))
