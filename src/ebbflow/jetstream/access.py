"""Which NATS server to use, and how to get at it: the user's own, or the embedded one.

A server that was started here is stopped when its context ends, whatever happened inside.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ebbflow.errors import SetupError
from ebbflow.jetstream.connection import Link, Server, check_version
from ebbflow.jetstream.server import EmbeddedServer, StateFolder

NATS_URL = "EBBFLOW_NATS_URL"
_START_WAIT = 10.0


@contextmanager
def embedded(state: Path, *, port: int = 0, sync_always: bool = False) -> Iterator[Server]:
    """The embedded server in a state folder, for as long as the context lasts."""
    folder = StateFolder(state)
    folder.acquire()
    try:
        server = EmbeddedServer(folder, port=port, sync_always=sync_always)
        try:
            yield server.start()
        finally:
            server.stop()
    finally:
        folder.release()


@contextmanager
def linked(server: Server) -> Iterator[Link]:
    """A link to a server that is new enough."""
    link = Link(server)
    try:
        check_version(link)
        yield link
    finally:
        link.close()


@contextmanager
def connected(
    state: Path, nats: str | None, *, port: int = 0, sync_always: bool = False
) -> Iterator[Link]:
    """A link to the user's server, or to an embedded one that is started for it."""
    url = nats or os.environ.get(NATS_URL)
    if url:
        with linked(Server(url)) as link:
            yield link
    else:
        with embedded(state, port=port, sync_always=sync_always) as server, linked(server) as link:
            yield link


@contextmanager
def reached(state: Path, nats: str | None) -> Iterator[Link]:
    """A link to where a pipeline's streams are, whether it runs at the moment or not.

    The user's own server if there is one, else the embedded one of whoever owns the state folder,
    else an embedded one that is started for as long as the context lasts.
    """
    running = None if nats or os.environ.get(NATS_URL) else _running_server(state)
    with linked(running) if running else connected(state, nats) as link:
        yield link


def _running_server(state: Path) -> Server | None:
    if not state.is_dir():
        raise SetupError(
            f"There is no state folder {state.resolve()}: no pipeline has run here.",
            "Change to the folder it was run in, or name its state with --state DIR.",
        )
    deadline = time.monotonic() + _START_WAIT
    while True:
        try:
            return StateFolder(state).running_server()
        except (OSError, ValueError) as error:
            # The folder is owned, but its server is just being started or stopped.
            if time.monotonic() > deadline:
                raise SetupError(
                    f"The server of the state folder {state.resolve()} does not get ready.",
                    "Look at the run that owns the folder, then try again.",
                ) from error
            time.sleep(0.2)
