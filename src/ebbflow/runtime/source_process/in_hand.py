"""The messages that a source's process has given to its task and that are not settled.

They are kept as they were given, batch by batch, so that the next task can be given them again
when this one is gone. A batch is let go when the last of its messages is settled.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from itertools import repeat

import pyarrow as pa


@dataclass(slots=True)
class _Batch:
    """A batch, how many of its messages are not settled, and the bytes that each takes, about."""

    rows: pa.RecordBatch
    left: int
    size: float


class InHand:
    """Messages by their offsets. Used by one thread."""

    def __init__(self) -> None:
        self._batch_of: dict[bytes, int] = {}
        self._batches: dict[int, _Batch] = {}
        self._number = 0

    def __len__(self) -> int:
        return len(self._batch_of)

    @property
    def offsets(self) -> set[bytes]:
        """The offsets of all messages in hand."""
        return set(self._batch_of)

    @property
    def nbytes(self) -> float:
        """The bytes that the messages in hand take, about."""
        return sum(batch.left * batch.size for batch in self._batches.values())

    def without_known(self, columns: pa.RecordBatch) -> pa.RecordBatch:
        """Returns those of the messages that are not in hand yet, each once."""
        offsets = columns.column("offset").to_pylist()
        if self._batch_of.keys().isdisjoint(offsets) and len(set(offsets)) == len(offsets):
            return columns
        first = {offset: row for row, offset in reversed([*enumerate(offsets)])}
        fresh = sorted(row for offset, row in first.items() if offset not in self._batch_of)
        return columns.take(pa.array(fresh, pa.int64()))

    def add(self, rows: pa.RecordBatch) -> None:
        """Notes that these are given; none of them is in hand already."""
        self._number += 1
        count = rows.num_rows
        self._batches[self._number] = _Batch(rows, count, rows.nbytes / max(1, count))
        self._batch_of |= dict.fromkeys(rows.column("offset").to_pylist(), self._number)

    def settle(self, offsets: pa.BinaryArray) -> None:
        """Lets these go; those that are not in hand are not minded."""
        settled = Counter(map(self._batch_of.pop, offsets.to_pylist(), repeat(0)))
        for number, count in settled.items():
            if number:
                self._batches[number].left -= count
                if not self._batches[number].left:
                    del self._batches[number]

    def take_all(self) -> list[pa.RecordBatch]:
        """Returns all that are in hand, in the order they were given, and lets them go."""
        taken = [self._unsettled(number) for number in self._batches]
        self._batch_of, self._batches = {}, {}
        return taken

    def _unsettled(self, number: int) -> pa.RecordBatch:
        batch = self._batches[number]
        if batch.left == batch.rows.num_rows:
            return batch.rows
        offsets = batch.rows.column("offset").to_pylist()
        kept = [self._batch_of.get(offset) == number for offset in offsets]
        return batch.rows.filter(pa.array(kept, pa.bool_()))
