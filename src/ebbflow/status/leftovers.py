"""What is left in a pipeline: which messages are on their way, where, and why they do not get on.

A drain waits for them, and a run that ends before them says what it leaves to the next one. Pure:
from a status to words.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from ebbflow.status.json_form import dump_fields
from ebbflow.status.model import ErrorGroup, Parked, PipelineStatus, VertexStatus

_SOON = 24 * 60 * 60


@dataclass(frozen=True, slots=True)
class Leftover:
    """What is left at one vertex: messages that wait for it, those that are parked, and why.

    ``waiting`` messages are in its buffer or in hand, ``parked`` ones come back at ``next_due`` or
    later, and ``at_source`` is how many the source still has, if it knows. ``exact`` is ``False``
    if a number is an estimate. ``reasons`` say why the vertex does not get on, worst first.
    """

    vertex: str
    waiting: int = 0
    parked: int = 0
    next_due: datetime | None = None
    at_source: int | None = None
    reasons: tuple[str, ...] = ()
    exact: bool = True
    words: str = field(default="", compare=False)

    @property
    def messages(self) -> int:
        """How many messages are left here, those at the source aside."""
        return self.waiting + self.parked

    def to_json(self) -> dict[str, Any]:
        """Returns it as a run's summary has it."""
        document: dict[str, Any] = dump_fields(self)
        return document

    def __str__(self) -> str:
        return f"{self.vertex}: {self.words}"


def list_leftovers(status: PipelineStatus, draining: bool = False) -> tuple[Leftover, ...]:
    """Returns what is left at each vertex, from the sources on.

    A vertex that cannot work is among them even if nothing waits for it; while ``draining``, so is
    a source that has not come to its end.
    """
    at = status.at
    every = (_leftover(vertex, at, draining) for vertex in status.vertices)
    return tuple(left for left in every if left.messages or left.reasons)


def _leftover(vertex: VertexStatus, at: datetime | None, draining: bool) -> Leftover:
    in_hand = vertex.in_hand.messages if vertex.in_hand else 0
    waiting = max(vertex.pending, in_hand)
    reasons = tuple(_reasons(vertex, draining))
    return Leftover(
        vertex.name,
        waiting,
        vertex.parked.messages,
        vertex.parked.next_due,
        vertex.source_pending,
        reasons,
        vertex.pending_exact and vertex.parked.exact,
        "; ".join([*_numbers(vertex, waiting, at), *reasons]),
    )


def _numbers(vertex: VertexStatus, waiting: int, at: datetime | None) -> Iterator[str]:
    about = "" if vertex.pending_exact else "about "
    if waiting:
        yield f"{about}{waiting:,} waiting"
    if vertex.parked.messages:
        yield describe_parked(vertex.parked, at)
    if vertex.source_pending:
        yield f"{vertex.source_pending:,} at the source"


def describe_parked(parked: Parked, at: datetime | None) -> str:
    """Returns how many messages are parked, until when, and why."""
    about = "" if parked.exact else "about "
    why = f" ({parked.reasons[0].text})" if parked.reasons else ""
    if parked.next_due is None:
        return f"{about}{parked.messages:,} parked{why}"
    next_one = ", the next" if parked.messages > 1 else ""
    return (
        f"{about}{parked.messages:,} parked{next_one} until {clock_time(parked.next_due, at)}{why}"
    )


def _reasons(vertex: VertexStatus, draining: bool) -> Iterator[str]:
    if vertex.never_opened and vertex.failure:
        yield f"never opened: {describe_failure(vertex)}"
    elif vertex.halted or vertex.waiting:
        yield vertex.words
    elif vertex.failure:
        times = f" (restart {vertex.restarts})" if vertex.restarts else ""
        yield f"restarting{times}: {describe_failure(vertex)}"
    elif vertex.in_call is not None:
        yield f"in one call for {duration(vertex.in_call)}"
    elif vertex.condition in ("paused", "stuck"):
        yield vertex.words or vertex.condition
    if vertex.back_pressure is not None:
        yield f"the buffer of {vertex.back_pressure.to} is full"
    if draining and vertex.kind == "source" and not vertex.exhausted:
        yield "the source has not come to its end"


def describe_failure(vertex: VertexStatus) -> str:
    """Returns why a vertex fails, with the line of user code if that is known."""
    failure = vertex.failure or ""
    group = next((group for group in vertex.errors if _is_behind(group, failure)), None)
    where = f" ({group.where})" if group and group.where and group.where not in failure else ""
    return f"{failure}{where}"


def _is_behind(group: ErrorGroup, failure: str) -> bool:
    first = group.text.partition("\n")[0]
    return group.kind in failure and (first in failure or failure in f"{group.kind}: {first}")


def clock_time(moment: datetime, now: datetime | None) -> str:
    """Returns a time as a clock of this machine shows it, with the date if it is not today."""
    local = moment.astimezone()
    same_day = now is not None and local.date() == now.astimezone().date()
    shown = f"{local:%H:%M:%S}" if same_day else f"{local:%Y-%m-%d %H:%M:%S}"
    seconds = (moment - now).total_seconds() if now is not None else 0.0
    return f"{shown}, in {duration(seconds)}" if 0 < seconds < _SOON else shown


def duration(seconds: float) -> str:
    """Returns a time that has passed or is to pass, in the two largest units at most."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    minutes, rest = divmod(whole, 60)
    if minutes < 60:
        return f"{minutes} min {rest} s" if rest and minutes < 10 else f"{minutes} min"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if minutes else f"{hours} h"
