"""The serving source: a feed that stores each request and tells its caller the answers."""

from __future__ import annotations

from ebbflow.buffers.feed import Spot
from ebbflow.connectors.serving.settings import ServingSettings


class ServingFeed:
    """One vertex that takes requests in. Started and stopped by the run's thread."""

    on_spark = False

    def __init__(self, settings: ServingSettings, spot: Spot) -> None:
        self._settings = settings
        self._spot = spot

    @property
    def exhausted(self) -> bool:
        """Never: somebody may ask something."""
        return False

    @property
    def failure(self) -> str | None:
        """The reason why it takes in nothing at the moment; ``None`` while it does."""
        return None

    def start(self) -> None:
        """Listens."""
        raise NotImplementedError

    def stop(self) -> None:
        """Refuses what comes and finishes what is here."""
