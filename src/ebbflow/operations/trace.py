"""Tracing a message of any pipeline: its outcome at every vertex, and where it is now.

``trace_message`` reads the audit table, the audit rows that are not in it yet, and every stream
that holds messages. Without an audit table it finds where the message is now, and says what to add
to the spec to see its past as well. It works whether the pipeline runs or not, from anywhere that
reaches its NATS server.

For a request that has ended, it reads the record; for an open request, the trail after the last
checkpoint, and the buffer of the source if no vertex has read the request yet.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from ebbflow.accounts.completion import RequestStep
from ebbflow.connectors.serving.requests import OpenRequest
from ebbflow.connectors.serving.store import (
    RequestRecords,
    ServedRequest,
    read_life,
    read_unsettled_requests,
)
from ebbflow.domain.errors import EbbflowError
from ebbflow.domain.records import to_plain
from ebbflow.engine.account import REDELIVERED
from ebbflow.nats import api
from ebbflow.nats.link import Link
from ebbflow.nats.locate import open_link_to_pipeline
from ebbflow.operations.trace_search import Family, Search, Whereabouts
from ebbflow.runtime.provision import lineage
from ebbflow.spark.audit.files import AuditFolder, folder_of, read_format
from ebbflow.status.model import WorkInFlight
from ebbflow.status.stored import read_status
from ebbflow.streams.answer_bucket import TrailFrame, find_bucket, read_trail_after
from ebbflow.streams.audit import AuditStream
from ebbflow.streams.audit_rows import read_audit, to_table
from ebbflow.streams.catalogue import AUDIT_TABLE
from ebbflow.streams.names import PREFIX, Names
from ebbflow.streams.provision import explain_unknown
from ebbflow.streams.trail_rows import TrailRow

_LOOKS = 3
_NOT_KEPT = (
    "The outcomes of messages are not kept. To keep them, add to the spec: "
    "audit: {options: {path: FOLDER}}"
)


@dataclass(frozen=True, slots=True)
class TraceStep:
    """What a vertex did with one delivery of a message. ``due`` is when it is redelivered.

    ``sent_to`` are the vertices that its outputs were sent to.
    """

    at: datetime
    vertex: str
    message: str
    delivery: int
    outcome: str
    reason: str | None = None
    error: str | None = None
    due: datetime | None = None
    sent_to: tuple[str, ...] = ()

    @property
    def final(self) -> bool:
        """Whether the message has ended at the vertex."""
        return self.outcome != REDELIVERED


@dataclass(frozen=True, slots=True)
class MessageTrace:
    """The history of a message and of its outputs.

    ``kept`` is whether the pipeline keeps outcomes of messages, ``request`` the known facts about
    the request if it is one, and ``notes`` say what could not be read, and what to do about it.
    """

    pipeline: str
    id: str
    steps: tuple[TraceStep, ...] = ()
    now: tuple[Whereabouts, ...] = ()
    kept: bool = False
    notes: tuple[str, ...] = ()
    request: ServedRequest | None = None

    @property
    def is_known(self) -> bool:
        """Whether anything is known of the message."""
        return bool(self.steps or self.now or self.request)

    def to_json(self) -> dict[str, Any]:
        """Returns everything as JSON types; times are in ISO 8601."""
        return {
            "pipeline": self.pipeline,
            "id": self.id,
            "now": [to_plain(place) | {"words": place.words} for place in self.now],
            "steps": [to_plain(step) | {"final": step.final} for step in self.steps],
            "kept": self.kept,
            "notes": list(self.notes),
            "request": self.request.describe() if self.request else None,
        }


def trace_message(
    pipeline: str, message: str, *, state: str | Path = ".ebbflow", nats: str | None = None
) -> MessageTrace:
    """Returns the history of a message and of its outputs; blocks until it is read.

    Starts an embedded server that is not running, for as long as it takes. ``SetupError`` if the
    pipeline has not run there, ``EbbflowError`` if the message is unknown.
    """
    names = Names(pipeline)
    with open_link_to_pipeline(Path(state), nats, inbox=names.inbox) as link:
        trace = trace_on_link(link, names, message)
    if not trace.is_known:
        raise EbbflowError(_explain_unknown(trace))
    return trace


def trace_on_link(link: Link, names: Names, message: str) -> MessageTrace:
    """Returns the same over an open link, also if the message is unknown.

    Call it from any thread except that of the link.
    """
    streams = link.run(api.list_streams(link.client, PREFIX))
    if names.dead_letters not in streams:
        raise explain_unknown(names.pipeline, streams)
    family, in_flight = Family(message), _read_in_flight(link, names)
    for _ in range(_LOOKS):
        # The places first: a message that moves meanwhile is shown where it was. A message that
        # moves from a stream not yet searched to one already searched is found by another search.
        places = link.run(Search(link, names, streams, family, in_flight).look())
        past = read_past(link, names, streams, family)
        request = link.run(find_request(link, names, streams, message))
        if places or past.has_ended or request:
            break
    return _assemble(names.pipeline, message, places, past, request)


def _read_in_flight(link: Link, names: Names) -> dict[str, WorkInFlight]:
    """Returns the messages in flight of vertices with one task; none if the pipeline is ended."""
    try:
        status = read_status(link, names)
    except (EbbflowError, api.ApiError):  # it has never run, or not all of it can be read
        return {}
    if status.phase == "ended":
        return {}
    return {v.name: v.in_flight for v in status.vertices if v.in_flight and v.partitions == 1}


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
    unsettled = ("buffer", "in flight")
    now = [p for p in places if p.where not in unsettled or (p.vertex, p.message) not in ended]
    notes = past.notes if past.kept or request else (*past.notes, _NOT_KEPT)
    in_order = tuple(sorted(steps, key=lambda step: step.at))
    return MessageTrace(pipeline, message, in_order, tuple(now), past.kept, notes, request)


def _explain_unknown(trace: MessageTrace) -> str:
    text = f"There is no message {trace.id!r} in {trace.pipeline}"
    if trace.kept:
        return " ".join((f"{text}: none of its vertices has received it.", *trace.notes))
    return " ".join((f"{text} now: it has ended, or has not arrived.", *trace.notes))


# --- the past of a message ----------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Past:
    """The past of a message. ``kept`` is whether an audit table is kept at all."""

    steps: tuple[TraceStep, ...] = ()
    kept: bool = False
    notes: tuple[str, ...] = ()

    @property
    def has_ended(self) -> bool:
        """Whether the message has ended somewhere without output."""
        return any(step.final and not step.sent_to for step in self.steps)


def read_past(link: Link, names: Names, streams: Sequence[str], family: Family) -> Past:
    """Returns the past; its notes say what could not be read. Not called on the link's loop."""
    if names.audit not in streams:
        return Past()
    info = link.run(api.call(link.client, f"STREAM.INFO.{names.audit}"))
    table = json.loads(info["config"]["metadata"][AUDIT_TABLE])
    life = link.run(lineage(link, names.pipeline))
    # The stream first: rows that move to the table meanwhile are found there.
    steps = [*_read_stream(link, names, life, family)]
    notes: list[str] = []
    try:
        steps += _read_table(_open_table(table), names.pipeline, life, family)
    except (EbbflowError, OSError) as error:
        notes.append(f"The audit table cannot be read here: {error}")
    return Past(tuple(dict.fromkeys(steps)), True, tuple(notes))


def _read_stream(link: Link, names: Names, life: str, family: Family) -> Iterator[TraceStep]:
    for frame, payload in link.run(AuditStream(link, names, life).read_unwritten()):
        columns = read_audit(payload)
        if found := family.find(columns.varied["id"]):
            rows = frame.rows(columns)
            yield from map(_to_step, to_table([rows], names.pipeline, "").take(found).to_pylist())


def _open_table(table: Mapping[str, Any]) -> AuditFolder:
    """Returns a pipeline's table; uses Spark, which takes seconds to start, only if it must."""
    format = read_format(table)
    if (folder := folder_of(format)) is not None:
        return folder
    from ebbflow.spark.audit.spark_query import SparkTable

    return SparkTable(format)


def _read_table(
    folder: AuditFolder, pipeline: str, life: str, family: Family
) -> Iterator[TraceStep]:
    ids = (family.own, *family.ancestors)
    for row in folder.find(f"{pipeline}-{life}-", ids, family.prefix):
        yield _to_step(row)


def _to_step(row: Mapping[str, Any]) -> TraceStep:
    return TraceStep(
        at=row["ended"],
        vertex=row["vertex"],
        message=row["id"],
        delivery=row["deliveries"],
        outcome=row["outcome"],
        reason=row["reason"],
        error=row["error"],
        due=row["due"],
        sent_to=tuple(filter(None, (row["sent_to"] or "").split(","))),
    )


# --- requests -----------------------------------------------------------------------------------


async def find_request(
    link: Link, names: Names, streams: Sequence[str], request: str
) -> ServedRequest | None:
    """Returns the known facts about a request; ``None`` if it is unknown or was forgotten."""
    if names.trail not in streams:
        return None
    bucket = await find_bucket(link, names.pipeline)
    records = RequestRecords(link.client, bucket, names.pipeline)
    if (ended := await records.read(request)) is not None:
        return ended
    life = await read_life(link.client, names.trail)
    for vertex, checkpoint in (await records.read_checkpoints(life)).items():
        # Read before the trail: a row that leaves the buffer meanwhile is in the trail by then.
        partitions = sum(names.buffer(vertex, number) in streams for number in range(len(streams)))
        waiting = await read_unsettled_requests(link, names, vertex, partitions)
        history = OpenRequestHistory(vertex, request, waiting.get(request))
        async for frames in read_trail_after(link.client, names, checkpoint.begin):
            history.take(frames)
        if (known := history.describe()) is not None:
            return known
    return None


def step_of_request(step: RequestStep) -> TraceStep:
    """Returns a step of a request as a step of a message."""
    return TraceStep(
        step.at,
        step.vertex,
        step.message,
        step.deliveries,
        step.outcome,
        step.reason,
        step.error,
        step.due,
    )


class OpenRequestHistory:
    """The history of a request that has no record yet.

    ``accepted`` is when it was accepted, if its row still waits.
    """

    def __init__(self, source: str, request: str, accepted: datetime | None) -> None:
        self._source = source
        self._request = request
        self._is_waiting = accepted is not None
        self._open = OpenRequest(source, request, accepted) if accepted else None

    def take(self, frames: Sequence[TrailFrame]) -> None:
        """Adds the rows of the request in some frames of the trail."""
        for frame in frames:
            for row in frame.rows:
                if row.request == self._request:
                    self._note(frame.vertex, row)

    def _note(self, vertex: str, row: TrailRow) -> None:
        if self._open is None:
            self._open = OpenRequest(self._source, self._request, row.at)
        self._open.completion.add(vertex, row)
        if self._open.end is None and self._open.completion.has_ended:
            self._open.finish(row.at)

    def describe(self) -> ServedRequest | None:
        """Returns the known facts; ``None`` if the request is not of this source."""
        if self._open is None or not (self._is_waiting or self._open.completion.has_root_row):
            return None
        return self._open.end or self._open.describe()
