"""The marks of replays: records of what a replay of dead letters has sent to a partition.

A replay moves dead letters from one stream to another, and the server cannot store in one stream
and delete from another atomically. So the frames for a partition are stored together with a mark
that lists their dead letters: both or neither. The mark is in the redelivery stream, on a subject
that no task reads or purges. It stays until the dead letters are deleted, even if the task has read
the frames before, so after a crash the next replay knows from it which dead letters were sent.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import NamedTuple

from ebbflow.engine.publications import ROWS
from ebbflow.nats import api
from ebbflow.nats.bulk import EXPECTED, Addressed, publish_atomically
from ebbflow.nats.client import SecuredClient
from ebbflow.nats.stored import read_one
from ebbflow.streams.names import Names


@dataclass(frozen=True, slots=True, order=True)
class ReplayTarget:
    """A partition of a vertex to which dead letters are replayed."""

    vertex: str
    partition: int


class PackedFrame(NamedTuple):
    """An encoded frame, and its number of messages."""

    rows: int
    payload: bytes


@dataclass(frozen=True, slots=True)
class ReplayMark:
    """The dead letters that one replay has sent to a partition at once; none at its beginning.

    ``replay`` is unique to the replay. All dead letters of the vertex up to ``purged`` are being
    deleted, or were.
    """

    replay: str
    numbers: tuple[int, ...] = ()
    purged: int = 0

    def encode(self) -> bytes:
        """Returns the mark as the payload of a message."""
        numbers = [*_to_ranges(self.numbers)]
        facts = {"replay": self.replay, "numbers": numbers, "purged": self.purged}
        return json.dumps(facts).encode()

    @classmethod
    def decode(cls, payload: bytes) -> ReplayMark:
        """Returns the mark in the payload of a message."""
        facts = json.loads(payload)
        ranges = (range(first, last + 1) for first, last in facts["numbers"])
        numbers = tuple(number for each in ranges for number in each)
        return cls(facts["replay"], numbers, facts.get("purged", 0))


def _to_ranges(numbers: Sequence[int]) -> Iterator[tuple[int, int]]:
    runs = groupby(enumerate(sorted(numbers)), key=lambda pair: pair[1] - pair[0])
    for _, run in runs:
        members = [number for _, number in run]
        yield members[0], members[-1]


@dataclass(frozen=True, slots=True)
class StoredMark:
    """A mark and its sequence in the redelivery stream, which is unique to it."""

    seq: int
    mark: ReplayMark


class ReplayMarks:
    """The marks of a pipeline on the server, read from the streams' leaders."""

    def __init__(self, client: SecuredClient, names: Names) -> None:
        self._client = client
        self._names = names

    async def read_last(self, target: ReplayTarget) -> StoredMark | None:
        """Returns the mark that was written last."""
        stream, subject = self._address(target)
        message = await read_one(self._client, stream, last_by_subj=subject)
        if message is None:
            return None
        return StoredMark(message.seq, ReplayMark.decode(message.payload))

    async def store(
        self, target: ReplayTarget, frames: Iterable[PackedFrame], mark: ReplayMark, expected: int
    ) -> int | None:
        """Stores frames and their mark, if the last mark is the expected one; 0 means no mark.

        Returns the sequence of the mark; ``None`` if nothing was stored or that is not known.
        """
        _, subject = self._address(target)
        due = self._names.due_subject(target.vertex, target.partition)
        # The mark is the last one: its sequence is what the server confirms.
        messages: list[Addressed] = [
            (due, {ROWS: str(frame.rows)}, frame.payload) for frame in frames
        ]
        messages.append((subject, {EXPECTED: str(expected)}, mark.encode()))
        return await publish_atomically(self._client, messages)

    async def forget(self, target: ReplayTarget, up_to: int) -> None:
        """Deletes marks, once their dead letters are deleted."""
        stream, subject = self._address(target)
        await api.purge_subject(self._client, stream, subject, up_to)

    async def prepare(self, target: ReplayTarget) -> None:
        """Updates a stream that was made by an earlier version, so that it accepts marks."""
        stream, subject = self._address(target)
        config = (await api.call(self._client, f"STREAM.INFO.{stream}"))["config"]
        if subject in config["subjects"] and config.get("allow_atomic"):
            return
        subjects = [*config["subjects"], *({subject} - {*config["subjects"]})]
        changed = config | {"subjects": subjects, "allow_atomic": True}
        await api.call(self._client, f"STREAM.UPDATE.{stream}", changed)

    def _address(self, target: ReplayTarget) -> tuple[str, str]:
        place = target.vertex, target.partition
        return self._names.redelivery(*place), self._names.replayed_subject(*place)
