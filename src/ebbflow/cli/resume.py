"""``ebbflow resume``: let vertices go on that their breaker has stopped."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated

import typer

from ebbflow.cli.conventions import DEFAULT_STATE, NatsOption, PipelineArgument, StateOption

if TYPE_CHECKING:
    from ebbflow.buffers.names import Names
    from ebbflow.nats.link import Link

_LONGEST_WAIT = 20.0
_REPEAT_EVERY = 0.25


def resume(
    pipeline: PipelineArgument,
    vertex: Annotated[
        str | None,
        typer.Argument(help="Only this vertex goes on; without it, all.", show_default=False),
    ] = None,
    state: StateOption = DEFAULT_STATE,
    nats: NatsOption = None,
) -> None:
    """Let vertices go on that stopped because too many messages became dead letters."""
    from ebbflow.buffers.names import Names
    from ebbflow.nats.locate import open_link_to_pipeline

    names = Names(pipeline)
    with open_link_to_pipeline(state, nats, inbox=names.inbox) as link:
        stopped = _stopped_vertices(link, names, vertex)
        if not stopped:
            which = f"Vertex {vertex}" if vertex else "No vertex"
            typer.echo(f"{which} of {pipeline} is{' not' if vertex else ''} stopped.")
        elif not _resume(link, names, vertex):
            typer.echo(
                f"Nobody answers for {', '.join(stopped)}: {pipeline} does not run. "
                "Its next run goes on by itself."
            )
        else:
            typer.echo(f"Resumed: {', '.join(stopped)}.")


def _stopped_vertices(link: Link, names: Names, vertex: str | None) -> list[str]:
    """Returns the vertices that a breaker has stopped, or the one if it is among them."""
    from ebbflow.buffers.positions import read_all

    positions = link.run(read_all(link, names)).items()
    stopped = {name for (name, _), position in positions if position.halted is not None}
    return sorted(stopped & {vertex} if vertex else stopped)


def _resume(link: Link, names: Names, vertex: str | None) -> bool:
    """Sends the word until no vertex is stopped; ``False`` if nobody takes it in time.

    It is repeated because a task that is just starting does not hear it.
    """
    from ebbflow.runtime import turn

    deadline = time.monotonic() + _LONGEST_WAIT
    while time.monotonic() < deadline:
        link.run(link.client.publish(names.control_subject, turn.resume(vertex)))
        link.flush()
        time.sleep(_REPEAT_EVERY)
        if not _stopped_vertices(link, names, vertex):
            return True
    return False
