"""The order in which dead letters are sent back, so that none is lost and none is sent twice.

To purge a dead letter is to send nothing for it: it is named by a mark without messages, so it was
not sent before and is never sent. A purge of everything is a number in the mark, which later marks
repeat: replays leave dead letters up to it alone, and whoever ends last has deleted them.

The marks of a partition are a chain: a mark is stored only if the mark that its writer has read
last is still the last one. Three rules make a replay exact, whichever process is killed when,
however late a replay is resumed, and however many replays run at once:

1. Before a replay reads dead letters, it has written a mark, or has read one, and has deleted the
   dead letters that the last mark names: this or another replay has sent them.
2. Dead letters are sent, or purged, with a mark that names them, on the condition that the mark of
   rule 1 is still the last one. If it is not, another replay has sent something since: begin again
   with rule 1.
3. Dead letters are deleted when their mark is stored, and before a mark that does not name them is
   written or the last one is deleted.

Sequences are never reused, so a deleted mark cannot be mistaken for another one. But one empty
chain looks like any other, which is why rule 1 writes a mark first. A dead letter always goes to
the same partition, whatever a transform changes: two replays that sent it to two partitions would
not meet in either chain. If the partitions of a vertex have changed since, rule 1 holds for all
that exist.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from ebbflow.streams.replays import PackedFrame, ReplayMark, ReplayTarget, StoredMark


@dataclass(frozen=True, slots=True)
class ReplayParcel:
    """Dead letters of one partition: the frames with their messages, and their numbers.

    Those without a message are only deleted.
    """

    frames: Sequence[PackedFrame]
    numbers: tuple[int, ...]


class ReplayStore(Protocol):
    """The server, as a replay uses it: the chains of marks, and the dead letters to delete."""

    def read_last(self, target: ReplayTarget) -> StoredMark | None:
        """Returns the last mark of a partition."""

    def store(
        self, target: ReplayTarget, frames: Iterable[PackedFrame], mark: ReplayMark, expected: int
    ) -> int | None:
        """Stores frames with a mark after the expected one; ``None`` if refused or uncertain."""

    def forget(self, target: ReplayTarget, up_to: int) -> None:
        """Deletes the marks of a partition up to a sequence."""

    def delete(self, numbers: Collection[int]) -> object:
        """Deletes dead letters; it is no error if some are deleted already."""

    def sweep(self, vertex: str, up_to: int) -> int:
        """Deletes every dead letter of a vertex up to a number; returns how many there were."""

    def wait(self) -> None:
        """Waits a moment before a retry; raises when retries have taken too long."""


class Chain:
    """The marks of one replay. ``find_targets`` returns all partitions of a vertex."""

    def __init__(
        self, store: ReplayStore, find_targets: Callable[[str], Sequence[ReplayTarget]]
    ) -> None:
        self._store = store
        self._find_targets = find_targets
        self._replay = secrets.token_hex(8)
        self._last: dict[ReplayTarget, int] = {}
        self._purged: dict[ReplayTarget, int] = {}

    def claim(self, vertices: Iterable[str]) -> bool:
        """Writes a mark on each partition that has none of this replay's; ``False`` if all have.

        Only dead letters of these vertices that are read after this may be sent.
        """
        targets = [target for vertex in vertices for target in self._find_targets(vertex)]
        unclaimed = [target for target in targets if target not in self._last]
        for target in unclaimed:
            self._claim(target)
        return bool(unclaimed)

    def _claim(self, target: ReplayTarget) -> None:
        tried = -1
        while True:
            last = self._read_last(target)
            expected = last.seq if last else 0
            if expected == tried:  # no other replay: the server did not store the mark
                self._store.wait()
            # It names what the last mark names: otherwise no other replay would delete these.
            mark = self._make_mark(target, last.mark.numbers if last else ())
            seq = self._store.store(target, (), mark, expected)
            if seq is not None:
                self._finish(last)
                self._last[target] = seq
                return
            tried = expected

    def _read_last(self, target: ReplayTarget) -> StoredMark | None:
        last = self._store.read_last(target)
        if last is not None:
            self._note_purged(target, last.mark.purged)
        return last

    def _note_purged(self, target: ReplayTarget, up_to: int) -> None:
        self._purged[target] = max(up_to, self._purged.get(target, 0))

    def _make_mark(self, target: ReplayTarget, numbers: tuple[int, ...] = ()) -> ReplayMark:
        return ReplayMark(self._replay, numbers, self._purged.get(target, 0))

    def _finish(self, last: StoredMark | None) -> None:
        """Deletes dead letters that were sent but may not have been deleted."""
        if last is not None and last.mark.numbers:
            self._store.delete(last.mark.numbers)

    def is_purged(self, target: ReplayTarget, number: int) -> bool:
        """Returns whether a purge of everything, which may still run, includes a dead letter."""
        return number <= self._purged.get(target, 0)

    def send(
        self, parcels: Mapping[ReplayTarget, ReplayParcel], swept: Mapping[str, int]
    ) -> set[int]:
        """Sends dead letters and deletes them; returns those that have gone.

        If some were not, all that are left have to be read again before they are sent.
        ``swept`` says up to which number these parcels have all dead letters of a vertex.
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

    def delete_all(self, vertex: str, up_to: int) -> int:
        """Deletes every dead letter of a vertex up to a number; returns how many there were.

        It is the first call of this chain for the vertex. No replay sends one of them after the
        marks are stored, and those that were sent before are deleted by then.
        """
        for target in self._find_targets(vertex):
            self._note_purged(target, up_to)
        self.claim([vertex])
        return self._store.sweep(vertex, up_to)

    def _send(self, target: ReplayTarget, parcel: ReplayParcel) -> bool:
        mark = self._make_mark(target, parcel.numbers)
        seq = self._store.store(target, parcel.frames, mark, self._last[target])
        if seq is None:
            return self._join(target, mark)
        self._last[target] = seq
        return True

    def _join(self, target: ReplayTarget, mark: ReplayMark) -> bool:
        """Continues after the mark that is now the last; ``True`` if it is this uncertain mark."""
        last = self._read_last(target)
        if last is None:
            self._claim(target)
            return False
        if last.seq == self._last[target]:  # no other replay: the server did not store the mark
            self._store.wait()
            return False
        self._finish(last)
        self._last[target] = last.seq
        return last.mark == mark

    def release(self) -> None:
        """Deletes the marks; call it only when all dead letters that they name are deleted."""
        for target, up_to in self._purged.items():
            if up_to:  # the process that purges may have been killed
                self._store.sweep(target.vertex, up_to)
        for target, seq in self._last.items():
            self._store.forget(target, seq)

    def find_sent(self, vertices: Iterable[str]) -> set[int]:
        """Returns the dead letters that an interrupted replay has sent; changes nothing."""
        targets = [target for vertex in vertices for target in self._find_targets(vertex)]
        marks = filter(None, map(self._read_last, targets))
        return {number for last in marks for number in last.mark.numbers}
