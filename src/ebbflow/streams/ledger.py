"""The ledger: the histories of messages that go back to the source they came from.

A message that waits in one of our streams carries its history with it. One that was nacked to its
source does not, so it is written down here: how often it was delivered, how often it failed, why it
was nacked. When the source gives it again the history is put back, and ``max_deliveries`` is exact
whatever was killed in between. When its message ends an entry is void: the frame that held it is
deleted, or a note says so as long as there is something else in it. What waits for long is moved
up from time to time, so that the ledger is never much larger than what is in it.

A source may give a message to another partition than the one that nacked it. So each partition
reads what all of them write, and is sure to have read it all when a message arrives. It deletes
only what it wrote itself: for an entry of another one's it leaves a note there.
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
"""The deliveries of a message whose entry is void; no message has been given that often."""
_MOST_FRAMES = 128
"""Frames that a partition may have beyond those that its entries need."""


@dataclass(frozen=True, slots=True)
class History:
    """The deliveries and failures of a message so far, as they are to be when it is redelivered."""

    deliveries: int
    failures: int
    retries: int
    first_seen: datetime | None
    nack_reason: str | None


@dataclass(frozen=True, slots=True)
class _Entry:
    """A history, and the frame that it is in."""

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
        """Sequence of a frame of ours → how many of its entries are the latest of their message."""
        self._read_to = 0

    async def load(self) -> None:
        """Reads what has been written down so far."""
        for message in await read_subject(self._link.client, self._stream, self._every_subject):
            self._enter(message.subject, message.seq, frames.decode(message.payload))
            self._read_to = message.seq

    def catch_up(self) -> None:
        """Reads all that any partition has written before this call; not on the link's loop."""
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
            # Anything else was entered when it was written, here. To enter it again would bring
            # back the entry of a message that has ended since.
            self._read_to = message.seq

    def histories(self, ids: pa.StringArray) -> dict[int, History]:
        """Returns what messages have been through that were nacked, by their place among the ids.

        As a rule there is nothing in the ledger, and no id is looked at.
        """
        if not self._entries:
            return {}
        entries = enumerate(map(self._entries.get, ids.to_pylist()))
        return {row: entry.history for row, entry in entries if entry is not None}

    async def write(self, rows: pa.RecordBatch, tally: Tally) -> None:
        """Writes down rows as they are to be redelivered; the server has confirmed it on return."""
        facts = {name: rows.column(name) for name in ("id", *FACTS)}
        bare = frames.batch_of(facts | {"value": [b""] * rows.num_rows}, rows.num_rows)
        before = {row_id: self._entries.get(row_id) for row_id in rows.column("id").to_pylist()}
        for frame in frames.split(bare):
            seq = await self._publish(self._subject, frame, tally)
            self._enter(self._subject, seq, frame)
        # The new entries first, then the notes about the old ones: a crash in between leaves two
        # entries, of which the newer counts. The other way round it would leave none, and the
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
            elif not self._knows_better(message_id, row["deliveries"], seq):
                self._leave(message_id)
                self._entries[message_id] = _Entry(subject, seq, History(**row))
                if own:
                    self._left[seq] += 1

    def _void(self, message_id: str, subject: str, seq: int) -> None:
        """Voids an entry: a note is about the entries next to it, those that came before."""
        known = self._entries.get(message_id)
        if known is not None and known.subject == subject and known.seq < seq:
            self._leave(message_id)

    def _knows_better(self, message_id: str, deliveries: int, seq: int) -> bool:
        """``True`` if there is a newer entry already; one that was moved up is not newer."""
        known = self._entries.get(message_id)
        return known is not None and (known.history.deliveries, known.seq) > (deliveries, seq)

    def _leave(self, message_id: str) -> _Entry | None:
        entry = self._entries.pop(message_id, None)
        if entry is not None and entry.subject == self._subject:
            self._left[entry.seq] -= 1
        return entry

    async def end(self, ids: pa.StringArray, tally: Tally) -> None:
        """Forgets messages that have ended for good, and has the server forget them."""
        if not (self._entries or self._left):
            return
        ended = {row_id: entry for row_id in ids.to_pylist() if (entry := self._leave(row_id))}
        await self._purge()
        there = {
            ended_id: entry
            for ended_id, entry in ended.items()
            if entry.subject != self._subject or entry.seq in self._left
        }
        await self._note(there, tally)
        if len(self._left) > _MOST_FRAMES + 4 * sum(self._left.values()) // frames.MAX_ROWS:
            await self._move_up(tally)

    async def _note(self, void: Mapping[str, _Entry], tally: Tally) -> None:
        """Says next to entries that are still on the server that they are void."""
        by_subject: dict[str, list[str]] = {}
        for message_id, entry in void.items():
            by_subject.setdefault(entry.subject, []).append(message_id)
        for subject, message_ids in by_subject.items():
            seq = await self._publish(subject, _make_note(message_ids), tally)
            if subject == self._subject:
                self._left[seq] = 0

    async def _purge(self) -> None:
        """Has the server delete our oldest frames, as far as there is nothing in them."""
        # Only up to the first frame that still holds something: purging is by sequence.
        done = list(takewhile(lambda seq: not self._left[seq], sorted(self._left)))
        for seq in done:
            del self._left[seq]
        if done:
            with contextlib.suppress(
                TimeoutError, JetStreamUnavailable, api.ApiError, nats.errors.Error
            ):
                # What fails is covered by the next purge.
                await api.purge_subject(self._link.client, self._stream, self._subject, done[-1])

    async def _move_up(self, tally: Tally) -> None:
        """Writes what the older half of our frames holds again, so that they can be deleted."""
        # First what others have noted: an entry that is void would be written as if it were not.
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
