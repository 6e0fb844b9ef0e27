"""``ebbflow logs``: what user code has printed and logged, in this run of a pipeline or earlier.

The command works whether the pipeline runs or not. The messages of a ``log`` sink are no logs:
they are the pipeline's output, which the run prints.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from ebbflow.cli.options import HERE, JsonOption, OptionalVertex, PipelineArgument, ServerOptions

if TYPE_CHECKING:
    from ebbflow.domain.errors import EbbflowError
    from ebbflow.nats.link import Link
    from ebbflow.streams.logs import LogEntry
    from ebbflow.streams.names import Names


def logs(
    pipeline: PipelineArgument,
    vertex: OptionalVertex = None,
    follow: Annotated[
        bool,
        typer.Option("--follow", "-f", help="Continue with new lines until Ctrl-C."),
    ] = False,
    lines: Annotated[
        int,
        typer.Option("--lines", "-n", min=0, metavar="NUMBER", help="Show the last NUMBER lines."),
    ] = 100,
    as_json: JsonOption = False,
    server: ServerOptions = HERE,
) -> None:
    """Show what user code has printed and logged, with the time, the level and the vertex."""
    from ebbflow.streams.logs import read_logs

    with server.open(pipeline) as (link, names):
        _check_vertex(link, names, vertex)
        page = link.run(read_logs(link.client, names, vertex or "*", lines))
        for entry in page.entries:
            _print(entry, as_json)
        if follow:
            _follow(link, names, vertex or "*", page.last, as_json)
        elif not page.entries and not as_json:
            who = f"Vertex {vertex}" if vertex else "No vertex"
            verb = "has printed and logged nothing" if vertex else "has printed or logged anything"
            typer.echo(f"{who} of {pipeline} {verb}.", err=True)


def _check_vertex(link: Link, names: Names, vertex: str | None) -> None:
    """Raises if there is no such pipeline, or if it has no such vertex."""
    from ebbflow.domain.errors import EbbflowError
    from ebbflow.streams.positions import read_positions
    from ebbflow.streams.provision import find_unknown

    known = sorted({name for name, _ in link.run(read_positions(link.client, names))})
    if not known:
        raise link.run(find_unknown(link.client, names.pipeline))
    if vertex is not None and vertex not in known:
        raise EbbflowError(
            f"Pipeline {names.pipeline} has no vertex {vertex!r}. It has: {', '.join(known)}."
        )


def _print(entry: LogEntry, as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps(entry.as_dict(), ensure_ascii=False))
        return
    at = f"{entry.at.astimezone():%Y-%m-%d %H:%M:%S}"
    for line in entry.printed.text.split("\n"):
        typer.echo(f"{at} {entry.printed.level.upper():<8} {entry.vertex}: {line}")


def _follow(link: Link, names: Names, vertex: str, after: int, as_json: bool) -> None:
    from ebbflow.streams.logs import follow_logs

    ended = threading.Event()
    failures: list[EbbflowError] = []

    def fail(error: EbbflowError) -> None:
        failures.append(error)
        ended.set()

    def show(entries: Sequence[LogEntry]) -> None:
        for entry in entries:
            _print(entry, as_json)

    follower = link.run(follow_logs(link.client, names, vertex, after, show, fail))
    try:
        ended.wait()
    except KeyboardInterrupt:
        return
    finally:
        link.run(follower.close())
    raise failures[0]
