"""Conditions of vertices, what a person should do about them, and the health of a pipeline.

Pure functions: they turn the facts of a ``VertexStatus`` into its condition, its words and the
concerns of its pipeline. A dead or stuck vertex is an ``error``; a vertex that continues, but not
as it should, is a ``warning``.

``Health`` has three answers for probes. *Alive*: the run still reports. Only if it is not alive
should the process be restarted. *Healthy*: no vertex is dead, stuck or stopped, none has waited
long for a system that is down, and none falls behind. *Ready*: healthy or just late, and every
vertex has all its tasks at work.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime

from ebbflow.domain.durations import format_duration
from ebbflow.engine.outage import Waiting
from ebbflow.status.model import Concern, Condition, PipelineStatus, VertexStatus

WORKER_DIED = "a Python worker died; looking for the message that killed it"
"""The failure of a vertex whose worker was killed, or crashed on a message."""

SHARES_TASK = "shares a task with "
"""The failure of a vertex whose task also ran the vertex that failed, before that one's name."""

LATE = 60.0
"""Seconds that a message may wait before that is worth reporting."""

_LONG_CALL = 10.0
_START_AGAIN = "Start it again: ebbflow run; what it had in flight is replayed."
# The seconds after which a vertex that has messages and settles none of them is stuck.
STUCK_AFTER = 30.0
# The conditions that do not themselves explain why messages wait.
_AT_WORK = ("running", "busy", "exhausted")
# Spark's batches may take minutes.
_LONG_BATCH = 600.0


def judge(vertex: VertexStatus, at: datetime) -> Condition:
    """Returns the condition of a vertex of a run that continues."""
    if vertex.halted is not None:
        return "halted"
    if vertex.waiting is not None:
        return "waiting"
    if vertex.failure is not None:
        return "restarting"
    if vertex.paused:
        return "paused"
    if vertex.never_opened:
        return "starting"
    if vertex.silent is not None or _is_stuck(vertex, at):
        return "stuck"
    if vertex.in_flight is not None and vertex.in_flight.messages:
        return "busy"
    return "exhausted" if vertex.exhausted else "running"


def _is_stuck(vertex: VertexStatus, at: datetime) -> bool:
    in_flight = vertex.in_flight
    if in_flight is None or not in_flight.messages or vertex.back_pressure is not None:
        return False
    longest = _LONG_BATCH if vertex.batched else STUCK_AFTER
    return (at - in_flight.since).total_seconds() > longest


def describe_vertex(vertex: VertexStatus, at: datetime) -> str:
    """Returns what a vertex does and why, in one line."""
    if vertex.condition == "halted":
        return f"stopped taking messages until it is resumed: {vertex.halted}"
    if vertex.condition == "waiting" and vertex.waiting is not None:
        if vertex.never_opened:
            return f"cannot be opened: {vertex.waiting.what}; {_describe_tries(vertex.waiting)}"
        return describe_waiting(vertex.waiting, _where(vertex))
    if vertex.condition == "restarting":
        count = f" (restart {vertex.restarts})" if vertex.restarts else ""
        return f"restarting{count}: {vertex.failure}"
    if vertex.condition in ("paused", "ended"):
        return vertex.condition
    return ", ".join([_first_word(vertex), *_describe_work(vertex, at)])


def _first_word(vertex: VertexStatus) -> str:
    if vertex.condition == "exhausted":
        return "has no more messages"
    if vertex.condition == "starting":
        return "starting"
    word = "stuck" if vertex.condition == "stuck" else "running"
    return f"{word}, {vertex.restarts} restarts" if vertex.restarts else word


def _describe_work(vertex: VertexStatus, at: datetime) -> Iterator[str]:
    # Facts about a call are outdated if its executor was lost.
    if vertex.in_call is not None and vertex.silent_because is None:
        yield f"in a call for {format_duration(vertex.in_call)}"
    elif vertex.silent is not None:
        why = f" ({vertex.silent_because})" if vertex.silent_because else ""
        yield f"one of its tasks has not reported for {format_duration(vertex.silent)}{why}"
    elif vertex.condition == "stuck" and vertex.in_flight is not None:
        seconds = format_duration((at - vertex.in_flight.since).total_seconds())
        yield f"has held {vertex.in_flight.messages:,} messages for {seconds}"
    if vertex.back_pressure is not None:
        yield f"waits for room at {vertex.back_pressure.to}"
    if vertex.source_pending:
        yield f"{vertex.source_pending:,} waiting at the source"
    tally = vertex.publishing
    met = {
        "without a stream": tally.no_responders,
        "unanswered": tally.unanswered,
        f"refused ({tally.refusal})": tally.refused,
    }
    yield from (f"{number:,} times {what}" for what, number in met.items() if number)


def describe_waiting(waiting: Waiting, where: str = "") -> str:
    """Returns in words what a vertex waits for, since when, and when it retries.

    ``where`` is the line of user code that fails on every message.
    """
    times = _describe_tries(waiting)
    if not waiting.certain:
        return f"every message fails with {waiting.what}{where} ({times})"
    what = waiting.what if waiting.named else f"a system that is down ({waiting.what})"
    return f"waiting for {what} {times}"


def _describe_tries(waiting: Waiting) -> str:
    since = format_duration(waiting.seconds) if waiting.seconds >= 1 else "less than 1 s"
    next_in = f"in {format_duration(waiting.next_in)}" if waiting.next_in >= 1 else "now"
    return f"for {since}; retrying {next_in}"


def describe_unread(status: PipelineStatus, why: str) -> Concern:
    """Returns the concern that a run's numbers could not be read, with the last read's time."""
    of = f"; the numbers are those of {status.numbers_at:%H:%M:%S} UTC" if status.numbers_at else ""
    step = "See whether NATS is up; vertices continue as soon as it answers them."
    return Concern("warning", None, f"the status cannot be read from NATS: {why}{of}", step)


def list_concerns(status: PipelineStatus) -> tuple[Concern, ...]:
    """Returns what a person should look at, errors first, and what to do about each."""
    concerns = [concern for vertex in status.vertices for concern in _concerns_of(vertex, status)]
    return tuple(sorted(concerns, key=lambda concern: concern.level != "error"))


def _concerns_of(vertex: VertexStatus, status: PipelineStatus) -> Iterator[Concern]:
    name, words, pipeline = vertex.name, vertex.words, status.pipeline
    where = _where(vertex)
    match vertex.condition:
        case "halted":
            step = f"Look at its dead letters: ebbflow dlq list {pipeline} --vertex {name}. "
            yield Concern("error", name, words, step + f"Then: ebbflow resume {pipeline} {name}.")
        case "restarting" if (vertex.failure or "").startswith(SHARES_TASK):
            pass  # the concern of the vertex that failed is enough
        case "restarting":
            step = f"Correct the error{where} and start the pipeline again; nothing is lost."
            if vertex.failure == WORKER_DIED:
                step = "It continues by itself; a message that kills workers becomes a dead letter."
            yield Concern("error", name, words, step)
        case "stuck":
            yield Concern("error", name, words, _advise_stuck(vertex, pipeline))
        case "waiting":
            step = "See whether that system is up; the vertex continues by itself when it is."
            if vertex.waiting is not None and not vertex.waiting.certain:
                step = "Fix the code and restart; no message is lost."
            if vertex.never_opened:
                step = f"Correct its code{where}; the run keeps retrying."
            long = vertex.waiting is not None and vertex.waiting.seconds > STUCK_AFTER
            yield Concern("error" if long else "warning", name, words, step)
        case "paused":
            yield Concern("warning", name, "paused", f"Continue: ebbflow resume {pipeline} {name}.")
        case _ if vertex.in_call is not None and vertex.in_call > _LONG_CALL:
            step = "Wait, or limit the time of a call with limits.callTimeout."
            yield Concern("warning", name, words, step)
    if vertex.back_pressure is not None:
        to = vertex.back_pressure.to
        step = f"Give {to} more partitions, or make it faster."
        yield Concern("warning", name, f"waits for room in the buffer of {to}", step)
    if vertex.condition in _AT_WORK:
        yield from _concerns_of_backlog(vertex)
    if vertex.dead_letters:
        noun = "dead letter" if vertex.dead_letters == 1 else "dead letters"
        step = f"See why: ebbflow dlq list {pipeline} --vertex {name}."
        what = f"{vertex.dead_letters:,} {noun}{_main_cause(vertex)}"
        yield Concern("warning", name, what, step)


def _where(vertex: VertexStatus) -> str:
    """Returns the line of user code that raised the newest error, if that is known."""
    where = vertex.errors[0].where if vertex.errors else None
    return f" at {where}" if where else ""


def _advise_stuck(vertex: VertexStatus, pipeline: str) -> str:
    """Returns what to do about a vertex that makes no progress, from its known facts."""
    if vertex.silent_because is not None:
        return "If Spark has other workers, it restarts the task there; if not, start a worker."
    if vertex.in_call is not None:
        return "Wait, or end calls that hang with limits.callTimeout."
    if vertex.silent is not None:
        return (
            "See whether its worker runs and reaches NATS; Spark restarts the tasks of a lost "
            "worker."
        )
    return f"See whether NATS answers, and what it waits for: ebbflow status {pipeline}."


def _concerns_of_backlog(vertex: VertexStatus) -> Iterator[Concern]:
    """Yields that messages wait for long; an error only if the vertex falls behind."""
    age, grows, drain = (
        vertex.oldest_waiting_seconds,
        vertex.backlog_growing_seconds,
        vertex.drain_seconds,
    )
    if age is None or age < LATE:
        return
    late = f"{vertex.pending:,} messages wait, the oldest for {format_duration(age)}"
    if vertex.falling_behind:
        what = f"falls behind: {late}, and the backlog has grown for {format_duration(grows or 0)}"
        step = f"Give {vertex.name} more partitions, make it faster, or send it less."
        yield Concern("error", vertex.name, what, step)
    elif drain is not None:
        step = f"Nothing: at this rate it has caught up in about {format_duration(drain)}."
        yield Concern("warning", vertex.name, f"late: {late}", step)
    else:
        step = f"See whether it catches up; if not, give {vertex.name} more partitions."
        yield Concern("warning", vertex.name, f"late: {late}", step)


def _main_cause(vertex: VertexStatus) -> str:
    """Returns the most frequent cause of dead letters, with its number if it is not all of them."""
    cause = next((cause for cause in vertex.dead_letter_causes if not cause.rest), None)
    if cause is None:
        return ""
    share = "" if cause.count == vertex.dead_letters else f" ({cause.count:,} of them)"
    return f": {cause.text}{share}"


@dataclass(frozen=True, slots=True)
class Health:
    """The health of a pipeline; ``problems`` say what is wrong, errors first."""

    alive: bool
    healthy: bool
    ready: bool
    problems: tuple[Concern, ...] = ()

    @property
    def reason(self) -> str | None:
        """Why it is not healthy, in one line."""
        errors = [concern for concern in self.problems if concern.level == "error"]
        return "; ".join(map(str, errors)) or None


def judge_health(status: PipelineStatus) -> Health:
    """Returns the health of a pipeline, from its status."""
    problems = status.problems
    if not status.answers and status.phase != "ended":
        lost = Concern("error", None, "the run no longer responds", _START_AGAIN)
        return Health(False, False, False, (lost, *problems))
    if status.ended == "failed":
        failed = Concern("error", None, "the run has failed", "See its last log lines.")
        problems = (failed, *problems)
    errors = [concern for concern in problems if concern.level == "error"]
    # A vertex that falls behind is at work, so its pipeline is ready for more messages.
    late = {vertex.name for vertex in status.vertices if vertex.falling_behind}
    is_up = all(concern.vertex in late for concern in errors)
    ready = is_up and status.ready and status.phase in ("running", "paused")
    healthy = not errors
    return Health(status.phase != "ended", healthy, ready, problems)
