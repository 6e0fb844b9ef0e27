"""Reading a range of a stream on a worker: every message in it that exists, or an error.

Messages come in blocks of bounded size. If a consumer, its server or the connection goes away,
another one goes on behind the last message seen. A consumer reads from one replica, which may lag
behind: so a range has ended when its last message or a later one was seen, or when the leader says
that nothing else is in it, never because a consumer has nothing more.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
import time
from collections.abc import Iterator

import pyarrow as pa

from ebbflow.datasource import columns
from ebbflow.datasource.leader import PATIENCE, PERMISSIONS, Facts, Leader
from ebbflow.datasource.offsets import Range
from ebbflow.datasource.planning import connect
from ebbflow.datasource.pull import End, Pull, Stored
from ebbflow.errors import AccessError, DataSourceError
from ebbflow.nats.address import Addresses
from ebbflow.nats.link import Link

_BLOCK_BYTES = 8 * 1024 * 1024
# A request may bring messages from behind the range: the first ones ask for few.
_FIRST_BLOCK, _LARGEST_BLOCK = 1_000, 16_000
# A replica that lags is looked at again so often before another one may be chosen.
_LAG, _LOOKS = 0.05, 20


def read(server: Addresses, wanted: Range) -> Iterator[pa.RecordBatch]:
    """The messages of a range, a block at a time."""
    link = connect(server)
    reader = RangeReader(link, wanted)
    try:
        link.run(reader.open())
        while block := link.run(reader.block()):
            yield columns.batch(block)
    finally:
        # An interpreter that is ending has stopped the link's thread: nobody would answer.
        if not sys.is_finalizing():
            with contextlib.suppress(TimeoutError):
                link.run(reader.close(), timeout=5)
            link.close()


class RangeReader:
    """Reads one range. Everything happens on the link's loop."""

    def __init__(self, link: Link, wanted: Range) -> None:
        self._client = link.client
        self._leader = Leader(link.client, wanted.stream, wanted.subject)
        self._wanted = wanted
        self._seen = wanted.after
        self._pull: Pull | None = None
        self._most = _FIRST_BLOCK
        self._size = _BLOCK_BYTES

    async def open(self) -> None:
        """Begin, if the range is still there."""
        self._seen = self._wanted.available(await self._facts()).after

    async def close(self) -> None:
        """End, whether everything was read or not."""
        pull, self._pull = self._pull, None
        if pull is not None:
            await pull.close()

    async def block(self) -> list[Stored]:
        """The next messages of the range; none when all have been returned."""
        looks = 0
        deadline = time.monotonic() + PATIENCE
        while self._seen < self._wanted.until:
            messages, end = await self._pulled()
            if messages:
                deadline = time.monotonic() + PATIENCE
                if within := await self._within(messages):
                    return within
            elif end is End.DRY and await self._nothing_left():
                self._seen = self._wanted.until
            elif time.monotonic() > deadline:
                raise self._stalled()
            else:
                looks += 1
                if looks % _LOOKS == 0:
                    await self.close()
                await asyncio.sleep(_LAG)
        return []

    async def _pulled(self) -> tuple[list[Stored], End]:
        most = min(self._most, self._wanted.until - self._seen)
        self._most = min(2 * self._most, _LARGEST_BLOCK)
        if self._pull is None:
            self._pull = await Pull.behind(self._client, self._leader, self._seen)
        try:
            messages, end = await self._pull.block(most, self._size)
        except AccessError as error:
            raise DataSourceError(error.what, PERMISSIONS) from None
        if end is End.GONE:
            await self.close()
        if end is End.TOO_LARGE and not messages:
            self._size *= 2
        return messages, end

    async def _within(self, messages: list[Stored]) -> list[Stored]:
        """Those of the range, when it is known that none was lost before or among them."""
        until, whole = self._wanted.until, self._seen
        self._seen = min(until, messages[-1].sequence)
        within = [one for one in messages if one.sequence <= until]
        for one in within:
            if one.sequence != whole + 1:
                break
            whole = one.sequence
        if whole < self._seen and self._wanted.fail_on_loss:
            self._wanted.check_loss(await self._facts(), whole)
        return within

    async def _nothing_left(self) -> bool:
        now = await self._facts()
        if now.last < self._wanted.until:
            return False  # whoever answered is behind the one that told the end of the range
        following = await self._leader.next_after(self._seen)
        if following is not None and following <= self._wanted.until:
            return False  # and the consumer will have it as soon as its replica does
        self._wanted.check_loss(now, self._seen)
        return True

    async def _facts(self) -> Facts:
        now = await self._leader.facts()
        self._wanted.check(now)
        return now

    def _stalled(self) -> DataSourceError:
        return DataSourceError(
            f"{self._wanted.stream}: messages behind {self._seen} up to {self._wanted.until} did "
            f"not come within {PATIENCE:.0f} s.",
            "Check the servers of the stream; the same range can be read again.",
        )
