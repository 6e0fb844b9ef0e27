"""The past of a message: audit rows of the table, and of the stream that are not in it yet."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ebbflow.domain.errors import EbbflowError
from ebbflow.engine.audit import ToldRows, read_audit, to_table
from ebbflow.nats import api
from ebbflow.nats.link import Link
from ebbflow.operations.tracing.way import Family, TraceStep
from ebbflow.runtime.provision import lineage
from ebbflow.spark.audit.reading import AuditFolder, open_folder
from ebbflow.streams.audit import AuditStream
from ebbflow.streams.catalogue import AUDIT_TABLE
from ebbflow.streams.names import Names


@dataclass(frozen=True, slots=True)
class Past:
    """What became of a message. ``kept`` is whether an audit table is kept at all."""

    steps: tuple[TraceStep, ...] = ()
    kept: bool = False
    notes: tuple[str, ...] = ()

    @property
    def has_ended(self) -> bool:
        """Whether the message has ended somewhere without leaving anything behind."""
        return any(step.final and not step.sent_to for step in self.steps)


def read_past(link: Link, names: Names, streams: Sequence[str], family: Family) -> Past:
    """Returns what is known; notes say what could not be read. Not on the link's loop."""
    if names.audit not in streams:
        return Past()
    info = link.run(api.call(link.client, f"STREAM.INFO.{names.audit}"))
    table = json.loads(info["config"]["metadata"][AUDIT_TABLE])
    life = link.run(lineage(link, names.pipeline))
    # The stream first: what is moved to the table meanwhile is met there.
    steps = [*_read_stream(link, names, life, family)]
    notes: list[str] = []
    try:
        folder = open_folder(table)
        steps += _read_table(folder, names.pipeline, life, family)
    except (EbbflowError, OSError) as error:
        notes.append(f"The audit table cannot be read here: {error}")
    return Past(tuple(dict.fromkeys(steps)), True, tuple(notes))


def _read_stream(link: Link, names: Names, life: str, family: Family) -> Iterator[TraceStep]:
    for frame, payload in link.run(AuditStream(link, names, life).read_unwritten()):
        told = read_audit(payload)
        if found := family.find(told.varied["id"]):
            rows = ToldRows(frame.vertex, frame.partition, told)
            yield from map(_to_step, to_table([rows], names.pipeline, "").take(found).to_pylist())


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
