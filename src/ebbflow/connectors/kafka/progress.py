"""The progress in partitions of topics: what may be committed, what is yet to be settled.

A message's offset in the pipeline names its topic, its partition and its number there, such as
``orders:3:1042``. It is the same whoever reads the record.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa
import pyarrow.compute as pc

Partition = tuple[str, int]
"""A topic and the number of one of its partitions."""


class Progress:
    """Messages of a partition, fetched in their order and settled in any.

    What may be committed is everything before the first message that is not settled: a message is
    never skipped, however many behind it are done. Offsets that nothing is at (compaction,
    transactions) do not hold it up.
    """

    def __init__(self) -> None:
        self._open: set[int] = set()
        self.next: int | None = None
        """The offset to be read next, or ``None`` while nothing is known."""
        self.ended = False
        """True when everything that was there has been fetched."""
        self.committed: int | None = None
        """The offset that was last committed, or is being committed."""

    def fetch(self, numbers: Sequence[int]) -> None:
        """Notes that these messages are in hand; the last of them is the last that was read."""
        self._open.update(numbers)
        self.next = numbers[-1] + 1
        self.ended = False

    def reach(self, end: int) -> None:
        """Notes that there is nothing more before ``end``, and nothing at it yet."""
        self.next = end
        self.ended = True

    def settle(self, numbers: Sequence[int]) -> None:
        """Notes that these messages are done with; those that are not in hand do not matter."""
        self._open.difference_update(numbers)

    @property
    def unsettled(self) -> int:
        """The number of messages in hand."""
        return len(self._open)

    @property
    def committable(self) -> int | None:
        """The first offset that a successor has to read, or ``None`` while nothing is known."""
        # The smallest, not the one that was fetched first: a topic that was made anew, or a place
        # that was set back, gives small numbers after large ones.
        return min(self._open, default=self.next)


def write_offsets(
    topics: Sequence[str], partitions: Sequence[int], numbers: Sequence[int]
) -> pa.Array:
    """Returns the offset of each message."""
    places = list(zip(topics, partitions, strict=True))
    starts = {place: "{}:{}:".format(*place) for place in set(places)}
    digits = pa.array(numbers, pa.int64()).cast(pa.string())
    if len(starts) == 1:
        return pc.binary_join_element_wise(*starts.values(), digits, "").cast(pa.binary())
    every = pa.array(map(starts.__getitem__, places), pa.string())
    return pc.binary_join_element_wise(every, digits, "").cast(pa.binary())


def read_offsets(offsets: pa.Array) -> Iterator[tuple[Partition, list[int]]]:
    """Yields the partitions that offsets name, each with the numbers of the messages there."""
    texts = offsets.cast(pa.string())
    while len(texts):
        topic, partition, _ = texts[0].as_py().rsplit(":", 2)
        start = f"{topic}:{partition}:"
        here = pc.starts_with(texts, start)
        numbers = pc.utf8_slice_codeunits(texts.filter(here), len(start)).cast(pa.int64())
        yield (topic, int(partition)), numbers.to_pylist()
        texts = texts.filter(pc.invert(here))
