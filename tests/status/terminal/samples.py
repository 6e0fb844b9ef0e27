"""Statuses of small pipelines, as displays receive them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any

from ebbflow.domain.outcome import Counts
from ebbflow.status.conditions import describe_vertex, judge, list_concerns
from ebbflow.status.model import (
    Cause,
    EdgeStatus,
    ErrorGroup,
    Parked,
    PipelineStatus,
    VertexStatus,
    WorkInFlight,
)

NOON = datetime(2026, 11, 16, 12, 0, tzinfo=UTC)


def vertex(name: str = "in", read: int = 0, **facts: Any) -> VertexStatus:
    """A vertex with the condition and the wording that follow from its facts."""
    counts = Counts(read=read, done=read)
    plain = VertexStatus(name, **{"counts": counts, "totals": counts} | facts)
    judged = VertexStatus(**_fields(plain) | {"condition": judge(plain, NOON)})
    return VertexStatus(**_fields(judged) | {"words": describe_vertex(judged, NOON)})


def _fields(status: Any) -> dict[str, Any]:
    return {name: getattr(status, name) for name in status.__dataclass_fields__}


def pipeline(*vertices: VertexStatus, **facts: Any) -> PipelineStatus:
    """A pipeline of these vertices, each read by the next one."""
    pairs = pairwise(vertices)
    edges = tuple(EdgeStatus(one.name, other.name) for one, other in pairs)
    usual = {"vertices": vertices, "edges": edges, "at": NOON, "phase": "running"}
    plain = PipelineStatus("bugs", **usual | facts)
    return PipelineStatus(**_fields(plain) | {"problems": list_concerns(plain)})


def error(kind: str, text: str, where: str | None = None, count: int = 1) -> ErrorGroup:
    """A group of errors that were met at noon."""
    return ErrorGroup(kind, text, where, count, NOON, NOON)


LONG = (
    "SparkRuntimeException: [CANNOT_PARSE_JSON_FIELD] Cannot parse the field name 'total' and the "
    "value x of the JSON token type VALUE_STRING to target Spark data type INT. SQLSTATE: 2203G"
)


def troubled() -> PipelineStatus:
    """Six messages: one parked, four in a slow map, one dead-lettered; one vertex never opens."""
    parked = Parked(1, NOON + timedelta(minutes=7), (Cause("waits for the moon", 1),))
    look = vertex(
        "look",
        read=11,
        kind="map",
        counts=Counts(read=11, written=4, done=4, redelivered=6, dead_lettered=1),
        parked=parked,
        nack_reason="waits for the moon",
        dead_letters=1,
        dead_letter_causes=(Cause("AttributeError: 'Datum' object has no attribute 'val'", 1),),
        run_dead_letter_causes=(Cause("AttributeError: 'Datum' object has no attribute 'val'", 1),),
    )
    slow = vertex(
        "slow", pending=4, in_call=63.0, in_flight=WorkInFlight(4, NOON - timedelta(seconds=63))
    )
    opens = vertex(
        "opens",
        kind="sink",
        restarts=7,
        failure="KeyError: 'password'",
        never_opened=True,
        errors=(error("KeyError", "'password'", "steps.py:6", 7),),
    )
    return pipeline(vertex("in", 6, kind="source", exhausted=True), look, slow, opens)
