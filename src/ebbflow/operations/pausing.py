"""Pausing and resuming a pipeline, or one of its vertices, from any process.

A paused vertex settles what it has in flight and takes nothing more; what comes for it waits in its
buffer or at its source. The pause is stored in NATS: it outlasts epochs, restarts and runs, until
someone resumes. Works whether the pipeline runs or not.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import UTC, datetime

from ebbflow.engine.position import Position
from ebbflow.nats.link import Link
from ebbflow.runtime import control
from ebbflow.runtime.run_setup import find_run, read_spec
from ebbflow.streams.names import Names
from ebbflow.streams.positions import Pauses, change_pauses, read_pauses, read_positions

_PATIENCE = 20.0
_REPEAT_EVERY = 0.25

Positions = dict[tuple[str, int], Position]


@dataclass(frozen=True, slots=True)
class PauseReport:
    """What pausing or resuming came to.

    ``vertices`` are those it was about, ``unfinished`` those of them that have not followed yet:
    they still work on what they have in flight. ``runs`` says whether the pipeline runs at all; if
    not, its next run keeps to the record.
    """

    pauses: Pauses
    vertices: tuple[str, ...]
    unfinished: tuple[str, ...]
    runs: bool


def pause_vertices(
    link: Link, names: Names, vertex: str | None = None, patience: float = _PATIENCE
) -> PauseReport:
    """Pauses a vertex, or all, and waits until their tasks have settled what they had in flight.

    Blocks for up to ``patience`` seconds; with 0 it only stores the pause and has tasks know.
    ``EbbflowError`` if there is no such pipeline or vertex.
    """
    now = datetime.now(UTC)
    vertices = _vertices(link, names, vertex)
    pauses = link.run(change_pauses(link.client, names, lambda known: known.pausing(vertex, now)))
    word = control.tell_pauses(pauses)
    return _follow(link, names, pauses, vertices, patience, (word,), _not_paused)


def resume_vertices(
    link: Link, names: Names, vertex: str | None = None, patience: float = _PATIENCE
) -> PauseReport:
    """Resumes a vertex, or all: those that people have paused and those that a breaker stopped.

    Blocks for up to ``patience`` seconds until tasks have followed; 0 does not wait.
    ``EbbflowError`` if there is no such pipeline or vertex.
    """
    vertices = _vertices(link, names, vertex)
    pauses = link.run(change_pauses(link.client, names, lambda known: known.resuming(vertex)))
    words = (control.tell_pauses(pauses), control.tell_resume(vertex))
    return _follow(link, names, pauses, vertices, patience, words, _not_resumed)


def stopped_vertices(link: Link, names: Names) -> dict[str, str]:
    """Returns the vertices that take nothing until they are resumed, each with the reason."""
    positions = link.run(read_positions(link.client, names))
    pauses = link.run(read_pauses(link.client, names))
    stopped = {}
    for name in sorted({name for name, _ in positions}):
        why = next((p.halted for (v, _), p in positions.items() if v == name and p.halted), None)
        if why is not None:
            stopped[name] = why
        elif (since := pauses.since(name)) is not None:
            stopped[name] = f"paused since {since.astimezone():%Y-%m-%d %H:%M:%S}"
    return stopped


def _vertices(link: Link, names: Names, vertex: str | None) -> tuple[str, ...]:
    """Returns the vertices meant; raises if the pipeline has no such vertex."""
    spec = link.run(read_spec(link.client, names))
    if vertex is None:
        return tuple(each.name for each in spec.shape.vertices)
    return (spec.vertex(vertex).name,)


def _not_paused(positions: Positions) -> set[str]:
    """Returns the vertices that may still get messages, from their own tasks or inline."""
    own = {name for (name, _), position in positions.items() if not position.paused}
    return own.union(*(position.runs_inline for position in positions.values()))


def _not_resumed(positions: Positions) -> set[str]:
    return {name for (name, _), own in positions.items() if own.paused or own.halted is not None}


def _follow(
    link: Link,
    names: Names,
    pauses: Pauses,
    vertices: tuple[str, ...],
    patience: float,
    words: Iterable[bytes],
    late: Callable[[Positions], set[str]],
) -> PauseReport:
    """Sends words until every task's record shows the effect; ``late`` says which do not yet.

    They are repeated because a task that is just starting may not hear the first.
    """
    deadline = time.monotonic() + patience
    while True:
        for word in words:
            link.run(link.client.publish(names.control_subject, word))
        link.flush()
        positions = link.run(read_positions(link.client, names))
        unfinished = tuple(name for name in vertices if name in late(positions))
        runs = link.run(find_run(link, names)) is not None
        if not (unfinished and runs) or time.monotonic() >= deadline:
            return PauseReport(pauses, vertices, unfinished, runs)
        time.sleep(_REPEAT_EVERY)
