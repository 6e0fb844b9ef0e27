"""``ebbflow ui``: the web UI of all pipelines that a NATS server or a state folder knows."""

from __future__ import annotations

import signal
import threading
from typing import TYPE_CHECKING, Annotated

import typer

from ebbflow.cli.options import HERE, ServerOptions
from ebbflow.domain.host import on_signals

if TYPE_CHECKING:
    from ebbflow.ui.links import UiLink


def ui(
    pipelines: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[PIPELINE]...",
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
        open_web_ui(address, _open_link(server), pipelines or ()) as listening,
    ):
        listening.announce(typer.echo, "The web UI is at")
        typer.echo("Ctrl-C ends it; pipelines continue.", err=True)
        ended.wait()


def _open_link(server: ServerOptions) -> UiLink:
    from ebbflow.nats.locate import find_own_server
    from ebbflow.ui.links import FolderLink, ServerLink

    own = find_own_server(server.nats)
    link: UiLink = FolderLink(server.state) if own is None else ServerLink(own)
    # A server that is not there is told now, and not by an empty web UI.
    link.get()
    return link
