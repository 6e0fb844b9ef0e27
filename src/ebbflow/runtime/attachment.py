"""What stands beside a run for as long as it goes on, as its web page does."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import Protocol

from ebbflow.nats.login import Addresses


class Attachment(Protocol):
    """Opens something beside a run; the run's thread enters and leaves it.

    It gets the server and the name of the pipeline, and reads what it needs over a connection of
    its own: it has no way to hold up the run. ``tell`` shows a line to whoever watches the run. It
    gives the addresses that people may open, by name, for the pipeline's status.
    """

    def __call__(
        self, server: Addresses, pipeline: str, tell: Callable[[str], None]
    ) -> AbstractContextManager[Mapping[str, str]]:
        """Returns the context; ``SetupError`` from it ends the run before it has begun."""
