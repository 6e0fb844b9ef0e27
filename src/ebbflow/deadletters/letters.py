"""The dead letters of a pipeline, for people and programs: find, replay and purge them.

Dead letters are numbered by their place in the dead-letter stream; a number is never used again.
Several dead letters may have the same message id: a message can die at two vertices, or again after
a replay.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

from ebbflow.deadletters.chain import Chain
from ebbflow.deadletters.filters import LetterFilter, LetterRecord, StoredLetter
from ebbflow.deadletters.replay import LetterPacking, Purge, Replay, ReplayResult
from ebbflow.deadletters.store import (
    BackwardReading,
    FilteredReading,
    LetterStore,
    NumberedReading,
)
from ebbflow.deadletters.transforms import Transform
from ebbflow.domain.errors import EbbflowError
from ebbflow.domain.spelling import named_options
from ebbflow.engine.causes import are_alike
from ebbflow.nats import api
from ebbflow.nats.link import Link
from ebbflow.nats.locate import open_link_to_pipeline
from ebbflow.status.backlog import LetterCauses
from ebbflow.streams.names import PREFIX, Names
from ebbflow.streams.provision import explain_unknown

_AT_A_TIME = 4_000
_FEW = 20

Which = int | str
"""A dead letter by its number, or all dead letters of a message by its id."""

Causes = dict[tuple[str, str], int]
"""The number of dead letters by vertex and cause."""

Choice = LetterFilter | Iterable[int | StoredLetter]
"""Dead letters that match a filter, or some dead letters, or their numbers."""


@dataclass(frozen=True, slots=True)
class LetterPage:
    """Some dead letters of a search, in its order.

    Pass ``next`` as ``after`` to continue; it is ``None`` at the end. A page may be shorter than
    its limit, even empty, and have a ``next``: then the search ran out of time. ``total`` is how
    many dead letters match, if that is known without reading all of them.
    """

    letters: tuple[StoredLetter, ...]
    next: int | None
    total: int | None


class DeadLetters:
    """The dead letters of one pipeline; get them with ``DeadLetters.open``.

    ``SetupError`` if there is no such pipeline.

    Works next to a running pipeline as well as without one. Blocks; used by one thread at a time.
    """

    page_size = 1_000
    search_time = 0.25
    """The seconds after which a search returns what it has: finding few means reading many."""

    def __init__(self, link: Link, pipeline: str) -> None:
        self._link = link
        self._names = Names(pipeline)
        if self._names.dead_letters not in (streams := self._list_streams()):
            raise explain_unknown(pipeline, streams)
        self._store = LetterStore(link, self._names)
        self._causes = LetterCauses(link.client, self._names)

    @classmethod
    @named_options
    @contextmanager
    def open(
        cls, pipeline: str, *, state: str | Path = ".ebbflow", nats: str | None = None
    ) -> Iterator[Self]:
        """Opens the dead letters of a pipeline: in its state folder, or on your own server.

        Starts an embedded server that is not running, for as long as the context lasts.
        """
        inbox = Names(pipeline).inbox
        with open_link_to_pipeline(Path(state), nats, inbox=inbox) as link:
            yield cls(link, pipeline)

    # --- finding --------------------------------------------------------------------------------

    def counts(self) -> dict[str, int]:
        """Returns the number of dead letters by vertex, without vertices that have none."""
        subjects = self._read_info("*").get("subjects") or {}
        return {name.rpartition(".")[2]: count for name, count in sorted(subjects.items())}

    def causes(self) -> Causes:
        """Returns the number of dead letters by vertex and cause, the most frequent first.

        A cause is its reason and error. If they differ only in numbers, ids or quoted values, they
        are one cause, with ``…`` where they differ. The first call reads all dead letters, later
        calls only new ones.
        """
        self._link.run(self._causes.look())
        return {(str(c.group), c.text): c.count for c in self._causes.all_causes()}

    @named_options
    def search(
        self,
        chosen: LetterFilter | None = None,
        after: int = 0,
        limit: int = 50,
        newest: bool = False,
    ) -> LetterPage:
        """Returns the next matching dead letters after a number, within a fraction of a second.

        With ``newest`` it begins with the newest one, and continues with those before ``after``.
        """
        chosen = chosen or LetterFilter()
        reading = self._read(chosen, newest)
        letters: list[StoredLetter] = []
        began, total = time.monotonic(), self._count_cheaply(chosen)
        most = min(self.page_size, limit + 1) if chosen.is_everything else self.page_size
        while batch := reading.read(after, most):
            letters += batch.letters
            after = batch.end
            if len(letters) > limit:
                return LetterPage(tuple(letters[:limit]), letters[limit - 1].number, total)
            if time.monotonic() - began > self.search_time:
                return LetterPage(tuple(letters), after, total)
        return LetterPage(tuple(letters), None, total)

    def _count_cheaply(self, chosen: LetterFilter) -> int | None:
        if chosen.up_to is not None:
            return None
        if chosen.is_everything:
            counts = self.counts()
            return counts.get(chosen.vertex, 0) if chosen.vertex else sum(counts.values())
        by_cause = replace(chosen, cause=None).is_everything and self._causes.is_known
        if not by_cause or chosen.cause is None:
            return None
        return sum(
            count
            for (vertex, text), count in self.causes().items()
            if chosen.vertex in (None, vertex) and are_alike(text, chosen.cause)
        )

    def _read(
        self, chosen: LetterFilter, newest: bool, ahead: bool = False
    ) -> FilteredReading | BackwardReading:
        if newest:
            return BackwardReading(self._store, chosen)
        return FilteredReading(self._store, chosen, ahead)

    def list(
        self,
        chosen: LetterFilter | None = None,
        limit: int | None = None,
        newest: bool = False,
    ) -> Iterator[StoredLetter]:
        """Yields the current dead letters that match, oldest first or ``newest`` first.

        They are read page by page.
        """
        reading = self._read(chosen or LetterFilter(), newest, ahead=limit is None)
        after, left = 0, limit
        most = self.page_size if left is None else min(self.page_size, max(1, left))
        while (left is None or left > 0) and (batch := reading.read(after, most)):
            letters = batch.letters if left is None else batch.letters[:left]
            yield from letters
            left = None if left is None else left - len(letters)
            after = batch.end

    def last_number(self, chosen: LetterFilter | None = None) -> int:
        """Returns the number of the last current dead letter, or the filter's ``up_to`` if less."""
        last = int(self._read_info("*")["last_seq"])
        return min(last, chosen.up_to) if chosen and chosen.up_to is not None else last

    def get(self, *which: Which) -> tuple[StoredLetter, ...]:
        """Returns these dead letters, oldest first; ``EbbflowError`` if some do not exist."""
        numbers = {number for number in which if isinstance(number, int)}
        ids = {message_id for message_id in which if isinstance(message_id, str)}
        letters = {record.number: self._store.parse(record) for record in self._find_all(numbers)}
        for message_id in sorted(ids):
            of_message = {one.number: one for one in self.list(LetterFilter(id=message_id))}
            if not of_message:
                raise self._explain_missing(f"of message {message_id!r}")
            letters |= of_message
        return tuple(letters[number] for number in sorted(letters))

    def _find_all(self, numbers: Collection[int]) -> Iterator[LetterRecord]:
        for number, record in zip(numbers, self._store.find_all([*numbers]), strict=True):
            if record is None:
                raise self._explain_missing(f"with number {number}")
            yield record

    def _explain_missing(self, which: str) -> EbbflowError:
        pipeline = self._names.pipeline
        return EbbflowError(
            f"There is no dead letter {which} in {pipeline}. "
            f"See which there are with: ebbflow dlq list {pipeline}"
        )

    # --- sending back ---------------------------------------------------------------------------

    @named_options
    def replay(
        self,
        chosen: Choice,
        *,
        transform: Transform | None = None,
        rate: float | None = None,
        dry_run: bool = False,
        progress: Callable[[ReplayResult], None] = lambda result: None,
    ) -> ReplayResult:
        """Sends messages back to their vertices as on their first delivery, in order of number.

        ``transform`` decides on each dead letter, in this process: see ``deadletters.transforms``.
        ``rate`` is the most per second. With ``dry_run`` transforms are called and nothing is
        sent or deleted. ``progress`` is called after every step with the result so far.

        A dead letter that cannot be replayed stays, does not keep others from being replayed, and
        is in the result with the reason. Each dead letter is sent back exactly once, even if this
        process is killed and the replay repeated later, or if several replays run at once.
        """
        if not isinstance(chosen, LetterFilter):
            chosen = sorted({_number_of(letter) for letter in chosen})
        everything = isinstance(chosen, LetterFilter) and chosen.is_everything
        reading = self._read_chosen(chosen)
        packing = self._make_packing()
        # A replica that lags behind could hide a dead letter, which a sweep would delete unread.
        whole = everything and self._link.client.is_on_a_single_server
        replay = Replay(
            Chain(self._store, packing.find_targets),
            reading,
            packing,
            self._find_vertices(chosen),
            self._store.delete,
            transform=transform,
            rate=rate,
            whole=whole,
            progress=progress,
        )
        return replay.rehearse() if dry_run else replay.run()

    def _read_chosen(
        self, chosen: LetterFilter | Sequence[int]
    ) -> FilteredReading | NumberedReading:
        if isinstance(chosen, LetterFilter):
            return FilteredReading(self._store, chosen, ahead=True)
        return NumberedReading(self._store, chosen)

    def _find_vertices(self, chosen: LetterFilter | Sequence[int]) -> Collection[str]:
        if isinstance(chosen, LetterFilter):
            return self.counts() if chosen.vertex is None else [chosen.vertex]
        if len(chosen) > _FEW:
            return self.counts()
        records = filter(None, self._store.find_all(chosen))
        return {self._store.parse(record).letter.vertex for record in records}

    def _make_packing(self) -> LetterPacking:
        return LetterPacking(self._names, self._list_streams, self._link.client.max_payload)

    def _list_streams(self) -> set[str]:
        return set(self._link.run(api.list_streams(self._link.client, PREFIX)))

    # --- deleting -------------------------------------------------------------------------------

    def purge(self, chosen: Choice) -> int:
        """Deletes these dead letters for good; returns how many were still there.

        A dead letter that a replay has sent back does not count, and one that counts is not sent
        back by a replay that runs at the same time. A number may also be that of a message in the
        stream that is not a dead letter. Raises ``EbbflowError`` if a number does not exist, and
        then deletes nothing.
        """
        if not isinstance(chosen, LetterFilter):
            return self._purge_numbers(sorted({_number_of(letter) for letter in chosen}))
        if chosen.is_everything and (count := self._sweep(chosen)) is not None:
            return count
        return self._purge_read(chosen)

    def _purge_numbers(self, numbers: Sequence[int]) -> int:
        letters: list[int] = []
        others: list[int] = []
        for start in range(0, len(numbers), _AT_A_TIME):
            for record in self._find_all(numbers[start : start + _AT_A_TIME]):
                (letters if record.is_letter else others).append(record.number)
        return self._purge_read(letters) + (self._store.delete(others) if others else 0)

    def _purge_read(self, chosen: LetterFilter | Sequence[int]) -> int:
        packing = self._make_packing()
        purge = Purge(
            Chain(self._store, packing.find_targets),
            self._read_chosen(chosen),
            packing,
            self._find_vertices(chosen),
            self._store.delete,
        )
        return purge.run().purged

    def _sweep(self, chosen: LetterFilter) -> int | None:
        """Deletes all dead letters, or all of a vertex; ``None`` if the filter excludes some."""
        info = self._read_info(chosen.vertex or "*")
        up_to = info["last_seq"]
        if chosen.up_to not in (None, up_to):
            return None
        chain = Chain(self._store, self._make_packing().find_targets)
        vertices = [subject.rpartition(".")[2] for subject in info.get("subjects") or {}]
        deleted = sum(chain.delete_all(vertex, up_to) for vertex in vertices)
        chain.release()
        return deleted

    def _read_info(self, vertex: str) -> dict[str, Any]:
        subject = self._names.dead_letter_subject(vertex)
        client, stream = self._link.client, self._names.dead_letters
        return self._link.run(api.read_info(client, stream, subjects_filter=subject))


def _number_of(letter: int | StoredLetter) -> int:
    return letter if isinstance(letter, int) else letter.number
