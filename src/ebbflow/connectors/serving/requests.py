"""The requests of a source: those that are open, who waits for them, and those that ended lately.

Answers are kept only while someone waits for them: of a request that no one waits for they are
read from the store when they are fetched. Everything happens on one loop.

The register takes in the trail and says which requests end by it. How a request ended is written
down before the checkpoint passes it, and an ended request is forgotten only when it is written
down. So what a crash takes is in the trail behind the checkpoint, or in the buffer of the source.

A request that stays open for long would hold the checkpoint back, and its rows become too old to
be kept. So what is known of it is told again, at the end of the trail.

After a crash the trail tells of requests that ended before, too: their rows may have been written
again, or a branch of them continued. Only what has no record is taken up again.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import partial
from itertools import islice
from operator import attrgetter, itemgetter
from typing import NamedTuple

from ebbflow.accounts.completion import Completion, ToldRow
from ebbflow.connectors.serving.store import Checkpoint, RequestRecords, ServedRequest, Status
from ebbflow.engine.answers import Answer, answer_key
from ebbflow.streams.answer_bucket import TrailFrame
from ebbflow.streams.trail_rows import TrailRow

MOST_ENDED = 10_000
"""The most ended requests that are kept in memory; others are read from the bucket."""

_IN_FLIGHT = 64
_AT_ONCE = 1_000


# --- one request ----------------------------------------------------------------------------------


class AnswersSoFar:
    """The answers to a request that have come while someone waits for them.

    ``is_whole`` if someone has waited from the beginning, so that none can be missing.
    ``is_watched`` if someone wants each as it comes.
    """

    __slots__ = ("_by_name", "is_watched", "is_whole", "waiting")

    def __init__(self, is_whole: bool) -> None:
        self.is_whole = is_whole
        self.is_watched = False
        self.waiting = 0
        self._by_name: dict[str, Answer] = {}

    def __len__(self) -> int:
        return len(self._by_name)

    def add(self, answer: Answer) -> None:
        """Takes an answer in; one that is stored again takes the place of the first."""
        self._by_name[answer.name] = answer

    def in_order(self) -> tuple[Answer, ...]:
        """Returns them in the order of the request's results."""
        answers = self._by_name.values()
        # As a rule there is one, and its order is a parsed id.
        return tuple(answers if len(answers) == 1 else sorted(answers, key=attrgetter("order")))

    def without(self, known: set[str]) -> list[Answer]:
        """Returns those that are not known by name, in the order of their arrival."""
        answers = [answer for name, answer in self._by_name.items() if name not in known]
        return sorted(answers, key=attrgetter("arrived"))


class OpenRequest:
    """One request, from its acceptance to its end.

    ``begun`` is the sequence of the trail from which on all is told of it, and ``told_at`` when
    that was. ``end`` is there when it has ended. ``is_left`` when the book was closed before.
    """

    __slots__ = (
        "_waiting", "accepted", "answers", "begun", "completion", "end", "id", "is_left", "token",
        "told_at",
    )  # fmt: skip

    def __init__(self, source: str, request: str, accepted: datetime) -> None:
        self.id = request
        self.token = answer_key(request)
        self.accepted = accepted
        self.completion = Completion(source, request)
        self.begun: int | None = None
        self.told_at = accepted
        self.answers: AnswersSoFar | None = None
        self.end: ServedRequest | None = None
        self.is_left = False
        self._waiting: set[asyncio.Future[None]] = set()

    def describe(self) -> ServedRequest:
        """Returns how far it is."""
        return self._describe("in-progress")

    def _describe(self, status: Status, ended: datetime | None = None) -> ServedRequest:
        return ServedRequest(
            self.id,
            status,
            self.accepted,
            ended,
            self.completion.failure,
            answer_count=self.completion.answers,
            steps=self.completion.steps,
            steps_left_out=self.completion.steps_left_out,
        )

    def finish(self, at: datetime) -> ServedRequest:
        """Ends it, completed or failed, and wakes those that wait."""
        self.end = self._describe("failed" if self.completion.failure else "completed", at)
        self.wake()
        return self.end

    def leave(self) -> None:
        """Hears that the book is closed, and wakes those that wait."""
        self.is_left = True
        self.wake()

    def take(self, answer: Answer) -> None:
        """Takes an answer in for those that wait."""
        if self.answers is not None:
            self.answers.add(answer)
            # Who waits for the end alone is woken once, by the trail, which comes behind answers.
            if self.answers.is_watched or self.end is not None:
                self.wake()

    # --- waiting --------------------------------------------------------------------------------

    @property
    def has_everything(self) -> bool:
        """Whether it has ended and those that wait have all that it came to."""
        if self.end is None:
            return False
        answers = self.answers
        is_here = answers is not None and answers.is_whole and len(answers) >= self.end.answer_count
        return is_here or self.end.failure is not None

    def wake(self) -> None:
        """Wakes all that wait for a change."""
        waiting, self._waiting = self._waiting, set()
        for waiter in waiting:
            if not waiter.done():
                waiter.set_result(None)

    async def wait_for_change(self) -> None:
        """Returns when it has ended, the book was closed, or an answer has come that counts.

        One counts for those that watch, and for all when the request has ended before it came.
        """
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.add(waiter)
        try:
            await waiter
        finally:
            self._waiting.discard(waiter)


# --- all of a source ------------------------------------------------------------------------------


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
        """Returns the first open requests that were told that many frames ago, or before then.

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
