"""Locates the NATS server to use: the user's own, or the embedded one.

A server that was started here is stopped when its context ends, even after an error. The
environment's login is for the user's own server; the embedded server generates its own.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from ebbflow.domain.errors import SetupError
from ebbflow.nats.disk import ShowLine, watch_disk
from ebbflow.nats.embedded import EmbeddedServer, StateFolder
from ebbflow.nats.link import Link, check_version
from ebbflow.nats.login import INBOX, Addresses, Login

NATS_URL = "EBBFLOW_NATS_URL"
_START_WAIT = 10.0


def find_own_server(nats: str | None, login: Login | None = None) -> Addresses | None:
    """Returns the user's server from the URL or the environment, with its login; ``None`` if none.

    ``SetupError`` when the URL or the environment does not make sense.
    """
    url = nats or os.environ.get(NATS_URL)
    if not url:
        return None
    try:
        alone = Addresses.of(url)
    except ValueError as error:
        raise SetupError(f"{error}.", "Correct --nats or EBBFLOW_NATS_URL.") from None
    separate = Login.from_environment() if login is None else login
    if alone.login.kind is not None and separate.kind is not None:
        raise SetupError(
            f"There are two logins for NATS: one in its URL, and next to it {separate.kind}.",
            "Take it out of --nats or EBBFLOW_NATS_URL, or leave the other one out.",
        )
    return Addresses.of(url, separate)


def _ignore(_text: str) -> None:
    """Discards the line."""


@contextmanager
def _explain_write_errors(folder: StateFolder) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise SetupError(
            f"Cannot write to the state folder {folder.path}: {error.strerror}.",
            "Make room there, or choose another one with --state DIR.",
        ) from error


@contextmanager
def start_embedded(
    state: Path,
    *,
    port: int = 0,
    sync_always: bool = False,
    yields: bool = False,
    show: ShowLine = _ignore,
) -> Iterator[Addresses]:
    """Runs the embedded server in a state folder for as long as the context lasts.

    ``show`` gets a line when the disk is full, and when there is room again. A caller with
    ``yields`` has to end the context when the folder ``is_wanted``.
    """
    folder = StateFolder(state)
    with _explain_write_errors(folder):
        folder.acquire(yields=yields)
    try:
        server = EmbeddedServer(folder, port=port, sync_always=sync_always)
        try:
            with _explain_write_errors(folder):
                address = server.start()
            with watch_disk(folder.nats, server, show):
                yield address
        finally:
            server.stop()
    finally:
        folder.release()


@contextmanager
def open_link(server: Addresses) -> Iterator[Link]:
    """Opens a link to a server; ``SetupError`` if the server is too old."""
    link = Link(server)
    try:
        check_version(link)
        yield link
    finally:
        link.close()


@contextmanager
def open_link_for_run(
    state: Path,
    nats: str | None,
    *,
    login: Login | None = None,
    inbox: str = INBOX,
    port: int = 0,
    sync_always: bool = False,
    show: ShowLine = _ignore,
) -> Iterator[Link]:
    """Opens a link to the user's server, or to an embedded one that is started for it.

    ``show`` gets lines about the disk of the embedded server.
    """
    own = find_own_server(nats, login)
    if own is not None:
        with open_link(replace(own, inbox=inbox)) as link:
            yield link
        return
    if login is not None:
        raise SetupError("There is a login for NATS, but no server to log in to.", "Name its URL.")
    with (
        start_embedded(state, port=port, sync_always=sync_always, show=show) as server,
        open_link(replace(server, inbox=inbox)) as link,
    ):
        yield link


@contextmanager
def open_link_to_pipeline(state: Path, nats: str | None, *, inbox: str = INBOX) -> Iterator[Link]:
    """Opens a link to the server with a pipeline's streams, whether the pipeline runs or not.

    That is the user's own server if there is one, else the embedded server of the run that owns the
    state folder, else an embedded one that is started for as long as the context lasts.
    """
    known = find_own_server(nats) or _find_running_server(state)
    if known is not None:
        with open_link(replace(known, inbox=inbox)) as link:
            yield link
    else:
        with open_link_for_run(state, None, inbox=inbox) as link:
            yield link


def _find_running_server(state: Path) -> Addresses | None:
    if not state.is_dir():
        raise SetupError(
            f"There is no state folder {state.resolve()}: no pipeline has run here.",
            "Change to the folder it was run in, or name its state with --state DIR.",
        )
    deadline = time.monotonic() + _START_WAIT
    while True:
        try:
            return StateFolder(state).find_running_server()
        except (OSError, ValueError) as error:
            # The folder is owned, but its server is just being started or stopped.
            if time.monotonic() > deadline:
                raise SetupError(
                    f"The server of the state folder {state.resolve()} does not become ready.",
                    "Look at the run that owns the folder, then try again.",
                ) from error
            time.sleep(0.2)
