"""The state of a pipeline: the one model on which every view of it is based.

The live table, the commands, the web UI, the metrics and the end of a run are such views.

``PipelineStatus`` is the whole. The run makes one about twice a second, from positions, from the
state of its streams and from its tasks' events, and publishes it once a second, so that any other
process can read it. ``StatusSample`` is its short form for charts over time. All of it is plain
data; times have the time zone UTC, and durations are in seconds.
"""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any, Literal

from ebbflow.accounts.numbers import Histogram
from ebbflow.domain import records
from ebbflow.domain.outcome import Counts
from ebbflow.domain.spelling import no_attribute
from ebbflow.engine.causes import MOST_SHOWN, CauseCount
from ebbflow.engine.outage import Waiting
from ebbflow.nats.publish import Tally

Phase = Literal["starting", "running", "paused", "stopping", "ended"]
Ended = Literal["drained", "timeout", "stopped", "failed"]
Condition = Literal[
    "starting",
    "running",
    "busy",
    "waiting",
    "restarting",
    "halted",
    "paused",
    "stuck",
    "exhausted",
    "ended",
]
"""What a vertex does; from ``restarting`` to ``stuck`` it needs attention, except ``paused``."""
Level = Literal["error", "warning", "info"]
STAGES = ("read", "call", "publish", "settle")
"""The stages of a chunk: gathered, decided by user code, published, recorded as done."""


@dataclass(frozen=True, slots=True)
class Concern:
    """Something that a person should know, and what to do next.

    ``vertex`` is ``None`` if it concerns the whole pipeline. An ``error`` makes it unhealthy, and
    ``info`` needs no action.
    """

    level: Level
    vertex: str | None
    what: str
    next_step: str = ""

    def __str__(self) -> str:
        return self.what if self.vertex is None else f"{self.vertex}: {self.what}"


@dataclass(frozen=True, slots=True)
class Cause:
    """A reason, and how many messages had it.

    Similar reasons are one, with ``…`` where they differ. ``rest`` marks the reasons that a list
    has no room for, or has not counted yet: so a list adds up.
    """

    text: str
    count: int
    rest: bool = False


def list_causes(
    causes: Sequence[CauseCount], total: int = 0, most: int = MOST_SHOWN
) -> tuple[Cause, ...]:
    """Returns the first of some causes, sorted by frequency, and the rest up to a total."""
    shown = [Cause(cause.text, cause.count) for cause in causes[:most]]
    if more := causes[most:]:
        noun = "cause" if len(more) == 1 else "causes"
        others = sum(cause.count for cause in more)
        shown.append(Cause(f"and {len(more):,} more {noun}", others, rest=True))
    if (uncounted := total - sum(cause.count for cause in shown)) > 0:
        shown.append(Cause("not counted yet", uncounted, rest=True))
    return tuple(shown)


@dataclass(frozen=True, slots=True)
class WorkInFlight:
    """The messages that tasks have read and not settled, and when they read the oldest."""

    messages: int
    since: datetime


@dataclass(frozen=True, slots=True)
class Parked:
    """The messages that wait for their redelivery, and when the next of them is due.

    ``exact`` is ``False`` if their number is so large that it is an estimate.
    """

    messages: int
    next_due: datetime | None = None
    reasons: tuple[Cause, ...] = ()
    exact: bool = True


NONE_PARKED = Parked(0)


@dataclass(frozen=True, slots=True)
class BackPressure:
    """A full buffer of the next vertex ``to``, for which this vertex waits."""

    to: str
    full_since: datetime


@dataclass(frozen=True, slots=True)
class ErrorGroup:
    """Similar errors: of one kind, at one line of code, with the same or a similar text.

    ``where`` is the line of user code as ``file.py:12``, if there is one. ``message_id`` is the
    last message that failed with it, if any, and ``traceback`` is the last one.
    """

    kind: str
    text: str
    where: str | None
    count: int
    first: datetime
    last: datetime
    message_id: str | None = None
    traceback: str | None = None


@dataclass(frozen=True, slots=True)
class Latency:
    """The time that a stage of a chunk takes, over the last ``chunks``."""

    p50: float
    p99: float
    mean: float
    chunks: int


@dataclass(frozen=True, slots=True)
class ChunkTimes:
    """One chunk of a task: when it began, the seconds of each stage, and its rows."""

    at: datetime
    partition: int
    rows: int
    read: float
    call: float
    publish: float
    settle: float


@dataclass(frozen=True, slots=True)
class VertexStatus:
    """The state of one vertex.

    ``words`` say the condition in a line. ``counts`` are of this run, ``totals`` since the pipeline
    was first started. ``pending`` messages wait in its buffer, which is an estimate unless
    ``pending_exact``; ``source_pending`` wait at its source, if the source knows.
    ``oldest_waiting_seconds`` is how long the oldest message in its buffer has waited,
    ``drain_seconds`` the time until its backlog is empty at the present rate, and
    ``backlog_growing_seconds`` for how long the backlog has grown; ``falling_behind`` if it keeps
    growing and the oldest message is late.
    ``in_call`` is for how many seconds user code has been in one call, if that is long.
    ``dead_letters`` are stored now, with ``dead_letter_causes``; ``run_dead_letter_causes`` are
    those of this run. ``failure`` says why it makes no progress, ``waiting`` that it waits
    for a system that is down, ``halted`` that its breaker has stopped it. ``never_opened``
    if its user code has not been opened in this run yet. ``partitions_up`` tasks are at work.
    ``silent`` is for how many seconds one of its tasks has not reported, if that is long, and
    ``silent_because`` is the reason, as far as Spark knows it.
    ``batched`` if Spark works on whole batches of its messages, which may take long.
    ``error_count`` counts all errors of this run, ``errors`` are the newest groups of them.
    ``spreads`` are the durations of this run by stage of a chunk, and of a ``message`` in a call.
    """

    name: str
    kind: str = "map"
    partitions: int = 1
    condition: Condition = "running"
    words: str = ""
    counts: Counts = field(default_factory=Counts)
    totals: Counts = field(default_factory=Counts)
    rate_in: float = 0.0
    rate_out: float = 0.0
    pending: int = 0
    pending_exact: bool = True
    oldest_waiting_seconds: float | None = None
    drain_seconds: float | None = None
    backlog_growing_seconds: float | None = None
    falling_behind: bool = False
    source_pending: int | None = None
    in_flight: WorkInFlight | None = None
    in_call: float | None = None
    parked: Parked = NONE_PARKED
    dead_letters: int = 0
    dead_letter_causes: tuple[Cause, ...] = ()
    run_dead_letter_causes: tuple[Cause, ...] = ()
    back_pressure: BackPressure | None = None
    watermark: datetime | None = None
    restarts: int = 0
    failure: str | None = None
    errors: tuple[ErrorGroup, ...] = ()
    error_count: int = 0
    nack_reasons: tuple[Cause, ...] = ()
    nack_reason: str | None = None
    latency: dict[str, Latency] = field(default_factory=dict)
    spreads: dict[str, Histogram] = field(default_factory=dict)
    publishing: Tally = field(default_factory=Tally)
    waiting: Waiting | None = None
    halted: str | None = None
    exhausted: bool = False
    paused: bool = False
    never_opened: bool = False
    partitions_up: int = 0
    silent: float | None = None
    silent_because: str | None = None
    batched: bool = False

    if not TYPE_CHECKING:  # checkers know the names

        def __getattr__(self, name: str) -> Any:
            """Raises for an unknown name; the error says which one was probably meant."""
            raise no_attribute(VertexStatus, name)


@dataclass(frozen=True, slots=True)
class EdgeStatus:
    """An edge: the messages that took it in this run, their rate, and the backlog at its end.

    ``pending`` is of the whole buffer of ``to``, which may have several edges. ``tags`` is the
    condition in words, empty if all messages follow the edge. ``inline`` if a task of ``frm`` runs
    ``to`` itself at the moment, without the buffer.
    """

    frm: str
    to: str
    tags: str = ""
    rate: float = 0.0
    written: int = 0
    pending: int = 0
    inline: bool = False


_COLUMNS = ("vertex", "state", "read", "waiting")


def html_table(
    title: str, columns: Sequence[str], rows: Sequence[Sequence[str]], below: Sequence[str]
) -> str:
    """Returns a titled table for notebooks, with lines below it; every text is escaped."""
    head = "".join(f"<th style='text-align:left'>{html.escape(each)}</th>" for each in columns)
    body = "".join(
        "<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in row) + "</tr>" for row in rows
    )
    lines = "".join(f"<div>{html.escape(line)}</div>" for line in below)
    caption = f"<b>{html.escape(title)}</b>"
    return f"<div>{caption}<table><tr>{head}</tr>{body}</table>{lines}</div>"


@dataclass(frozen=True, slots=True, repr=False)
class PipelineStatus:
    """The state of a pipeline at one moment.

    ``run`` is the id of the run, ``began``, ``host`` and ``pid`` are its start and process.
    ``ended`` says how it ended, once ``phase`` is ``ended``. ``answers`` is ``False`` if the run
    has not reported for so long that it is lost. ``numbers_at`` is when counts and backlogs were
    read, which is before ``at`` while NATS does not reply. ``links`` are addresses for people, such
    as ``ui`` or ``spark_ui``.
    """

    pipeline: str
    kind: str = "Pipeline"
    run: str = ""
    host: str = ""
    pid: int = 0
    phase: Phase = "running"
    ended: Ended | None = None
    began: datetime | None = None
    at: datetime | None = None
    numbers_at: datetime | None = None
    vertices: tuple[VertexStatus, ...] = ()
    edges: tuple[EdgeStatus, ...] = ()
    links: dict[str, str] = field(default_factory=dict)
    ready: bool = False
    answers: bool = True
    problems: tuple[Concern, ...] = ()

    def __getitem__(self, name: str) -> VertexStatus:
        """Returns the vertex of this name; ``KeyError`` if there is none."""
        vertex = self.vertex(name)
        if vertex is None:
            raise KeyError(name)
        return vertex

    def vertex(self, name: str) -> VertexStatus | None:
        """Returns the vertex of this name, if there is one."""
        return next((vertex for vertex in self.vertices if vertex.name == name), None)

    def _rows(self) -> list[tuple[str, ...]]:
        return [
            (each.name, each.words or each.condition, *map(str, (each.counts.read, each.pending)))
            for each in self.vertices
        ]

    def __repr__(self) -> str:
        return str(self)  # what a prompt shows; all fields would fill screens

    def __str__(self) -> str:
        """Returns the phase, a line for each vertex, and what needs attention."""
        table = [(*_COLUMNS,), *self._rows()] if self.vertices else []
        widths = [max(map(len, column)) for column in zip(*table, strict=True)]
        lines = [
            "  " + "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True))
            for row in table
        ]
        return "\n".join(line.rstrip() for line in [self._title(), *lines, *self._advice()])

    def _repr_html_(self) -> str:
        return html_table(self._title(), _COLUMNS, self._rows(), self._advice())

    def _title(self) -> str:
        ended = f" ({self.ended})" if self.ended else ""
        return f"{self.pipeline}: {self.phase}{ended}"

    def _advice(self) -> list[str]:
        steps = [(str(concern), concern.next_step) for concern in self.problems]
        return [f"{what} → {step}" if step else what for what, step in steps]

    def to_json(self) -> dict[str, Any]:
        """Returns it as ``ebbflow status --json`` and the web UI's API show it."""
        return records.to_plain(self)

    @classmethod
    def from_json(cls, raw: Mapping[str, Any]) -> PipelineStatus:
        """Returns the status from what ``to_json`` returned, also in another version."""
        return records.from_plain(cls, raw)

    def to_bytes(self) -> bytes:
        """Returns it as it is published."""
        return records.to_json(self)

    @classmethod
    def from_bytes(cls, raw: bytes) -> PipelineStatus:
        """Returns the status from what was published."""
        return records.from_json(cls, raw)


@dataclass(frozen=True, slots=True)
class VertexSample:
    """The numbers of one vertex for charts; the counts are totals, from which rates follow.

    ``exact`` is ``False`` if ``pending`` or ``parked`` is an estimate.
    """

    read: int = 0
    written: int = 0
    redelivered: int = 0
    dead_lettered: int = 0
    pending: int = 0
    parked: int = 0
    dead_letters: int = 0
    oldest_waiting_seconds: float | None = None
    exact: bool = True


@dataclass(frozen=True, slots=True)
class StatusSample:
    """The numbers of a pipeline at one moment, by vertex."""

    at: datetime
    vertices: dict[str, VertexSample]
