"""The end of a run in words: what is left, where and why, what adds up, and the dead letters.

Pure: from the last status to lines of text. A run that left something says so before anything
else; that its numbers add up is said only of a run that drained, where it means that every message
that came in has come to an end.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from ebbflow.domain.outcome import Counts
from ebbflow.engine.causes import MOST_SHOWN, CauseCount
from ebbflow.status.leftovers import Leftover, clock_time, list_leftovers
from ebbflow.status.model import PipelineStatus


def describe_end(
    status: PipelineStatus, ended: str, seconds: float, where: str = ""
) -> Iterator[str]:
    """Yields the lines of a run's end. ``where`` are options that lead a command to the pipeline.

    ``ended`` is how, and ``seconds`` is how long the run took.
    """
    if is_outdated(status):
        yield _describe_outdated(status, where)
    elif ended == "drained":
        yield from _adding_up(status)
    else:
        yield from _leaving(list_leftovers(status), ended)
    yield f"{ended} after {seconds:.1f} s"
    yield from _dead_letters(status, where)


def is_outdated(status: PipelineStatus) -> bool:
    """Returns whether NATS did not answer at the end, so that the numbers are earlier ones."""
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
        yield "Nothing is left on its way."
        return
    messages = sum(each.messages for each in left)
    about = "" if all(each.exact for each in left) else "about "
    first = "Not drained: " if ended == "timeout" else ""
    noun = "message" if messages == 1 else "messages"
    words = f"{about}{messages:,} {noun} left" if messages else "not all vertices work"
    line = f"{first}{words}. The next run goes on with what is left."
    yield line[0].upper() + line[1:]
    longest = max(len(each.vertex) for each in left)
    for each in left:
        yield f"  {each.vertex:<{longest}}  {each.words}"


# --- adding up ----------------------------------------------------------------------------------


def _adding_up(status: PipelineStatus) -> Iterator[str]:
    """Yields that everything adds up from the sources to the ends, if it does."""
    now = {vertex.name: vertex.counts for vertex in status.vertices}
    ever = {vertex.name: vertex.totals for vertex in status.vertices}
    if not any(counts.read for counts in now.values()):
        return
    uneven = [name for name, counts in ever.items() if counts.read != counts.ended]
    if uneven:
        yield f"Does not add up: {', '.join(uneven)} read more or less than ended."
    elif adds_up(status, now):
        yield f"Adds up: {_account(status, now)}."
    elif adds_up(status, ever):
        yield f"Adds up, with earlier runs: {_account(status, ever)}."


def adds_up(status: PipelineStatus, counted: Mapping[str, Counts]) -> bool:
    """Returns whether all that vertices wrote for others was taken by these, each message once.

    A message that was redelivered is taken again, so what was taken is read without these.
    """
    writers, takers = {e.frm for e in status.edges}, {e.to for e in status.edges}
    written = sum(counted[name].written for name in writers)
    taken = sum(counted[name].read - counted[name].redelivered for name in takers)
    return written == taken


def _account(status: PipelineStatus, counted: Mapping[str, Counts]) -> str:
    writers, takers = {e.frm for e in status.edges}, {e.to for e in status.edges}
    sources = {name: c.read - c.redelivered for name, c in counted.items() if name not in takers}
    ends = {name: c.done + c.fallback for name, c in counted.items() if name not in writers}
    dropped = sum(counts.dropped for counts in counted.values())
    dead = sum(counts.dead_lettered for counts in counted.values())
    came = ", ".join(f"{count:,} read by {name}" for name, count in sources.items())
    went = [f"{count:,} done by {name}" for name, count in ends.items()]
    went += [f"{dropped:,} dropped"] if dropped else []
    went += [f"{dead:,} dead letter{'' if dead == 1 else 's'}"] if dead else []
    return f"{came}; {', '.join(went)}"


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
