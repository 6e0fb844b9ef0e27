"""The messages of a JetStream source that were delivered and not answered yet.

Of each the hand knows where its answer goes. A message that is delivered again while it is in hand
is not taken twice: from then on its answer goes to the new delivery.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import repeat

from ebbflow.nats.pull import Deliveries


@dataclass(slots=True)
class _HeldBatch:
    """Messages that arrived together: their bytes, how many are in hand, the last sign of them."""

    offsets: list[bytes]
    size: int
    in_hand: int
    since: float


class Hand:
    """Used on the link's loop. ``size`` is in bytes; a batch counts until all of it is gone."""

    def __init__(self) -> None:
        self.size = 0
        self._held: dict[bytes, tuple[bytes, _HeldBatch]] = {}
        self._batches: deque[_HeldBatch] = deque()

    def __len__(self) -> int:
        return len(self._held)

    def __contains__(self, offset: bytes) -> bool:
        return offset in self._held

    def take(self, deliveries: Deliveries) -> Deliveries:
        """Returns the messages that were not in hand already; they are now."""
        offsets = write_offsets(deliveries)
        if not self._held.keys().isdisjoint(offsets):
            deliveries = self._without_held(deliveries, offsets)
            offsets = write_offsets(deliveries)
        size, replies = sum(deliveries.parcel.sizes()), deliveries.parcel.replies
        batch = _HeldBatch(offsets, size, len(offsets), time.monotonic())
        self._held.update(zip(offsets, zip(replies, repeat(batch), strict=False), strict=True))
        self._batches.append(batch)
        self.size += size
        return deliveries

    def _without_held(self, deliveries: Deliveries, offsets: Sequence[bytes]) -> Deliveries:
        """Returns those that are not in hand; the others were not kept in time, and go on."""
        rows: list[int] = []
        for row, offset in enumerate(offsets):
            if held := self._held.get(offset):
                # From now on the server takes words about the new delivery only.
                self._held[offset] = deliveries.parcel.replies[row], held[1]
            else:
                rows.append(row)
        return deliveries.pick(rows)

    def find_replies(self, offsets: Sequence[bytes]) -> list[bytes]:
        """Returns where the answers to messages in hand go."""
        return [self._held[offset][0] for offset in offsets]

    def all_replies(self) -> list[bytes]:
        """Returns where the answers to all messages go."""
        return [reply for reply, _ in self._held.values()]

    def let_go(self, offsets: Sequence[bytes]) -> None:
        """Forgets messages; some may be gone already, because they were answered twice."""
        held = [self._held.pop(offset) for offset in offsets if offset in self._held]
        for _, batch in held:
            batch.in_hand -= 1
            if not batch.in_hand:
                self.size -= batch.size
        while self._batches and not self._batches[0].in_hand:
            self._batches.popleft()

    def find_silent(self, seconds: float) -> Iterator[list[bytes]]:
        """Yields the replies of each batch of which there was no sign for so long; this is one."""
        now = time.monotonic()
        for batch in list(self._batches):
            if batch.in_hand and now - batch.since > seconds:
                batch.since = now
                held = [self._held[offset] for offset in batch.offsets if offset in self._held]
                yield [reply for reply, owner in held if owner is batch]


def write_offsets(deliveries: Deliveries) -> list[bytes]:
    """Returns the offsets of messages: the stream's sequences, as text."""
    return [b"%d" % seq for seq in deliveries.seqs]
