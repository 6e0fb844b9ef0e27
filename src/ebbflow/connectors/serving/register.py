"""The register of requests: those that are open, and those that have ended lately.

It takes in the trail and says which requests end by it. How a request ended is written down before
the checkpoint passes it, and an ended request is forgotten only when it is written down. So what a
crash takes is in the trail behind the checkpoint, or in the buffer of the source.

A request that stays open for long would hold the checkpoint back, and its rows become too old to
be kept. So what is known of it is told again, at the end of the trail.

After a crash the trail tells of requests that ended before, too: their rows may have been written
again, or a branch of them went on. Only what has no record is taken up again.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import partial
from itertools import islice
from operator import itemgetter
from typing import NamedTuple

from ebbflow.connectors.serving.open_request import OpenRequest
from ebbflow.connectors.serving.records import Checkpoint, RequestRecords
from ebbflow.connectors.serving.served_request import ServedRequest
from ebbflow.engine.completion import ToldRow
from ebbflow.engine.trail import TrailRow
from ebbflow.streams.answers import TrailFrame

MOST_ENDED = 10_000
"""The most ended requests that are kept in memory; others are read from the bucket."""

_IN_FLIGHT = 64
_AT_ONCE = 1_000


class Retelling(NamedTuple):
    """An open request, and all that was told of it."""

    request: OpenRequest
    rows: tuple[ToldRow, ...]


class RequestRegister:
    """The requests of one source. Everything happens on the link's loop."""

    def __init__(self, source: str, records: RequestRecords) -> None:
        self.open: dict[str, OpenRequest] = {}
        self._source = source
        self._records = records
        self._ended: OrderedDict[str, ServedRequest] = OrderedDict()
        # By the sequence of the trail where they began, or ended: in ascending order.
        self._begun: OrderedDict[str, int] = OrderedDict()
        self._unwritten: OrderedDict[str, int] = OrderedDict()
        self._seen = 0
        self._written_before = 0
        self._recovered: list[ServedRequest] | None = None

    # --- requests -------------------------------------------------------------------------------

    def knows(self, request: str) -> bool:
        """Returns whether the request is open or has ended lately."""
        return request in self.open or request in self._ended

    def get_ended(self, request: str) -> ServedRequest | None:
        """Returns a request that has ended lately."""
        return self._ended.get(request)

    def add(self, request: OpenRequest) -> None:
        """Takes up a request, before its row is stored: the trail may tell of it at once."""
        self.open[request.id] = request

    def remove(self, request: OpenRequest) -> None:
        """Forgets a request whose row is not stored."""
        if self.open.get(request.id) is request:
            del self.open[request.id]
            self._begun.pop(request.id, None)

    # --- the trail ------------------------------------------------------------------------------

    def take(self, frames: Sequence[TrailFrame]) -> None:
        """Takes in what the trail tells."""
        for frame in frames:
            for row in frame.rows:
                request = self.open.get(row.request) or self._take_up(row)
                if request is not None:
                    self._note(request, frame, row)
            self._seen = frame.seq

    def _note(self, request: OpenRequest, frame: TrailFrame, row: TrailRow) -> None:
        if request.begun is None:
            request.begun = self._begun[request.id] = frame.seq
            request.told_at = row.at
        request.completion.add(frame.vertex, row)
        if request.completion.has_ended:
            self._end(request, row.at, frame.seq)

    def _end(self, request: OpenRequest, at: datetime, seq: int) -> None:
        del self.open[request.id]
        ended = self._ended[request.id] = request.finish(at)
        self._unwritten[request.id] = seq
        if self._recovered is None:
            self._write(ended)
        elif seq > self._written_before:
            self._recovered.append(ended)
        else:
            self._note_written(request.id)

    def _write(self, ended: ServedRequest) -> None:
        self._records.write(ended, partial(self._note_written, ended.id))

    def _note_written(self, request: str) -> None:
        del self._unwritten[request], self._begun[request]
        while len(self._ended) > MOST_ENDED:
            oldest = next(iter(self._ended))
            # What is not written down is known here alone.
            if oldest in self._unwritten:
                break
            del self._ended[oldest]

    @property
    def checkpoint(self) -> Checkpoint:
        """How far the requests are, for the next run."""
        begun, unwritten = self._begun.values(), self._unwritten.values()
        behind = self._seen + 1
        return Checkpoint(next(iter(begun), behind) - 1, next(iter(unwritten), behind) - 1)

    # --- requests that stay open ----------------------------------------------------------------

    def list_behind(self, frames: int, before: datetime) -> list[Retelling]:
        """Returns the first open requests that were told so many frames ago, or before then.

        Those with too many rows to be told again are left out.
        """
        behind = []
        for request, seq in islice(self._begun.items(), _AT_ONCE):
            old = self.open.get(request)
            rows = old.completion.rows if old is not None else None
            if old is None or rows is None:
                continue
            if seq > self._seen - frames and old.told_at >= before:
                break
            behind.append(Retelling(old, rows))
        return behind

    def note_told_again(self, behind: Sequence[Retelling], seq: int, now: datetime) -> None:
        """Hears that the rows are in the trail again, from ``seq`` on.

        Everything up to ``seq`` must have been taken in: the checkpoint passes all that was before
        it, so there must be no row that was not told again.
        """
        for request, rows in behind:
            if request.id in self.open and request.completion.rows == rows:
                request.begun = self._begun[request.id] = seq
                request.told_at = now
        self._begun = OrderedDict(sorted(self._begun.items(), key=itemgetter(1)))

    # --- after a crash --------------------------------------------------------------------------

    def begin_recovery(self, checkpoint: Checkpoint, waiting: Mapping[str, datetime]) -> None:
        """Takes up requests whose rows wait in the buffer, and those that the trail tells of."""
        self._seen, self._written_before = checkpoint.begin, checkpoint.written
        self._recovered = []
        for request, accepted in waiting.items():
            self.add(OpenRequest(self._source, request, accepted))

    def _take_up(self, row: TrailRow) -> OpenRequest | None:
        """Opens a request that an earlier run has accepted; nothing else is unknown and open."""
        # Any row will do: that of the root may stand behind those of what it sent.
        if self._recovered is None or row.request in self._ended:
            return None
        request = OpenRequest(self._source, row.request, row.at)
        self.add(request)
        return request

    async def end_recovery(self, waiting: Mapping[str, datetime]) -> None:
        """Keeps of what was taken up those that are open, when the trail was read to its end."""
        ended, self._recovered = self._recovered or [], None
        for request in [*self.open.values()]:
            # Rows without their root are of a request that ended before, or of another source.
            if not request.completion.knows_root and request.id not in waiting:
                self.remove(request)
        gate = asyncio.Semaphore(_IN_FLIGHT)

        async def settle(request: str) -> None:
            async with gate:
                self._settle_recovered(request, await self._records.read(request))

        await asyncio.gather(*map(settle, [*(served.id for served in ended), *self.open]))

    def _settle_recovered(self, request: str, record: ServedRequest | None) -> None:
        if request in self._unwritten and record is not None:
            self._ended[request] = record
            self._note_written(request)
        elif request in self._unwritten:
            self._write(self._ended[request])
        elif record is not None and request in self.open:
            self.remove(self.open[request])
