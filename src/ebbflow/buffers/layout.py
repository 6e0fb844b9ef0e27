"""The streams that a vertex keeps: known from its spec alone, made by a run, allowed to its login.

The one account of them. Provisioning makes what permissions allow, because both read it here.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ebbflow.buffers.names import Names


@dataclass(frozen=True, slots=True)
class VertexStreams:
    """A vertex as its streams show it.

    ``has_buffer`` if it reads one; ``returns`` if its source may be given nacked messages back;
    ``remembers`` if its source writes down the ids that it was given; ``batched`` if the driver
    plans what it reads, instead of a task that follows its streams.
    """

    vertex: str
    partitions: int
    has_buffer: bool
    returns: bool = False
    remembers: bool = False
    batched: bool = False

    def for_messages(self, names: Names) -> Iterator[str]:
        """Returns the streams that hold messages on their way, of all partitions."""
        for partition in range(self.partitions):
            if self.has_buffer:
                yield names.buffer(self.vertex, partition)
            yield names.redelivery(self.vertex, partition)
