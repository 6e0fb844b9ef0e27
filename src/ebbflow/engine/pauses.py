"""What people have paused: the whole pipeline, or some of its vertices.

The record outlasts epochs, restarts and runs. A vertex that is resumed by its name while the whole
pipeline is paused goes on alone. Pure: every change returns another record.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

from ebbflow.domain import records


@dataclass(frozen=True, slots=True)
class Pauses:
    """What is paused, and since when. ``revision`` is that of the record; a higher one is newer.

    ``everything`` is set while the whole pipeline is paused, but for the vertices in ``released``.
    """

    everything: datetime | None = None
    vertices: Mapping[str, datetime] = field(default_factory=dict)
    released: frozenset[str] = frozenset()
    revision: int = field(default=0, compare=False, metadata=records.stored_as(None))

    def since(self, vertex: str) -> datetime | None:
        """Returns when the vertex was paused; ``None`` if it is not."""
        whole = None if vertex in self.released else self.everything
        return self.vertices.get(vertex, whole)

    def pausing(self, vertex: str | None, at: datetime) -> Pauses:
        """Returns the record with a vertex, or with all, paused; what was paused keeps its time."""
        if vertex is None:
            return replace(self, everything=self.everything or at, released=frozenset())
        if self.since(vertex) is not None:
            return self
        return replace(self, vertices={**self.vertices, vertex: at})

    def resuming(self, vertex: str | None) -> Pauses:
        """Returns the record with a vertex, or with all, going on."""
        if vertex is None:
            return Pauses(revision=self.revision)
        vertices = {name: at for name, at in self.vertices.items() if name != vertex}
        released = self.released | {vertex} if self.everything else self.released
        return replace(self, vertices=vertices, released=released)

    def to_json(self) -> dict[str, Any]:
        """Returns the record as it is stored and sent."""
        return records.to_plain(self)

    @classmethod
    def from_json(cls, raw: bytes | str, revision: int) -> Pauses:
        """Returns the record from what was stored."""
        return replace(records.from_json(cls, raw), revision=revision)
