"""The order in which dead letters are sent back, so that none is lost and none goes twice.

The marks of a partition are a chain: each is stored only if the one that its writer has seen last
is still the last. Three rules make a replay exact, whoever is killed when, however long it takes
until someone continues, and however many replays run at once:

1. Before letters are read, this replay has written a mark, or has seen one, and has deleted the
   letters that the last mark names: they were sent, whoever sent them.
2. Letters are sent with a mark that names them, on the condition that the mark of rule 1 is still
   the last one. If it is not, another replay has sent something since: begin again with rule 1.
3. Letters are deleted when their mark is stored, and before the next mark is written or the last
   one is deleted.

A sequence never comes again, so a mark that was deleted cannot be mistaken for another one. Only an
empty chain looks like any other empty chain, which is why rule 1 writes a mark first. A letter
always goes to the same partition, whatever a transform makes of it: two replays that send it to two
partitions would not meet in either chain. Should a vertex have got other partitions since, rule 1
holds for all that it has.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from ebbflow.streams.replays import PackedFrame, ReplayMark, ReplayTarget, StoredMark


@dataclass(frozen=True, slots=True)
class ReplayParcel:
    """Letters for one partition: the frames that hold their messages, and their numbers."""

    frames: Sequence[PackedFrame]
    numbers: tuple[int, ...]


class ReplayStore(Protocol):
    """The server, as a replay sees it: the chains of marks, and the letters that it deletes."""

    def read_last(self, target: ReplayTarget) -> StoredMark | None:
        """Returns the last mark of a partition."""

    def store(
        self, target: ReplayTarget, frames: Iterable[PackedFrame], mark: ReplayMark, expected: int
    ) -> int | None:
        """Stores frames with a mark behind the expected one; ``None`` if not, or not known."""

    def forget(self, target: ReplayTarget, up_to: int) -> None:
        """Deletes the marks of a partition up to a sequence."""

    def delete(self, numbers: Collection[int]) -> object:
        """Deletes letters; those that are gone already are not an error."""

    def sweep(self, vertex: str, up_to: int) -> object:
        """Deletes every letter of a vertex up to a number."""

    def wait(self) -> None:
        """Waits a moment before something is tried again; raises when it was tried for too long."""


class Chain:
    """The marks of one replay. ``find_targets`` returns all partitions of a vertex."""

    def __init__(
        self, store: ReplayStore, find_targets: Callable[[str], Sequence[ReplayTarget]]
    ) -> None:
        self._store = store
        self._find_targets = find_targets
        self._replay = secrets.token_hex(8)
        self._last: dict[ReplayTarget, int] = {}

    def claim(self, vertices: Iterable[str]) -> bool:
        """Writes a mark on each partition that has none of this replay's; ``False`` if all have.

        Only letters of these vertices that are read after this may be sent.
        """
        targets = [target for vertex in vertices for target in self._find_targets(vertex)]
        unclaimed = [target for target in targets if target not in self._last]
        for target in unclaimed:
            self._claim(target)
        return bool(unclaimed)

    def _claim(self, target: ReplayTarget) -> None:
        while True:
            last = self._store.read_last(target)
            self._finish(last)
            mark, expected = ReplayMark(self._replay), last.seq if last else 0
            seq = self._store.store(target, (), mark, expected)
            if seq is not None:
                self._last[target] = seq
                return
            self._store.wait()

    def _finish(self, last: StoredMark | None) -> None:
        """Deletes what was sent and may not have been deleted."""
        if last is not None and last.mark.numbers:
            self._store.delete(last.mark.numbers)

    def send(
        self, parcels: Mapping[ReplayTarget, ReplayParcel], swept: Mapping[str, int]
    ) -> set[int]:
        """Sends letters and deletes them; returns those that were sent.

        If some were not, all that are left have to be read again before they are sent.
        ``swept`` says up to which number all letters of a vertex are sent with these parcels.
        """
        sent: dict[ReplayTarget, tuple[int, ...]] = {}
        if self.claim(sorted({target.vertex for target in parcels})):
            return set()
        for target, parcel in parcels.items():
            if self._send(target, parcel):
                sent[target] = parcel.numbers
        is_all = len(sent) == len(parcels)
        single = {
            number
            for target, numbers in sent.items()
            for number in numbers
            if not (is_all and target.vertex in swept)
        }
        if single:
            self._store.delete(single)
        for vertex, up_to in swept.items() if is_all else ():
            self._store.sweep(vertex, up_to)
        return {number for numbers in sent.values() for number in numbers}

    def _send(self, target: ReplayTarget, parcel: ReplayParcel) -> bool:
        mark = ReplayMark(self._replay, parcel.numbers)
        seq = self._store.store(target, parcel.frames, mark, self._last[target])
        if seq is None:
            return self._join(target, mark)
        self._last[target] = seq
        return True

    def _join(self, target: ReplayTarget, mark: ReplayMark) -> bool:
        """Continues after the mark that is now the last; ``True`` if it is the one in doubt."""
        last = self._store.read_last(target)
        if last is None:
            self._claim(target)
            return False
        if last.seq == self._last[target]:  # no one came between; the server did not take it
            self._store.wait()
            return False
        self._finish(last)
        self._last[target] = last.seq
        return last.mark == mark

    def release(self) -> None:
        """Deletes the marks; only when nothing that they name is left to be deleted."""
        for target, seq in self._last.items():
            self._store.forget(target, seq)

    def find_sent(self, vertices: Iterable[str]) -> set[int]:
        """Returns the letters that an interrupted replay has sent; changes nothing."""
        targets = [target for vertex in vertices for target in self._find_targets(vertex)]
        marks = filter(None, map(self._store.read_last, targets))
        return {number for last in marks for number in last.mark.numbers}
