"""The dead letters of a pipeline on the server: reading them in order, and deleting them."""

from __future__ import annotations

import json
import time
from bisect import bisect_right
from collections.abc import Collection, Iterable, Sequence
from concurrent.futures import Future

from typing_extensions import override

from ebbflow.deadletters.chain import ReplayStore
from ebbflow.deadletters.filters import (
    LetterFilter,
    LetterRecord,
    StoredLetter,
    record_of,
    records_of,
)
from ebbflow.deadletters.replay import LetterBatch, Reading
from ebbflow.domain.errors import EbbflowError, JetStreamUnavailable
from ebbflow.nats import api
from ebbflow.nats.link import Link
from ebbflow.nats.stored import (
    StoredPage,
    StreamSnapshot,
    read_many,
    read_one,
    read_page,
    take_snapshot,
)
from ebbflow.nats.wire import Publishes
from ebbflow.streams.names import Names
from ebbflow.streams.replays import PackedFrame, ReplayMark, ReplayMarks, ReplayTarget, StoredMark

_PAUSE = 0.1
_SILENCE = 5.0
_DELETED = b'"success":true'
_WINDOW, _WIDER = 1_000, 4


class LetterStore(ReplayStore):
    """The dead letters, and the marks of replays. Every call waits for the server."""

    def __init__(self, link: Link, names: Names) -> None:
        self.link = link
        self.names = names
        self._marks = ReplayMarks(link.client, names)
        self._prepared: set[ReplayTarget] = set()
        self._tried_since: float | None = None

    # --- dead letters ---------------------------------------------------------------------------

    def look(self) -> StreamSnapshot:
        """Returns a snapshot of the stream, which reading the dead letters needs."""
        client = self.link.client
        gaps = not client.is_on_a_single_server
        return self.link.run(take_snapshot(client, self.names.dead_letters, gaps))

    def read_page(
        self, vertex: str | None, after: int, there: StreamSnapshot, most: int
    ) -> list[LetterRecord]:
        """Returns the next dead letters after a number; none when there are no more."""
        return records_of(self.begin_page(vertex, after, there, most).result())

    def begin_page(
        self, vertex: str | None, after: int, there: StreamSnapshot, most: int
    ) -> Future[StoredPage]:
        """Starts to read the next dead letters after a number, without waiting for them."""
        stream, start = self.names.dead_letters, max(after + 1, there.first)
        subject = self.names.dead_letter_subject(vertex or "*")
        return self.link.submit(read_page(self.link.client, stream, subject, start, there, most))

    def read_window(self, vertex: str | None, there: StreamSnapshot) -> list[LetterRecord]:
        """Returns all dead letters of a snapshot, which should be small."""
        records: list[LetterRecord] = []
        while page := self.read_page(vertex, self._end_of(records, there), there, _WINDOW):
            records += page
        return records

    @staticmethod
    def _end_of(records: list[LetterRecord], there: StreamSnapshot) -> int:
        return records[-1].number if records else there.first - 1

    def find_all(self, numbers: Sequence[int]) -> list[LetterRecord | None]:
        """Returns dead letters by their numbers, in that order; ``None`` if one does not exist.

        They are read from the leader: another server may still have one that was deleted.
        """
        valid = [number for number in numbers if number > 0]  # 0 would mean the last one
        stream, client = self.names.dead_letters, self.link.client
        messages = filter(None, self.link.run(read_many(client, stream, valid)))
        records = {message.seq: record_of(message) for message in messages}
        return [records.get(number) for number in numbers]

    def parse(self, record: LetterRecord) -> StoredLetter:
        """Returns the dead letter; ``EbbflowError`` if something else was put into the stream."""
        try:
            return record.to_letter()
        except (KeyError, ValueError, TypeError) as error:
            pipeline, number = self.names.pipeline, record.number
            raise EbbflowError(
                f"Message {number} of stream {self.names.dead_letters} is not a dead letter: "
                f"{type(error).__name__}: {error}. "
                f"Remove it with: ebbflow dlq purge {pipeline} {number}"
            ) from error

    @override
    def delete(self, numbers: Collection[int]) -> int:
        """Deletes all these dead letters or raises; returns how many were still there."""
        subject = f"$JS.API.STREAM.MSG.DELETE.{self.names.dead_letters}"
        wanted = sorted(numbers)
        bodies = [json.dumps({"seq": number, "no_erase": True}).encode() for number in wanted]
        rows = Publishes.plain([subject.encode()] * len(wanted), bodies)
        answers = self.link.run(self.link.client.request_all(rows, _SILENCE))
        deleted = 0
        for number, answer in zip(wanted, answers, strict=True):
            confirmed = isinstance(answer, bytes) and _DELETED in answer
            deleted += confirmed or self.link.run(self._delete(number))
        return deleted

    async def _delete(self, number: int) -> bool:
        stream, client = self.names.dead_letters, self.link.client
        try:
            call = f"STREAM.MSG.DELETE.{stream}"
            await api.call(client, call, {"seq": number, "no_erase": True})
            return True
        except api.ApiError as error:
            # The server has one error for all reasons. Another process may have deleted it, or an
            # earlier attempt whose reply was lost.
            if await read_one(client, stream, seq=number) is not None:
                raise EbbflowError(f"Dead letter {number} was not deleted: {error}.") from error
            return False

    @override
    def sweep(self, vertex: str, up_to: int) -> int:
        """Deletes every dead letter of a vertex up to a number; returns how many there were."""
        before, subject = self._count(vertex), self.names.dead_letter_subject(vertex)
        deleted = self.link.run(
            api.purge_subject(self.link.client, self.names.dead_letters, subject, up_to)
        )
        # A purge that is repeated because its reply was lost finds nothing.
        return deleted or max(0, before - self._count(vertex))

    def _count(self, vertex: str) -> int:
        subject = self.names.dead_letter_subject(vertex)
        client, stream = self.link.client, self.names.dead_letters
        info = self.link.run(api.read_info(client, stream, subjects_filter=subject))
        return sum((info.get("subjects") or {}).values())

    # --- marks ----------------------------------------------------------------------------------

    @override
    def read_last(self, target: ReplayTarget) -> StoredMark | None:
        return self.link.run(self._marks.read_last(target))

    @override
    def store(
        self, target: ReplayTarget, frames: Iterable[PackedFrame], mark: ReplayMark, expected: int
    ) -> int | None:
        if target not in self._prepared:
            self.link.run(self._marks.prepare(target))
            self._prepared.add(target)
        seq = self.link.run(self._marks.store(target, frames, mark, expected))
        if seq is not None:
            self._tried_since = None
        return seq

    @override
    def forget(self, target: ReplayTarget, up_to: int) -> None:
        self.link.run(self._marks.forget(target, up_to))

    @override
    def wait(self) -> None:
        """Waits a moment; ``JetStreamUnavailable`` if nothing could be stored for too long."""
        now = time.monotonic()
        self._tried_since = self._tried_since or now
        if now - self._tried_since > api.PATIENCE:
            raise JetStreamUnavailable("the replay", api.PATIENCE, "nothing was stored")
        time.sleep(_PAUSE)


class FilteredReading(Reading):
    """The dead letters that match a filter, of those stored when the reading is renewed.

    With ``ahead`` the next page is requested while the caller works on this one.
    """

    def __init__(self, store: LetterStore, chosen: LetterFilter, ahead: bool = False) -> None:
        self._store = store
        self._chosen = chosen
        self._reads_ahead = ahead
        self._ahead: tuple[int, Future[StoredPage]] | None = None
        self._there = store.look()

    @override
    def renew(self) -> None:
        """Reads what is stored from now on, without messages that died after the beginning."""
        # A message that dies again while this runs is excluded: it could be replayed forever.
        there, self._ahead = self._store.look(), None
        self._there = StreamSnapshot(there.first, self._there.last, there.deleted)

    @override
    def read(self, after: int, most: int) -> LetterBatch | None:
        """Returns the next dead letters; those that do not match are skipped."""
        records = self._read(after, most)
        up_to = self._chosen.up_to
        if not records or (up_to is not None and records[0].number > up_to):
            return None
        chosen = [self._store.parse(record) for record in self._pick(records)]
        return LetterBatch(chosen, records[-1].number)

    def _pick(self, records: list[LetterRecord]) -> list[LetterRecord]:
        if self._chosen.is_everything and self._chosen.up_to is None:
            return records
        return [record for record in records if self._chosen.matches(record)]

    def _read(self, after: int, most: int) -> list[LetterRecord]:
        vertex, there = self._chosen.vertex, self._there
        expected, page = self._ahead or (-1, None)
        if page is None or expected != after:
            page = self._store.begin_page(vertex, after, there, most)
        records = records_of(self._store.link.wait(page))
        self._ahead = None
        if records and self._reads_ahead:
            end = records[-1].number
            self._ahead = end, self._store.begin_page(vertex, end, there, most)
        return records


class BackwardReading:
    """The dead letters that match a filter, newest first, of those stored when it begins.

    A stream can only be read forwards, so it is read window by window from its end.
    """

    def __init__(self, store: LetterStore, chosen: LetterFilter) -> None:
        self._store = store
        self._chosen = chosen
        self._there = store.look()

    def read(self, after: int, most: int) -> LetterBatch | None:
        """Returns dead letters before a number, 0 for the newest; ``None`` if there are none."""
        there, up_to = self._there, self._chosen.up_to
        end = min(after - 1 if after else there.last, there.last if up_to is None else up_to)
        while end >= there.first:
            start = max(there.first, end - most + 1)
            window = StreamSnapshot(start, end, there.deleted)
            if records := self._store.read_window(self._chosen.vertex, window):
                chosen = [record for record in reversed(records) if self._chosen.matches(record)]
                return LetterBatch([self._store.parse(record) for record in chosen], start)
            end, most = start - 1, most * _WIDER  # purged dead letters leave wide gaps
        return None


class NumberedReading(Reading):
    """Dead letters by their numbers."""

    def __init__(self, store: LetterStore, numbers: Iterable[int]) -> None:
        self._store = store
        self._numbers = sorted(set(numbers))

    @override
    def renew(self) -> None:
        """Does nothing: each dead letter is read from the leader when it is needed."""

    @override
    def read(self, after: int, most: int) -> LetterBatch | None:
        start = bisect_right(self._numbers, after)
        numbers = self._numbers[start : start + most]
        if not numbers:
            return None
        records = self._store.find_all(numbers)
        letters = [self._store.parse(record) for record in records if record]
        there = {letter.number for letter in letters}
        return LetterBatch(letters, numbers[-1], [n for n in numbers if n not in there])
