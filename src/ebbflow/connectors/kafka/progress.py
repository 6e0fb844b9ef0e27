"""The progress in one partition of a topic: what may be committed, what is yet to be settled."""

from __future__ import annotations


class Progress:
    """Messages of a partition, fetched in their order and settled in any.

    What may be committed is everything before the first message that is not settled: a message is
    never skipped, however many behind it are done. Offsets that nothing is at (compaction,
    transactions) do not hold it up.
    """

    def __init__(self) -> None:
        self._open: dict[int, None] = {}
        self.next: int | None = None
        """The offset to be read next, or ``None`` while nothing is known."""
        self.ended = False
        """Whether everything that was there has been fetched."""
        self.told: int | None = None
        """What was last committed, or is being committed."""

    def fetched(self, offset: int) -> None:
        """The message is in hand."""
        if self.next is not None and offset < self.next:
            # The topic was made anew, or its place was set back: keep the order all the same.
            self._open = dict.fromkeys(sorted({*self._open, offset}))
        self._open[offset] = None
        self.next = offset + 1
        self.ended = False

    def reached(self, end: int) -> None:
        """There is nothing more before ``end``, and nothing at it yet."""
        self.next = end
        self.ended = True

    def settled(self, offset: int) -> None:
        """The message is done with; one that is not in hand is not minded."""
        self._open.pop(offset, None)

    @property
    def unsettled(self) -> int:
        """The number of messages in hand."""
        return len(self._open)

    @property
    def committable(self) -> int | None:
        """The first offset that a successor has to read, or ``None`` while nothing is known."""
        return next(iter(self._open), self.next)
