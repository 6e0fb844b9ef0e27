"""Pausing and resuming a pipeline, or one of its vertices, from any process.

A paused vertex settles the messages in flight and reads no more; new messages wait in its buffer or
at its source. The pause is stored in NATS: it outlasts epochs, restarts and runs, until it is
resumed. Works whether the pipeline runs or not.
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
    """The result of pausing or resuming.

    ``vertices`` are the vertices to pause or resume, ``unfinished`` those of them that have not
    done so yet: they still work on messages in flight. ``runs`` says whether the pipeline runs at
    all; if not, its next run follows the stored pauses.
    """

    pauses: Pauses
    vertices: tuple[str, ...]
    unfinished: tuple[str, ...]
    runs: bool


def pause_vertices(
    link: Link, names: Names, vertex: str | None = None, patience: float = _PATIENCE
) -> PauseReport:
    """Pauses a vertex, or all, and waits until their tasks have settled their messages in flight.

    Blocks for up to ``patience`` seconds; with 0 it only stores the pause and notifies tasks.
    ``EbbflowError`` if there is no such pipeline or vertex.
    """
    now = datetime.now(UTC)
    vertices = _vertices(link, names, vertex)
    pauses = link.run(change_pauses(link.client, names, lambda known: known.pausing(vertex, now)))
    commands = (control.pauses_command(pauses),)
    return _send_until_followed(link, names, pauses, vertices, patience, commands, _not_paused)


def resume_vertices(
    link: Link, names: Names, vertex: str | None = None, patience: float = _PATIENCE
) -> PauseReport:
    """Resumes a vertex, or all, whether people have paused it or its breaker has stopped it.

    Blocks for up to ``patience`` seconds until tasks have resumed; 0 does not wait.
    ``EbbflowError`` if there is no such pipeline or vertex.
    """
    vertices = _vertices(link, names, vertex)
    pauses = link.run(change_pauses(link.client, names, lambda known: known.resuming(vertex)))
    commands = (control.pauses_command(pauses), control.resume_command(vertex))
    return _send_until_followed(link, names, pauses, vertices, patience, commands, _not_resumed)


def stopped_vertices(link: Link, names: Names) -> dict[str, str]:
    """Returns the vertices that read nothing until they are resumed, each with the reason."""
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
    """Returns the vertex, or all vertices; raises if the pipeline has no such vertex."""
    spec = link.run(read_spec(link.client, names))
    if vertex is None:
        return tuple(each.name for each in spec.shape.vertices)
    return (spec.vertex(vertex).name,)


def _not_paused(positions: Positions) -> set[str]:
    """Returns the vertices that may still receive messages, from their own tasks or inline."""
    own = {name for (name, _), position in positions.items() if not position.paused}
    return own.union(*(position.runs_inline for position in positions.values()))


def _not_resumed(positions: Positions) -> set[str]:
    return {name for (name, _), own in positions.items() if own.paused or own.halted is not None}


def _send_until_followed(
    link: Link,
    names: Names,
    pauses: Pauses,
    vertices: tuple[str, ...],
    patience: float,
    commands: Iterable[bytes],
    find_late: Callable[[Positions], set[str]],
) -> PauseReport:
    """Sends commands until every task's record shows the effect; ``find_late`` returns the others.

    They are repeated because a task that is just starting may miss the first.
    """
    deadline = time.monotonic() + patience
    while True:
        for command in commands:
            link.run(link.client.publish(names.control_subject, command))
        link.flush()
        positions = link.run(read_positions(link.client, names))
        unfinished = tuple(name for name in vertices if name in find_late(positions))
        runs = link.run(find_run(link, names)) is not None
        if not (unfinished and runs) or time.monotonic() >= deadline:
            return PauseReport(pauses, vertices, unfinished, runs)
        time.sleep(_REPEAT_EVERY)
