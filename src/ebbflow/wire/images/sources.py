"""Sources that do what the source images of Numaflow's examples do: they count.

They keep in memory what they gave, as the images do: a process that takes the place of a lost one
begins to count anew, under offsets of its own. They have no ``nack``, so Ebbflow keeps what is
nacked and redelivers it itself, with its delay.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Sequence

from ebbflow.source import Source, SourceMessage


class CountingSource(Source):
    """Gives 0, 1, 2, … as texts, each with a header ``x-txn-id``; gives none while some are open.

    A read gives as many as it is asked for, and the next one nothing until all are acknowledged.
    """

    def __init__(self) -> None:
        self._count = 0
        self._open: set[bytes] = set()
        self._start = time.time_ns()

    def read(self, limit: int, timeout: float) -> list[SourceMessage]:
        """Returns the next numbers if all that were given are settled, else nothing."""
        if self._open:
            return []
        numbers = range(self._count, self._count + limit)
        self._count += limit
        messages = [self._message(number) for number in numbers]
        self._open = {message.offset for message in messages}
        return messages

    def _message(self, number: int) -> SourceMessage:
        headers = {"x-txn-id": str(uuid.uuid4())}
        return SourceMessage(b"%d" % number, self._offset(number), headers=headers)

    def _offset(self, number: int) -> bytes:
        return b"%d-%d" % (self._start, number)

    def ack(self, offsets: Sequence[bytes]) -> None:
        """Forgets the messages."""
        self._open.difference_update(offsets)

    def pending(self) -> int:
        """Returns how many of the messages are not settled."""
        return len(self._open)
