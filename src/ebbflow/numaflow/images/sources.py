"""Sources that do what the source images of Numaflow's examples do: they count.

They keep in memory what they gave, as the images do: a process that takes the place of a lost one
begins to count anew, under offsets of its own. They have no ``nack``, so Ebbflow keeps what is
nacked and redelivers it itself, with its delay.
"""

from __future__ import annotations

import sys
import time
import uuid
from collections.abc import Sequence

from ebbflow.domain.message import Metadata
from ebbflow.domain.source import Source, SourceMessage


class CountingSource(Source):
    """Gives 0, 1, 2, … with a header ``x-txn-id``, and no more while one of them is unsettled.

    A read gives as many as it is asked for, and the next one nothing until all are acknowledged.
    """

    _end = sys.maxsize

    def __init__(self) -> None:
        self._count = 0
        self._open: set[bytes] = set()
        self._start = time.time_ns()

    def read(self, limit: int, timeout: float) -> list[SourceMessage]:
        """Returns the next numbers if all that were given are settled, else nothing."""
        if self._open:
            return []
        first, self._count = self._count, min(self._count + limit, self._end)
        messages = [self._message(number) for number in range(first, self._count)]
        self._open = {message.offset for message in messages}
        return messages

    def _message(self, number: int) -> SourceMessage:
        offset, headers = b"%d-%d" % (self._start, number), {"x-txn-id": str(uuid.uuid4())}
        return SourceMessage(b"%d" % number, offset, headers=headers, metadata=self._metadata())

    def _metadata(self) -> Metadata | None:
        return None

    def ack(self, offsets: Sequence[bytes]) -> None:
        """Forgets the messages."""
        self._open.difference_update(offsets)

    def pending(self) -> int:
        """Returns how many of the messages are not settled."""
        return len(self._open)


class CountingMetadataSource(CountingSource):
    """Gives 0 to 99, each with a ``txn-id`` in the group ``simple-source`` of its metadata."""

    _end = 100

    def _metadata(self) -> Metadata:
        return {"simple-source": {"txn-id": str(uuid.uuid4()).encode()}}

    @property
    def exhausted(self) -> bool:
        """Whether all have been given and acknowledged."""
        return self._count >= self._end and not self._open
