"""The end of a run in words: what is left, where and why, whether it adds up, the dead letters.

Pure: from the last status to lines of text. A run that left messages says so first. Only a run that
drained says that its numbers add up, which means that every message that was read has ended.
``list_leftovers`` also says what a drain still waits for.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime

from ebbflow.domain.durations import format_duration
from ebbflow.domain.outcome import Counts
from ebbflow.engine.causes import MOST_SHOWN, CauseCount
from ebbflow.status.model import ErrorGroup, Parked, PipelineStatus, VertexStatus

_SOON = 24 * 60 * 60


def describe_end(
    status: PipelineStatus, ended: str, seconds: float, where: str = ""
) -> Iterator[str]:
    """Yields the lines of a run's end.

    ``ended`` is how it ended, and ``seconds`` how long it took. ``where`` are the options with
    which a command finds the pipeline.
    """
    if is_outdated(status):
        yield _describe_outdated(status, where)
    elif ended == "drained":
        yield from _adding_up(status)
    else:
        yield from _leaving(list_leftovers(status), ended)
    yield from _unmatched_tags(status)
    yield f"{ended} after {seconds:.1f} s"
    yield from _dead_letters(status, where)


def is_outdated(status: PipelineStatus) -> bool:
    """Returns whether the numbers are old because NATS did not reply at the end."""
    at, read = status.at, status.numbers_at
    return at is not None and read is not None and read < at


def _describe_outdated(status: PipelineStatus, where: str) -> str:
    assert status.numbers_at is not None
    return (
        f"NATS did not answer at the end: these numbers are those of "
        f"{clock_time(status.numbers_at, status.at)}. "
        f"See the last ones with: ebbflow status {status.pipeline}{where}"
    )


def _leaving(left: tuple[Leftover, ...], ended: str) -> Iterator[str]:
    if not left:
        yield "Nothing is left in flight."
        return
    messages = sum(each.messages for each in left)
    about = "" if all(each.exact for each in left) else "about "
    first = "Not drained: " if ended == "timeout" else ""
    noun = "message" if messages == 1 else "messages"
    words = f"{about}{messages:,} {noun} left" if messages else "not all vertices work"
    line = f"{first}{words}. The next run continues with what is left."
    yield line[0].upper() + line[1:]
    longest = max(len(each.vertex) for each in left)
    for each in left:
        yield f"  {each.vertex:<{longest}}  {each.words}"


# --- adding up ----------------------------------------------------------------------------------


def _adding_up(status: PipelineStatus) -> Iterator[str]:
    """Yields whether the counts add up from the sources to the sinks."""
    now = {vertex.name: vertex.counts for vertex in status.vertices}
    ever = {vertex.name: vertex.totals for vertex in status.vertices}
    if not any(counts.read for counts in now.values()):
        return
    uneven = [name for name, counts in ever.items() if counts.read != counts.ended]
    if uneven:
        which = ", ".join(uneven)
        yield f"Counts do not match for {which}: messages read differ from messages finished."
    elif adds_up(status, now):
        yield f"Adds up: {_account(status, now)}."
    elif adds_up(status, ever):
        yield f"Adds up, with earlier runs: {_account(status, ever)}."


def adds_up(status: PipelineStatus, counted: Mapping[str, Counts]) -> bool:
    """Returns whether vertices have read all messages written to them, each once.

    A redelivered message is read again, so redeliveries are subtracted.
    """
    writers, readers = {e.frm for e in status.edges}, {e.to for e in status.edges}
    written = sum(counted[name].written for name in writers)
    read = sum(counted[name].read - counted[name].redelivered for name in readers)
    return written == read


def _account(status: PipelineStatus, counted: Mapping[str, Counts]) -> str:
    writers, readers = {e.frm for e in status.edges}, {e.to for e in status.edges}
    sources = {name: c.read - c.redelivered for name, c in counted.items() if name not in readers}
    ends = {name: c.done + c.fallback for name, c in counted.items() if name not in writers}
    dropped = sum(counts.dropped for counts in counted.values())
    dead = sum(counts.dead_lettered for counts in counted.values())
    started = ", ".join(f"{count:,} read by {name}" for name, count in sources.items())
    ended = [f"{count:,} done by {name}" for name, count in ends.items()]
    ended += [f"{dropped:,} dropped"] if dropped else []
    ended += [f"{dead:,} dead letter{'' if dead == 1 else 's'}"] if dead else []
    return f"{started}; {', '.join(ended)}"


# --- tags without an edge -------------------------------------------------------------------------


def _unmatched_tags(status: PipelineStatus) -> Iterator[str]:
    """Yields vertices that forwarded nothing and whose edges all need tags: maybe a mistake."""
    for vertex in status.vertices:
        edges = [edge for edge in status.edges if edge.frm == vertex.name]
        needs_tags = edges and all(edge.tags for edge in edges)
        if needs_tags and vertex.counts.dropped and not vertex.counts.written:
            accepted = ", ".join(f"{edge.tags} ({edge.to})" for edge in edges)
            yield (
                f"{vertex.name} forwarded nothing. Tags that its edges accept: {accepted}. "
                "Compare them with the tags that its code sets."
            )


# --- dead letters -------------------------------------------------------------------------------


def _dead_letters(status: PipelineStatus, where: str) -> Iterator[str]:
    dead = sum(vertex.counts.dead_lettered for vertex in status.vertices)
    if not dead:
        return
    noun = "dead letter" if dead == 1 else "dead letters"
    yield f"{dead:,} {noun}; see why: ebbflow dlq list {status.pipeline}{where}"
    causes = [
        CauseCount(vertex.name, cause.text, cause.count)
        for vertex in status.vertices
        for cause in vertex.run_dead_letter_causes
        if not cause.rest
    ]
    causes.sort(key=lambda cause: -cause.count)
    for cause in causes[:MOST_SHOWN]:
        yield f"  {cause.group}: {_times(cause)}"
    if (others := dead - sum(cause.count for cause in causes[:MOST_SHOWN])) > 0:
        yield f"  {others:,} of other causes"


def _times(cause: CauseCount) -> str:
    return f"{cause.text}, {cause.count:,} times" if cause.count > 1 else cause.text


# --- what is left -------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Leftover:
    """The messages left at one vertex, and why.

    ``waiting`` messages are in its buffer or in flight, ``parked`` messages are due at ``next_due``
    or later, and ``at_source`` is how many the source still has, if it knows. ``exact`` is
    ``False`` if a number is an estimate. ``reasons`` say why the vertex makes no progress, worst
    first.
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
        """How many messages are left here, without those at the source."""
        return self.waiting + self.parked

    def __str__(self) -> str:
        return f"{self.vertex}: {self.words}"


def list_leftovers(status: PipelineStatus, draining: bool = False) -> tuple[Leftover, ...]:
    """Returns what is left at each vertex, from the sources on.

    Includes vertices that cannot work, even if nothing waits for them, and, while ``draining``,
    sources that are not exhausted.
    """
    at = status.at
    every = (_leftover(vertex, at, draining) for vertex in status.vertices)
    return tuple(left for left in every if left.messages or left.reasons)


def _leftover(vertex: VertexStatus, at: datetime | None, draining: bool) -> Leftover:
    in_flight = vertex.in_flight.messages if vertex.in_flight else 0
    waiting = max(vertex.pending, in_flight)
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
        yield f"in one call for {format_duration(vertex.in_call)}"
    elif vertex.condition in ("paused", "stuck"):
        yield vertex.words or vertex.condition
    if vertex.back_pressure is not None:
        yield f"the buffer of {vertex.back_pressure.to} is full"
    if draining and vertex.kind == "source" and not vertex.exhausted:
        yield "the source is not exhausted"


def describe_failure(vertex: VertexStatus) -> str:
    """Returns why a vertex fails, with the line of user code if it is known."""
    failure = vertex.failure or ""
    group = next((group for group in vertex.errors if _is_behind(group, failure)), None)
    where = f" ({group.where})" if group and group.where and group.where not in failure else ""
    return f"{failure}{where}"


def _is_behind(group: ErrorGroup, failure: str) -> bool:
    first = group.text.partition("\n")[0]
    return group.kind in failure and (first in failure or failure in f"{group.kind}: {first}")


# --- times --------------------------------------------------------------------------------------


def clock_time(moment: datetime, now: datetime | None) -> str:
    """Returns a time in this machine's time zone, with the date if it is not today."""
    local = moment.astimezone()
    same_day = now is not None and local.date() == now.astimezone().date()
    shown = f"{local:%H:%M:%S}" if same_day else f"{local:%Y-%m-%d %H:%M:%S}"
    seconds = (moment - now).total_seconds() if now is not None else 0.0
    return f"{shown}, in {format_duration(seconds)}" if 0 < seconds < _SOON else shown
