"""The requests of a source: open ones, the callers that wait for them, and recently ended ones.

Answers are kept in memory only while a caller waits for them; otherwise they are read from the
store when they are fetched. Everything happens on one loop.

The register reads the trail and determines which requests have ended. The record of an ended
request is stored before the checkpoint passes it, and a request is forgotten only once its record
is stored. So everything that a crash loses is in the trail after the checkpoint, or in the buffer
of the source.

A request that stays open for long would hold back the checkpoint, and the trail would drop its rows
for their age. So its rows are written to the end of the trail again.

After a crash the trail also has rows of requests that ended before: their rows may have been
written again, or one of their branches continued. Only requests without a record are reopened.
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

from ebbflow.accounts.completion import Completion, PublishedRow
from ebbflow.connectors.serving.store import Checkpoint, RequestRecords, ServedRequest, Status
from ebbflow.engine.answers import Answer, answer_key
from ebbflow.streams.answer_bucket import TrailFrame
from ebbflow.streams.trail_rows import TrailRow

MOST_ENDED = 10_000
"""The most ended requests to keep in memory; older ones are read from the bucket."""

_IN_FLIGHT = 64
_AT_ONCE = 1_000


# --- one request ----------------------------------------------------------------------------------


class ReceivedAnswers:
    """The answers to a request that have arrived while a caller waits for them.

    ``is_whole`` is true if a caller has waited from the beginning, so that none can be missing.
    ``is_watched`` is true if a caller wants each answer as it arrives.
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
        """Adds an answer; one that is stored again replaces the first."""
        self._by_name[answer.name] = answer

    def in_order(self) -> tuple[Answer, ...]:
        """Returns them in the order of the request's results."""
        answers = self._by_name.values()
        # Usually there is one answer; computing an order means parsing its id.
        return tuple(answers if len(answers) == 1 else sorted(answers, key=attrgetter("order")))

    def without(self, known: set[str]) -> list[Answer]:
        """Returns the answers whose names are not ``known``, in order of arrival."""
        answers = [answer for name, answer in self._by_name.items() if name not in known]
        return sorted(answers, key=attrgetter("arrived"))


class OpenRequest:
    """One request, from its acceptance to its end.

    ``begun`` is the trail sequence from which on the trail has all its rows, and ``begun_at`` the
    time of that. ``end`` is set when it has ended, ``is_left`` if the book was closed before.
    """

    __slots__ = (
        "_waiting", "accepted", "answers", "begun", "begun_at", "completion", "end", "id",
        "is_left", "token",
    )  # fmt: skip

    def __init__(self, source: str, request: str, accepted: datetime) -> None:
        self.id = request
        self.token = answer_key(request)
        self.accepted = accepted
        self.completion = Completion(source, request)
        self.begun: int | None = None
        self.begun_at = accepted
        self.answers: ReceivedAnswers | None = None
        self.end: ServedRequest | None = None
        self.is_left = False
        self._waiting: set[asyncio.Future[None]] = set()

    def describe(self) -> ServedRequest:
        """Returns its progress."""
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
        """Ends it, completed or failed, and wakes the waiting callers."""
        self.end = self._describe("failed" if self.completion.failure else "completed", at)
        self.wake()
        return self.end

    def leave(self) -> None:
        """Marks it as left by a closed book, and wakes the waiting callers."""
        self.is_left = True
        self.wake()

    def take(self, answer: Answer) -> None:
        """Adds an answer for the waiting callers."""
        if self.answers is not None:
            self.answers.add(answer)
            # A caller that waits only for the end is woken once, by the trail, which is written
            # after answers.
            if self.answers.is_watched or self.end is not None:
                self.wake()

    # --- waiting --------------------------------------------------------------------------------

    @property
    def has_everything(self) -> bool:
        """Whether it has ended and the waiting callers have all its answers, or it has failed."""
        if self.end is None:
            return False
        answers = self.answers
        is_here = answers is not None and answers.is_whole and len(answers) >= self.end.answer_count
        return is_here or self.end.failure is not None

    def wake(self) -> None:
        """Wakes all callers that wait for a change."""
        waiting, self._waiting = self._waiting, set()
        for waiter in waiting:
            if not waiter.done():
                waiter.set_result(None)

    async def wait_for_change(self) -> None:
        """Returns when it has ended, the book was closed, or a relevant answer has arrived.

        An answer is relevant if answers are watched, or if the request has already ended.
        """
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.add(waiter)
        try:
            await waiter
        finally:
            self._waiting.discard(waiter)


# --- all requests of a source ---------------------------------------------------------------------


class RequestHistory(NamedTuple):
    """An open request, and all its rows in the trail."""

    request: OpenRequest
    rows: tuple[PublishedRow, ...]


class RequestRegister:
    """The requests of one source. Everything happens on the link's loop."""

    def __init__(self, source: str, records: RequestRecords) -> None:
        self.open: dict[str, OpenRequest] = {}
        self._source = source
        self._records = records
        self._ended: OrderedDict[str, ServedRequest] = OrderedDict()
        # By the trail sequence where each began or ended, in ascending order.
        self._begun: OrderedDict[str, int] = OrderedDict()
        self._unwritten: OrderedDict[str, int] = OrderedDict()
        self._seen = 0
        self._written_before = 0
        self._recovered: list[ServedRequest] | None = None

    # --- requests -------------------------------------------------------------------------------

    def knows(self, request: str) -> bool:
        """Returns whether the request is open or has recently ended."""
        return request in self.open or request in self._ended

    def get_ended(self, request: str) -> ServedRequest | None:
        """Returns a request that has recently ended."""
        return self._ended.get(request)

    def add(self, request: OpenRequest) -> None:
        """Adds a request before its row is stored: the trail may have its outcome at once."""
        self.open[request.id] = request

    def remove(self, request: OpenRequest) -> None:
        """Forgets a request whose row is not stored."""
        if self.open.get(request.id) is request:
            del self.open[request.id]
            self._begun.pop(request.id, None)

    # --- the trail ------------------------------------------------------------------------------

    def take(self, frames: Sequence[TrailFrame]) -> None:
        """Applies rows of the trail."""
        for frame in frames:
            for row in frame.rows:
                request = self.open.get(row.request) or self._reopen(row)
                if request is not None:
                    self._note(request, frame, row)
            self._seen = frame.seq

    def _note(self, request: OpenRequest, frame: TrailFrame, row: TrailRow) -> None:
        if request.begun is None:
            request.begun = self._begun[request.id] = frame.seq
            request.begun_at = row.at
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
            # A request without a stored record is known only here.
            if oldest in self._unwritten:
                break
            del self._ended[oldest]

    @property
    def checkpoint(self) -> Checkpoint:
        """The progress of the requests, for the next run."""
        begun, unwritten = self._begun.values(), self._unwritten.values()
        behind = self._seen + 1
        return Checkpoint(next(iter(begun), behind) - 1, next(iter(unwritten), behind) - 1)

    # --- requests that stay open ----------------------------------------------------------------

    def list_behind(self, frames: int, before: datetime) -> list[RequestHistory]:
        """Returns the first open requests that began that many frames ago, or before that time.

        Leaves out requests with too many rows to be written again.
        """
        behind = []
        for request, seq in islice(self._begun.items(), _AT_ONCE):
            old = self.open.get(request)
            rows = old.completion.rows if old is not None else None
            if old is None or rows is None:
                continue
            if seq > self._seen - frames and old.begun_at >= before:
                break
            behind.append(RequestHistory(old, rows))
        return behind

    def note_rewritten(self, behind: Sequence[RequestHistory], seq: int, now: datetime) -> None:
        """Records that the rows are in the trail again, from ``seq`` on.

        Everything up to ``seq`` must have been applied: the checkpoint then passes all earlier
        rows, so every one of them must have been written again.
        """
        for request, rows in behind:
            if request.id in self.open and request.completion.rows == rows:
                request.begun = self._begun[request.id] = seq
                request.begun_at = now
        self._begun = OrderedDict(sorted(self._begun.items(), key=itemgetter(1)))

    # --- after a crash --------------------------------------------------------------------------

    def begin_recovery(self, checkpoint: Checkpoint, waiting: Mapping[str, datetime]) -> None:
        """Opens requests whose rows wait in the buffer, and begins to reopen those in the trail."""
        self._seen, self._written_before = checkpoint.begin, checkpoint.written
        self._recovered = []
        for request, accepted in waiting.items():
            self.add(OpenRequest(self._source, request, accepted))

    def _reopen(self, row: TrailRow) -> OpenRequest | None:
        """Opens a request that an earlier run has accepted; only those are unknown here."""
        # Any row will do: the root's row may come after those of the messages that it sent.
        if self._recovered is None or row.request in self._ended:
            return None
        request = OpenRequest(self._source, row.request, row.at)
        self.add(request)
        return request

    async def end_recovery(self, waiting: Mapping[str, datetime]) -> None:
        """Drops reopened requests that are not open, once the trail has been read to its end."""
        ended, self._recovered = self._recovered or [], None
        for request in [*self.open.values()]:
            # Rows without a root's row belong to a request that ended before, or to another source.
            if not request.completion.has_root_row and request.id not in waiting:
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
