"""What a person should know beside the numbers: errors, waits and parked messages, in lines.

Pure: from a status to lines, the worst first. The live table has them below it, ``ebbflow status``
too.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime

from ebbflow.status.leftovers import describe_parked
from ebbflow.status.model import ErrorGroup, PipelineStatus, VertexStatus
from ebbflow.status.terminal.words import one_line

_STYLES = {"error": "red", "warning": "yellow", "info": ""}
_MOST_ERRORS = 3


@dataclass(frozen=True, slots=True)
class Remark:
    """One line about a vertex, or about the pipeline if ``vertex`` is empty."""

    level: str
    vertex: str
    text: str
    next_step: str = ""

    @property
    def style(self) -> str:
        """The colour of its level."""
        return _STYLES[self.level]


def list_remarks(status: PipelineStatus) -> list[Remark]:
    """Returns what there is to know, errors first, in the order of the vertices otherwise."""
    concerns = [
        Remark(c.level, c.vertex or "", one_line(c.what), one_line(c.next_step))
        for c in status.problems
    ]
    details = [remark for vertex in status.vertices for remark in _details(vertex, status.at)]
    return sorted([*concerns, *details], key=lambda remark: [*_STYLES].index(remark.level))


def _details(vertex: VertexStatus, at: datetime | None) -> Iterator[Remark]:
    name = vertex.name
    for group in vertex.errors[:_MOST_ERRORS]:
        if group.text not in (vertex.failure or ""):  # which a concern has told
            yield Remark("warning", name, describe_error(group))
    if vertex.parked.messages:
        yield Remark("info", name, one_line(describe_parked(vertex.parked, at)))
    if vertex.nack_reason and not any(g.text in vertex.nack_reason for g in vertex.errors):
        yield Remark("info", name, f"redelivered: {one_line(vertex.nack_reason)}")


def describe_error(group: ErrorGroup) -> str:
    """Returns an error on one line, with the line of code and how often it came."""
    first = group.text.partition("\n")[0]
    where = f" ({group.where})" if group.where else ""
    times = f", {group.count:,} times" if group.count > 1 else ""
    return one_line(f"{group.kind}: {first}{where}{times}")
