"""The health of a pipeline in three answers, for probes: alive, healthy, ready.

*Alive*: its run still tells how it is. Only this one calls for a restart of the process. *Healthy*:
no vertex is dead, stuck or stopped, none has waited long for a system that is down, and none falls
behind without end. *Ready*: healthy or just late, and every vertex has all its tasks at work.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ebbflow.status.json_form import dump_fields
from ebbflow.status.model import Concern, PipelineStatus

_LOST = "Start it again: ebbflow run; what it had in hand is replayed."


@dataclass(frozen=True, slots=True)
class Health:
    """How a pipeline is; ``problems`` say why it is not as it should be, errors first."""

    alive: bool
    healthy: bool
    ready: bool
    problems: tuple[Concern, ...] = ()

    @property
    def reason(self) -> str | None:
        """Why it is not healthy, in one line."""
        errors = [concern for concern in self.problems if concern.level == "error"]
        return "; ".join(_name(concern) + concern.what for concern in errors) or None

    def to_json(self) -> dict[str, Any]:
        """Returns it as the endpoints answer it."""
        document: dict[str, Any] = dump_fields(self)
        return document


def _name(concern: Concern) -> str:
    return "" if concern.vertex is None else f"{concern.vertex}: "


def judge_health(status: PipelineStatus) -> Health:
    """Returns how a pipeline is, from its status."""
    problems = status.problems
    if not status.answers and status.phase != "ended":
        lost = Concern("error", None, "the run does not answer any more", _LOST)
        return Health(False, False, False, (lost, *problems))
    if status.ended == "failed":
        failed = Concern("error", None, "the run has failed", "See what it said at its end.")
        problems = (failed, *problems)
    errors = [concern for concern in problems if concern.level == "error"]
    # A vertex that falls behind is at work: to send it nothing would not be for the run to decide.
    late = {vertex.name for vertex in status.vertices if vertex.falling_behind}
    is_up = all(concern.vertex in late for concern in errors)
    ready = is_up and status.ready and status.phase in ("running", "paused")
    healthy = not errors
    return Health(status.phase != "ended", healthy, ready, problems)
