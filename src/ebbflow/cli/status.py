"""``ebbflow status``: the state of a pipeline, from any machine, whether it runs or not."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated

import typer

from ebbflow.cli.options import HERE, JsonOption, PipelineArgument, ServerOptions, complete_vertices

if TYPE_CHECKING:
    from ebbflow.nats.link import Link
    from ebbflow.status.model import PipelineStatus
    from ebbflow.streams.names import Names

Show = Callable[["PipelineStatus"], None]


def status(
    pipeline: PipelineArgument,
    vertex: Annotated[
        str | None,
        typer.Argument(
            help="Show everything about this vertex, with the tracebacks of its errors.",
            show_default=False,
            autocompletion=complete_vertices,
        ),
    ] = None,
    watch: Annotated[
        bool,
        typer.Option("--watch", "-w", help="Continue until the run ends, or Ctrl-C."),
    ] = False,
    as_json: JsonOption = False,
    server: ServerOptions = HERE,
) -> None:
    """Show what each vertex does, what waits where and until when, and what needs attention."""
    from ebbflow.status.stored import read_status

    with server.open(pipeline) as (link, names):
        if not watch:
            _show(read_status(link, names), vertex, as_json)
        elif as_json or vertex is not None or not sys.stdout.isatty():
            _follow(link, names, lambda now: _show(now, vertex, as_json))
        else:
            _watch(link, names)


def _show(now: PipelineStatus, vertex: str | None, as_json: bool) -> None:
    from ebbflow.domain.errors import EbbflowError
    from ebbflow.status.terminal import console_for
    from ebbflow.status.terminal.overview import describe_details, draw_overview

    one = now.vertex(vertex) if vertex is not None else None
    if vertex is not None and one is None:
        known = ", ".join(each.name for each in now.vertices)
        raise EbbflowError(f"Pipeline {now.pipeline} has no vertex {vertex!r}. It has: {known}.")
    if as_json:
        document = now.to_json()
        if vertex is not None:
            document = next(each for each in document["vertices"] if each["name"] == vertex)
        typer.echo(json.dumps(document))
    elif one is not None:
        typer.echo("\n".join(describe_details(now, one)))
    else:
        console = console_for(sys.stdout)
        console.print(draw_overview(now, console))


def _follow(link: Link, names: Names, show: Show) -> None:
    """Shows each state that the run publishes, until it has ended or the user stops it."""
    from ebbflow.status.stored import follow_status

    async def follow() -> None:
        async for now in follow_status(link.client, names):
            show(now)
            if now.phase == "ended" or not now.answers:
                return

    try:
        link.run(follow())
    except KeyboardInterrupt:
        return


def _watch(link: Link, names: Names) -> None:
    from rich.live import Live

    from ebbflow.status.terminal import console_for
    from ebbflow.status.terminal.overview import draw_overview

    console = console_for(sys.stdout)
    with Live(console=console, auto_refresh=False) as live:
        _follow(link, names, lambda now: live.update(draw_overview(now, console), refresh=True))
