"""A warning when a NATS server of the user's own confirms nothing any more.

The run cannot see the disk of such a server. A server whose disk is full leaves publications
unanswered, or says that it is out of resources. Publishing goes on trying and loses nothing, but
somebody has to look after the server. The run checks this on the driver, from its tasks' counts.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

from ebbflow.nats.publish import Tally

_PATIENCE = 5.0


class Unconfirmed:
    """Knows which vertices have had nothing confirmed for a while. ``tell`` shows a line."""

    def __init__(
        self,
        server: str,
        tell: Callable[[str], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._server = server
        self._tell = tell
        self._clock = clock
        self._last: dict[str, tuple[float, Tally]] = {}
        self._told: set[str] = set()

    def look(self, tallies: Mapping[str, Tally]) -> None:
        """Tells of vertices that have begun to wait in vain, or whose waiting has ended."""
        for vertex, tally in tallies.items():
            since, before = self._last.setdefault(vertex, (self._clock(), tally))
            if tally.confirmed != before.confirmed or tally.failures == before.failures:
                self._last[vertex] = self._clock(), tally
                self._resume(vertex)
            elif vertex not in self._told and self._clock() - since >= _PATIENCE:
                self._told.add(vertex)
                waited = f"for {self._clock() - since:.0f} s: {_problem(before, tally)}"
                self._tell(
                    f"NATS at {self._server} has confirmed nothing that {vertex} wrote {waited}; "
                    "nothing is lost, and it is tried again until it works"
                )

    def _resume(self, vertex: str) -> None:
        if vertex in self._told:
            self._told.discard(vertex)
            self._tell(f"NATS at {self._server} confirms again what {vertex} writes")


def _problem(before: Tally, now: Tally) -> str:
    if now.refused > before.refused:
        return f"it says {now.refusal!r}; see whether its disk or a limit of its storage is full"
    if now.no_responders > before.no_responders:
        return "no server leads the stream; see whether enough of them are up"
    return "it does not answer; see whether its disk is full, and what is in its log"
