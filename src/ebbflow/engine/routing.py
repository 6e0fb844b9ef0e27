"""Routing: which edges an output of a vertex follows, by its tags.

Conditions are those of Numaflow. An edge without a condition takes every message; ``or`` requires
any of the condition's values among the tags, ``and`` all of them, ``not`` none of them. A message
follows every edge that accepts it, and is dropped if no edge accepts it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ebbflow.domain.code import TagOperator


@dataclass(frozen=True, slots=True)
class Edge:
    """An edge from a vertex to the buffers of the next one.

    ``keyed`` sends messages with the same keys to the same partition, in order; ``discards`` drops
    messages when the buffer is full.
    """

    to: str
    partitions: int = 1
    operator: TagOperator = "or"
    values: frozenset[str] = frozenset()
    keyed: bool = False
    discards: bool = False

    def accepts(self, tags: Sequence[str]) -> bool:
        """Returns whether a message with these tags follows the edge."""
        if not self.values:
            return True
        if self.operator == "and":
            return self.values.issubset(tags)
        return self.values.isdisjoint(tags) is (self.operator == "not")


def route(edges: Sequence[Edge], tags: Sequence[Sequence[str]]) -> list[Sequence[int]]:
    """Returns for each edge the indexes of the outputs that follow it."""
    return [
        range(len(tags))
        if not edge.values
        else [index for index, these in enumerate(tags) if edge.accepts(these)]
        for edge in edges
    ]
