"""The nodes of a NATS cluster, as the leader of a pipeline's positions sees them.

A cluster continues without a node, so no error reports a lost one. ``NodeWatch`` names it.
"""

from __future__ import annotations

from typing import Any

from ebbflow.nats import api
from ebbflow.nats.client import SecuredClient
from ebbflow.status.model import Concern

# A follower answers its leader every second.
_IN_TOUCH = 3 * 1_000_000_000
# Consecutive reads, a second apart: a leader that was just elected is not in touch with any node.
_LOOKS = 2


def find_down(cluster: dict[str, Any]) -> frozenset[str]:
    """Returns the nodes that the leader of a stream is not in touch with."""
    others = cluster.get("replicas") or ()
    return frozenset(
        other["name"]
        for other in others
        if other.get("offline") or not 0 < other.get("active", 0) < _IN_TOUCH
    )


class NodeWatch:
    """Watches the nodes that hold one stream. ``look`` runs on the loop of the client."""

    def __init__(self, client: SecuredClient, stream: str) -> None:
        self._client = client
        self._stream = stream
        self._seen: tuple[frozenset[str], int] = (frozenset(), 0)
        self._nodes = 0
        self.down: frozenset[str] = frozenset()
        """The nodes that are down."""

    async def look(self) -> None:
        """Asks the leader; does nothing if the server is not part of a cluster."""
        if self._client.is_on_a_single_server:
            return
        info = await api.call(self._client, f"STREAM.INFO.{self._stream}")
        self.note(info.get("cluster") or {})

    def note(self, cluster: dict[str, Any]) -> None:
        """Records the leader's answer; a node counts as down once two in a row say so."""
        self._nodes = 1 + len(cluster.get("replicas") or ())
        down, (before, times) = find_down(cluster), self._seen
        self._seen = down, times + 1 if down == before else 1
        if self._seen[1] >= _LOOKS:
            self.down = down

    def list_concerns(self) -> tuple[Concern, ...]:
        """Returns a warning for each node that is down."""
        left = self._nodes - len(self.down)
        step = f"Start it again; until then, streams have {left} of {self._nodes} replicas."
        return tuple(
            Concern("warning", None, f"NATS node {name} is down", step)
            for name in sorted(self.down)
        )


def describe_change(before: frozenset[str], now: frozenset[str]) -> list[str]:
    """Returns a sentence for each node that is lost, and for each that is back."""
    lost = [
        f"NATS node {name} is down; streams continue on the nodes that are left"
        for name in sorted(now - before)
    ]
    return lost + [f"NATS node {name} is back" for name in sorted(before - now)]
