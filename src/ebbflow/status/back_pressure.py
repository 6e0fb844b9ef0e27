"""Back-pressure: since when a vertex waits for room in the buffer of the next one."""

from __future__ import annotations

from datetime import UTC, datetime

from ebbflow.status.model import BackPressure


class PressureWatch:
    """Tells back-pressure from how often publishing met a full buffer."""

    def __init__(self) -> None:
        self._seen: dict[str, int] = {}
        self._since: dict[str, BackPressure] = {}

    def look(self, vertex: str, full: str | None, refusals: int) -> BackPressure | None:
        """Returns what a vertex waits for; ``full`` is the next one whose buffer has no room.

        ``refusals`` counts how often it was told so in this run.
        """
        before, self._seen[vertex] = self._seen.get(vertex, 0), refusals
        present = self._since.get(vertex)
        if full is None or (refusals == before and present is None):
            self._since.pop(vertex, None)
            return None
        if present is None or present.to != full:
            self._since[vertex] = BackPressure(full, datetime.now(UTC))
        return self._since[vertex]
