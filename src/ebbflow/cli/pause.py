"""``ebbflow pause`` and ``ebbflow resume``: have vertices take nothing for a while."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import typer

from ebbflow.cli.options import HERE, JsonOption, OptionalVertex, PipelineArgument, ServerOptions

if TYPE_CHECKING:
    from ebbflow.operations.pausing import PauseReport


def pause(
    pipeline: PipelineArgument,
    vertex: OptionalVertex = None,
    as_json: JsonOption = False,
    server: ServerOptions = HERE,
) -> None:
    """Pause a pipeline, or one vertex.

    Messages in progress are finished; new ones wait. The pause survives restarts, until you resume.
    """
    from ebbflow.operations.pausing import pause as pause_vertices

    with server.open(pipeline) as (link, names):
        report = pause_vertices(link, names, vertex)
    if as_json:
        _echo_json(report)
        return
    typer.echo(f"Paused: {', '.join(report.vertices)}.{_add(report, 'begins paused')}")
    typer.echo(f"Go on with: ebbflow resume {pipeline}{f' {vertex}' if vertex else ''}")


def resume(
    pipeline: PipelineArgument,
    vertex: OptionalVertex = None,
    as_json: JsonOption = False,
    server: ServerOptions = HERE,
) -> None:
    """Resume paused vertices.

    Also those that stopped because too many messages became dead letters.
    """
    from ebbflow.operations.pausing import resume as resume_vertices
    from ebbflow.operations.pausing import stopped_vertices

    with server.open(pipeline) as (link, names):
        stopped = stopped_vertices(link, names)
        report = resume_vertices(link, names, vertex)
    if as_json:
        _echo_json(report)
        return
    resumed = [name for name in report.vertices if name in stopped]
    if resumed:
        typer.echo(f"Resumed: {', '.join(resumed)}.{_add(report, 'goes on')}")
    else:
        which = f"Vertex {vertex}" if vertex else "No vertex"
        typer.echo(f"{which} of {pipeline} is{' not' if vertex else ''} stopped.")


def _add(report: PauseReport, next_run: str) -> str:
    """Returns what has not happened yet, as a sentence."""
    if not report.runs:
        return f" Nothing runs at the moment; the next run {next_run}."
    if report.unfinished:
        return f" Still at work on what they have in hand: {', '.join(report.unfinished)}."
    return ""


def _echo_json(report: PauseReport) -> None:
    facts = {
        "vertices": list(report.vertices),
        "unfinished": list(report.unfinished),
        "runs": report.runs,
        "pauses": report.pauses.to_json(),
    }
    typer.echo(json.dumps(facts))
