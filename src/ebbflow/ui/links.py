"""The connection to NATS that the page reads over: its own, so that it never holds up a run."""

from __future__ import annotations

import threading
from typing import Protocol

from ebbflow.nats.link import Link
from ebbflow.nats.login import Addresses


class PageLink(Protocol):
    """Leads to where the pipelines are. Used by any thread but that of the connection."""

    def get(self) -> Link:
        """Returns the connection; ``SetupError`` while there is none."""

    def close(self) -> None:
        """Closes the connection."""


class ServerLink:
    """A connection to one server, opened when it is first needed; it finds back by itself."""

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
