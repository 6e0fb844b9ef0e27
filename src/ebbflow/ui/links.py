"""The web UI's own connection to NATS, separate so that it never delays a run.

It connects to one server, or to the embedded server of a state folder. While a pipeline runs, that
is the run's server. Otherwise the web UI starts the server itself, and releases the folder as soon
as a run needs it: an open web UI never prevents a pipeline from starting.
"""

from __future__ import annotations

import contextlib
import threading
from contextlib import ExitStack
from pathlib import Path
from typing import Protocol

from ebbflow.domain.errors import SetupError
from ebbflow.nats.embedded import StateFolder
from ebbflow.nats.link import Link
from ebbflow.nats.locate import start_embedded
from ebbflow.nats.login import Addresses


class UiLink(Protocol):
    """Connects to the pipelines' server. Used by any thread but that of the connection."""

    def get(self) -> Link:
        """Returns the connection; ``SetupError`` while there is none."""

    def close(self) -> None:
        """Closes the connection."""


class ServerLink:
    """A connection to one server. It is opened on first use and reconnects automatically."""

    def __init__(self, server: Addresses) -> None:
        self._server = server
        self._link: Link | None = None
        self._opening = threading.Lock()

    def get(self) -> Link:
        """Returns the connection; ``SetupError`` while there is none."""
        with self._opening:
            if self._link is not None and self._link.client.ended is not None:
                self._link.close()
                self._link = None
            if self._link is None:
                self._link = Link(self._server)
            return self._link

    def close(self) -> None:
        """Closes the connection."""
        with self._opening:
            if self._link is not None:
                self._link.close()
                self._link = None


_LOOK_EVERY = 0.2


class FolderLink:
    """A connection that switches servers as runs begin and end. Used by any thread."""

    def __init__(self, state: Path) -> None:
        if not state.is_dir():
            raise SetupError(
                f"There is no state folder {state.resolve()}: no pipeline has run here.",
                "Change to the folder it was run in, or name its state with --state DIR.",
            )
        self._state = state
        self._folder = StateFolder(state)
        self._changing = threading.Lock()
        self._link: Link | None = None
        self._own = ExitStack()
        self._owns = False
        self._closed = threading.Event()
        self._watch = threading.Thread(
            target=self._yield_to_runs, name="web-ui-folder", daemon=True
        )
        self._watch.start()

    def get(self) -> Link:
        """Returns the connection; ``SetupError`` while there is none."""
        with self._changing:
            if self._link is not None and not self._link.client.is_connected:
                self._leave()
            if self._link is None:
                self._open()
            assert self._link is not None
            return self._link

    def close(self) -> None:
        """Closes the connection, and stops the server if it is the web UI's own."""
        self._closed.set()
        self._watch.join()
        with self._changing:
            self._leave()

    def _open(self) -> None:
        if self._closed.is_set() or self._folder.is_wanted:
            raise SetupError("A run is starting in this folder.", "Wait for a moment.")
        try:
            server = self._folder.find_running_server()
        except (OSError, ValueError):
            raise SetupError("A run is starting in this folder.", "Wait for a moment.") from None
        if server is None:
            server = self._own.enter_context(start_embedded(self._state, yields=True))
            self._owns = True
        try:
            self._link = Link(server)
        except BaseException:
            self._leave()
            raise

    def _leave(self) -> None:
        link, self._link, self._owns = self._link, None, False
        if link is not None:
            link.close()
        with contextlib.suppress(OSError, SetupError):
            self._own.close()

    def _yield_to_runs(self) -> None:
        while not self._closed.wait(_LOOK_EVERY):
            if self._owns and self._folder.is_wanted:
                with self._changing:
                    self._leave()
