"""The ledger: the histories of messages that were nacked to the source they came from.

A message that waits in Ebbflow's own streams carries its history. A message that was nacked to its
source does not, so its history is stored here: how often it was delivered, how often it failed, why
it was nacked. When the source redelivers the message its history is restored, so ``max_deliveries``
is exact whatever was killed in between. When the message ends, its entry is void: the frame with
the entry is deleted, or, while the frame has other entries, a note says that it is void. Old
entries are rewritten from time to time, so that the ledger is never much larger than its entries.

A source may redeliver a message to another partition than the one that nacked it. So each partition
reads the entries of all partitions, and has read all of them when a message arrives. It deletes
only its own frames; to void another partition's entry it writes a note to that partition's subject.
"""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from itertools import takewhile

import nats.errors
import pyarrow as pa

from ebbflow.domain.errors import JetStreamUnavailable
from ebbflow.engine import frames
from ebbflow.nats import api
from ebbflow.nats.link import Link
from ebbflow.nats.publish import PublishRetry, Tally, publish
from ebbflow.nats.stored import read_one, read_subject
from ebbflow.streams.names import Names

FACTS = ("deliveries", "failures", "retries", "first_seen", "nack_reason")
_VOID = 0
"""The ``deliveries`` that mark a note; real entries have at least one."""
_MOST_FRAMES = 128
"""The most frames of a partition beyond those that its entries need."""


@dataclass(frozen=True, slots=True)
class History:
    """The deliveries and failures of a message, with the values for its next delivery."""

    deliveries: int
    failures: int
    retries: int
    first_seen: datetime | None
    nack_reason: str | None


@dataclass(frozen=True, slots=True)
class _Entry:
    """A history, and the frame that contains it."""

    subject: str
    seq: int
    history: History


class Ledger:
    """The histories of a vertex, as one of its partitions sees them.

    Changed on the link's thread, read by the task's.
    """

    def __init__(
        self,
        link: Link,
        names: Names,
        vertex: str,
        partition: int,
        partitions: int,
        retry: PublishRetry,
    ) -> None:
        self._link = link
        self._stream = names.ledger
        self._subject = names.ledger_subject(vertex, partition)
        self._every_subject = names.ledger_subject(vertex)
        self._is_shared = partitions > 1
        self._retry = retry
        self._entries: dict[str, _Entry] = {}
        self._left: dict[int, int] = {}
        """Sequence of an own frame → how many of its entries are the latest for their message."""
        self._read_to = 0

    async def load(self) -> None:
        """Reads the entries that are stored."""
        for message in await read_subject(self._link.client, self._stream, self._every_subject):
            self._enter(message.subject, message.seq, frames.decode(message.payload))
            self._read_to = message.seq

    def catch_up(self) -> None:
        """Reads all that any partition wrote before this call; not to be called on the loop."""
        if self._is_shared:
            self._link.run(self._follow())

    async def _follow(self) -> None:
        while message := await read_one(
            self._link.client,
            self._stream,
            seq=self._read_to + 1,
            next_by_subj=self._every_subject,
        ):
            frame = frames.decode(message.payload)
            if message.subject != self._subject or _is_note(frame):
                self._enter(message.subject, message.seq, frame)
            # Own entries were entered when they were written. Entering them again would restore
            # the entry of a message that has ended since.
            self._read_to = message.seq

    def histories(self, ids: pa.StringArray) -> dict[int, History]:
        """Returns the histories of messages that were nacked, by their index in ``ids``.

        Usually the ledger is empty, and the ids are not read.
        """
        if not self._entries:
            return {}
        entries = enumerate(map(self._entries.get, ids.to_pylist()))
        return {row: entry.history for row, entry in entries if entry is not None}

    async def write(self, rows: pa.RecordBatch, tally: Tally) -> None:
        """Stores the histories of rows to be redelivered; confirmed by the server on return."""
        facts = {name: rows.column(name) for name in ("id", *FACTS)}
        bare = frames.batch_of(facts | {"value": [b""] * rows.num_rows}, rows.num_rows)
        before = {row_id: self._entries.get(row_id) for row_id in rows.column("id").to_pylist()}
        for frame in frames.split(bare):
            seq = await self._publish(self._subject, frame, tally)
            self._enter(self._subject, seq, frame)
        # The new entries first, then the notes about the old ones: a crash in between leaves two
        # entries, of which the newer counts. In the opposite order it would leave none, and the
        # message could be delivered more often than ``max_deliveries``.
        elsewhere = {
            row_id: entry
            for row_id, entry in before.items()
            if entry and entry.subject != self._subject
        }
        await self._note(elsewhere, tally)

    async def _publish(self, subject: str, frame: pa.RecordBatch, tally: Tally) -> int:
        ack = await publish(
            self._link.client,
            subject,
            frames.encode(frame),
            msg_id=secrets.token_hex(16),
            retry=self._retry,
            tally=tally,
        )
        return ack.seq

    def _enter(self, subject: str, seq: int, frame: pa.RecordBatch) -> None:
        own = subject == self._subject
        if own:
            self._left[seq] = 0
        for row in frame.select(["id", *FACTS]).to_pylist():
            message_id = row.pop("id")
            if row["deliveries"] == _VOID:
                self._void(message_id, subject, seq)
            elif not self._has_newer(message_id, row["deliveries"], seq):
                self._remove(message_id)
                self._entries[message_id] = _Entry(subject, seq, History(**row))
                if own:
                    self._left[seq] += 1

    def _void(self, message_id: str, subject: str, seq: int) -> None:
        """Voids an entry: a note is about earlier entries on its own subject."""
        known = self._entries.get(message_id)
        if known is not None and known.subject == subject and known.seq < seq:
            self._remove(message_id)

    def _has_newer(self, message_id: str, deliveries: int, seq: int) -> bool:
        """``True`` if there is a newer entry already; rewriting does not make an entry newer."""
        known = self._entries.get(message_id)
        return known is not None and (known.history.deliveries, known.seq) > (deliveries, seq)

    def _remove(self, message_id: str) -> _Entry | None:
        entry = self._entries.pop(message_id, None)
        if entry is not None and entry.subject == self._subject:
            self._left[entry.seq] -= 1
        return entry

    async def end(self, ids: pa.StringArray, tally: Tally) -> None:
        """Removes the entries of messages that have ended for good, here and on the server."""
        if not (self._entries or self._left):
            return
        ended = {row_id: entry for row_id in ids.to_pylist() if (entry := self._remove(row_id))}
        await self._purge()
        still_stored = {
            ended_id: entry
            for ended_id, entry in ended.items()
            if entry.subject != self._subject or entry.seq in self._left
        }
        await self._note(still_stored, tally)
        if len(self._left) > _MOST_FRAMES + 4 * sum(self._left.values()) // frames.MAX_ROWS:
            await self._compact(tally)

    async def _note(self, void: Mapping[str, _Entry], tally: Tally) -> None:
        """Writes notes that void entries which are still on the server, to the same subjects."""
        by_subject: dict[str, list[str]] = {}
        for message_id, entry in void.items():
            by_subject.setdefault(entry.subject, []).append(message_id)
        for subject, message_ids in by_subject.items():
            seq = await self._publish(subject, _make_note(message_ids), tally)
            if subject == self._subject:
                self._left[seq] = 0

    async def _purge(self) -> None:
        """Makes the server delete this partition's oldest frames that have no entries left."""
        # Only up to the first frame that still has an entry: purging is by sequence.
        done = list(takewhile(lambda seq: not self._left[seq], sorted(self._left)))
        for seq in done:
            del self._left[seq]
        if done:
            with contextlib.suppress(
                TimeoutError, JetStreamUnavailable, api.ApiError, nats.errors.Error
            ):
                # A purge that fails is covered by the next one.
                await api.purge_subject(self._link.client, self._stream, self._subject, done[-1])

    async def _compact(self, tally: Tally) -> None:
        """Rewrites the entries in the older half of the own frames, which are then deleted."""
        # The notes of other partitions first: otherwise a void entry would become valid again.
        await self._follow()
        last = sorted(self._left)[len(self._left) // 2]
        moved = {
            message_id: entry.history
            for message_id, entry in self._entries.items()
            if entry.subject == self._subject and entry.seq <= last
        }
        await self.write(_to_rows(moved), tally)
        await self._purge()


def _is_note(frame: pa.RecordBatch) -> bool:
    return bool(frame.column("deliveries")[0].as_py() == _VOID)


def _make_note(message_ids: list[str]) -> pa.RecordBatch:
    rows = len(message_ids)
    columns = {"id": message_ids, "value": [b""] * rows, "deliveries": [_VOID] * rows}
    return frames.batch_of(columns, rows)


def _to_rows(histories: Mapping[str, History]) -> pa.RecordBatch:
    columns = {name: [getattr(history, name) for history in histories.values()] for name in FACTS}
    values = {"id": list(histories), "value": [b""] * len(histories)}
    return frames.batch_of(columns | values, len(histories))
