"""``ebbflow status``, ``logs``, ``pause``, ``resume`` and ``ui``: operate a pipeline.

They work from any machine, whether the pipeline runs or not. ``logs`` shows what user code printed
and logged, in this run or earlier ones. It does not show the messages of a ``log`` sink, which are
the pipeline's output and printed by the run. ``pause`` makes vertices stop taking messages. ``ui``
serves the web UI of all pipelines on a NATS server or in a state folder.
"""

from __future__ import annotations

import json
import signal
import sys
import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from ebbflow.cli.options import (
    HERE,
    JsonOption,
    OptionalVertex,
    PipelineArgument,
    ServerOptions,
    complete_vertices,
)
from ebbflow.domain.host import on_signals

if TYPE_CHECKING:
    from ebbflow.domain.errors import EbbflowError
    from ebbflow.nats.link import Link
    from ebbflow.operations.pausing import PauseReport
    from ebbflow.status.model import PipelineStatus
    from ebbflow.streams.logs import LogEntry
    from ebbflow.streams.names import Names
    from ebbflow.ui.links import UiLink


# --- status --------------------------------------------------------------------------------------

Show = Callable[["PipelineStatus"], None]


def status(
    pipeline: PipelineArgument,
    vertex: Annotated[
        str | None,
        typer.Argument(
            metavar="VERTEX",
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
    """Show what each vertex does, what waits where, until when, and what needs attention."""
    from ebbflow.status.stored import read_status

    with server.open(pipeline) as (link, names):
        if not watch:
            _show_status(read_status(link, names), vertex, as_json)
        elif as_json or vertex is not None or not sys.stdout.isatty():
            _follow_status(link, names, lambda now: _show_status(now, vertex, as_json))
        else:
            _watch_status(link, names)


def _show_status(now: PipelineStatus, vertex: str | None, as_json: bool) -> None:
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


def _follow_status(link: Link, names: Names, show: Show) -> None:
    """Shows each status that the run publishes, until the run ends or the user stops it."""
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


def _watch_status(link: Link, names: Names) -> None:
    from rich.live import Live

    from ebbflow.status.terminal import console_for
    from ebbflow.status.terminal.overview import draw_overview

    console = console_for(sys.stdout)
    with Live(console=console, auto_refresh=False) as live:
        _follow_status(
            link, names, lambda now: live.update(draw_overview(now, console), refresh=True)
        )


# --- logs ----------------------------------------------------------------------------------------


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
    """Show what user code has printed and logged, with time, level and vertex."""
    from ebbflow.streams.logs import read_logs

    with server.open(pipeline) as (link, names):
        _check_vertex(link, names, vertex)
        page = link.run(read_logs(link.client, names, vertex or "*", lines))
        for entry in page.entries:
            _print_entry(entry, as_json)
        if follow:
            _follow_logs(link, names, vertex or "*", page.last, as_json)
        elif not page.entries and not as_json:
            who = f"Vertex {vertex}" if vertex else "No vertex"
            verb = "has printed and logged nothing" if vertex else "has printed or logged anything"
            typer.echo(f"{who} of {pipeline} {verb}.", err=True)


def _check_vertex(link: Link, names: Names, vertex: str | None) -> None:
    """Raises if the pipeline or its vertex does not exist."""
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


def _print_entry(entry: LogEntry, as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps(entry.as_dict(), ensure_ascii=False))
        return
    at = f"{entry.at.astimezone():%Y-%m-%d %H:%M:%S}"
    for line in entry.printed.text.split("\n"):
        typer.echo(f"{at} {entry.printed.level.upper():<8} {entry.vertex}: {line}")


def _follow_logs(link: Link, names: Names, vertex: str, after: int, as_json: bool) -> None:
    from ebbflow.streams.logs import follow_logs

    ended = threading.Event()
    failures: list[EbbflowError] = []

    def fail(error: EbbflowError) -> None:
        failures.append(error)
        ended.set()

    def show(entries: Sequence[LogEntry]) -> None:
        for entry in entries:
            _print_entry(entry, as_json)

    follower = link.run(follow_logs(link.client, names, vertex, after, show, fail))
    try:
        ended.wait()
    except KeyboardInterrupt:
        return
    finally:
        link.run(follower.close())
    raise failures[0]


# --- pause and resume ----------------------------------------------------------------------------


def pause(
    pipeline: PipelineArgument,
    vertex: OptionalVertex = None,
    as_json: JsonOption = False,
    server: ServerOptions = HERE,
) -> None:
    """Pause a pipeline, or one vertex.

    Messages in progress are finished; new ones wait. The pause survives restarts, until you resume.
    """
    from ebbflow.operations.pausing import pause_vertices as pause_vertices

    with server.open(pipeline) as (link, names):
        report = pause_vertices(link, names, vertex)
    if as_json:
        _echo_pauses(report)
        return
    typer.echo(f"Paused: {', '.join(report.vertices)}.{_describe_rest(report, 'begins paused')}")
    typer.echo(f"Continue with: ebbflow resume {pipeline}{f' {vertex}' if vertex else ''}")


def resume(
    pipeline: PipelineArgument,
    vertex: OptionalVertex = None,
    as_json: JsonOption = False,
    server: ServerOptions = HERE,
) -> None:
    """Resume paused vertices.

    Also resumes vertices that stopped because too many messages became dead letters.
    """
    from ebbflow.operations.pausing import resume_vertices as resume_vertices
    from ebbflow.operations.pausing import stopped_vertices

    with server.open(pipeline) as (link, names):
        stopped = stopped_vertices(link, names)
        report = resume_vertices(link, names, vertex)
    if as_json:
        _echo_pauses(report)
        return
    resumed = [name for name in report.vertices if name in stopped]
    if resumed:
        typer.echo(f"Resumed: {', '.join(resumed)}.{_describe_rest(report, 'continues')}")
    else:
        which = f"Vertex {vertex}" if vertex else "No vertex"
        typer.echo(f"{which} of {pipeline} is{' not' if vertex else ''} stopped.")


def _describe_rest(report: PauseReport, next_run: str) -> str:
    """Returns a sentence about what is still to happen."""
    if not report.runs:
        return f" Nothing runs at the moment; the next run {next_run}."
    if report.unfinished:
        return f" Still finishing messages in flight: {', '.join(report.unfinished)}."
    return ""


def _echo_pauses(report: PauseReport) -> None:
    facts = {
        "vertices": list(report.vertices),
        "unfinished": list(report.unfinished),
        "runs": report.runs,
        "pauses": report.pauses.to_json(),
    }
    typer.echo(json.dumps(facts))


# --- ui ------------------------------------------------------------------------------------------


def ui(
    pipelines: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="PIPELINE",
            help="Show these pipelines; all of them by default.",
            show_default=False,
        ),
    ] = None,
    listen: Annotated[
        str | None,
        typer.Option(
            metavar="[https://]HOST:PORT",
            help="Listen here; on 127.0.0.1:8321 or a free port by default. "
            "Beyond this machine it needs a token, from EBBFLOW_UI_TOKEN or made up at a terminal.",
            show_default=False,
        ),
    ] = None,
    server: ServerOptions = HERE,
) -> None:
    """Show pipelines in a web UI, whether they run or not, until Ctrl-C."""
    from ebbflow.ui.web_ui import UI_PORT, open_web_ui, parse_address

    address = parse_address(listen or True, UI_PORT)
    ended = threading.Event()
    with (
        on_signals((signal.SIGINT, signal.SIGTERM, signal.SIGHUP), lambda *_: ended.set()),
        open_web_ui(address, _open_ui_link(server), pipelines or ()) as listening,
    ):
        listening.announce(typer.echo, "The web UI is at")
        typer.echo("Ctrl-C ends it; pipelines continue.", err=True)
        ended.wait()


def _open_ui_link(server: ServerOptions) -> UiLink:
    from ebbflow.nats.locate import find_own_server
    from ebbflow.ui.links import FolderLink, ServerLink

    own = find_own_server(server.nats)
    link: UiLink = FolderLink(server.state) if own is None else ServerLink(own)
    # Fails now if the server is unreachable, rather than showing an empty web UI.
    link.get()
    return link
