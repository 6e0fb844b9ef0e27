"""A replay: dead letters are read in the order of their numbers and sent back, step by step.

Each step is complete in itself: it decides about dead letters, sends them and deletes them. To
resume an interrupted replay, do it again: sent dead letters are deleted by then, except those of
the interrupted step, which are deleted first. ``chain`` explains why that is exact. A purge is a
replay that sends nothing: so no dead letter is both sent back and counted as deleted.

Messages with the same keys go to the same partition, as an ordered vertex requires, and messages
without keys are spread by their ids. Within a partition they keep the order of the dead letters.
"""

from __future__ import annotations

import hashlib
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any, Protocol

import pyarrow as pa
from typing_extensions import override

from ebbflow.deadletters.chain import Chain, ReplayParcel
from ebbflow.deadletters.filters import StoredLetter
from ebbflow.deadletters.transforms import DROP, Fate, Stays, Transform, transform_letter
from ebbflow.engine import frames
from ebbflow.engine.dead_letter import Letter
from ebbflow.engine.publications import partition_of
from ebbflow.streams.names import Names
from ebbflow.streams.replays import PackedFrame, ReplayTarget

STEP = 1_000
"""The most dead letters that are sent in one step."""
_A_SECOND = 4
"""The least steps per second with a rate, unless the rate is lower."""


_UNREAD = (
    "a source could not read this, so there is no message to send back; correct the row, or the "
    "schema, and have the source read it again"
)
_CUT = (
    "the value was cut because it was too large to be kept whole; send the original message to the "
    "source again"
)
# The most bytes that a frame of one message needs besides its value, with its history of deaths.
_FRAME = 8192


@dataclass(frozen=True, slots=True)
class LetterBatch:
    """Dead letters that were read together. ``end`` is the last number that was checked.

    ``missing`` are requested numbers without a dead letter.
    """

    letters: Sequence[StoredLetter]
    end: int
    missing: Sequence[int] = ()


class Reading(Protocol):
    """The dead letters to replay, of those that are stored now."""

    def read(self, after: int, most: int) -> LetterBatch | None:
        """Returns the next ones after a number; ``None`` when there are no more."""

    def renew(self) -> None:
        """Discards what was read ahead: later reads return what is stored from now on."""


@dataclass(frozen=True, slots=True)
class Leaving:
    """A dead letter that goes: its number, its target, and the message to send there.

    ``letter`` is that message, with headers about its deaths; ``None`` if it is only deleted.
    """

    number: int
    target: ReplayTarget
    letter: Letter | None = None
    death_headers: Mapping[str, str] = field(default_factory=dict)


class Packing(Protocol):
    """Packs dead letters for their vertices."""

    def explain_refusal(self, letter: Letter) -> str | None:
        """Returns why a dead letter cannot be sent back, even with another value."""

    def choose(self, letter: Letter) -> ReplayTarget | None:
        """Returns the partition that a dead letter is sent to: always the same one.

        ``None`` if the pipeline has no such vertex.
        """

    def pack(self, letters: Sequence[Leaving]) -> dict[ReplayTarget, ReplayParcel]:
        """Returns the dead letters as parcels, each in the given order."""

    def renew(self) -> None:
        """Reads again which partitions exist."""

    def explain_size(self, letter: Letter) -> str | None:
        """Returns why a dead letter is too large to be sent back."""


@dataclass(slots=True)
class ReplayResult:
    """The result of a replay: how many dead letters it sent back, deleted, and left.

    ``stayed`` has the numbers of those left, by reason. After a dry run it is the result that a
    replay would have had.
    """

    sent: int = 0
    purged: int = 0
    stayed: dict[str, list[int]] = field(default_factory=lambda: defaultdict(list))

    @property
    def kept(self) -> int:
        """The number of dead letters that stayed."""
        return sum(map(len, self.stayed.values()))

    def to_json(self) -> dict[str, Any]:
        """Returns it for programs."""
        stayed = [{"why": why, "numbers": numbers} for why, numbers in self.stayed.items()]
        return {"sent": self.sent, "purged": self.purged, "stayed": stayed}


@dataclass(frozen=True, slots=True)
class _Step:
    """The decisions about the dead letters of one step.

    ``astray`` are to be deleted, and their vertex is gone, so no replay can send them.
    """

    leaving: list[Leaving]
    astray: list[int]
    stays: list[tuple[int, str]]


class Replay:
    """One replay. ``vertices`` are the likely vertices of the dead letters.

    ``whole`` says that it reads every dead letter of each vertex that it reads from.
    """

    def __init__(
        self,
        chain: Chain,
        reading: Reading,
        packing: Packing,
        vertices: Collection[str],
        delete: Callable[[Sequence[int]], int],
        transform: Transform | None = None,
        rate: float | None = None,
        whole: bool = False,
        progress: Callable[[ReplayResult], None] = lambda result: None,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._chain = chain
        self._reading = reading
        self._packing = packing
        self._vertices = vertices
        self._delete = delete
        self._transform = transform
        self._rate = rate
        self._whole = whole
        self._progress = progress
        self._clock = clock
        self._sleep = sleep
        self._unswept: set[str] = set()
        self.result = ReplayResult()

    def run(self) -> ReplayResult:
        """Sends back all that can be; returns when everything is confirmed by the server."""
        self._chain.claim(self._vertices)
        self._reading.renew()
        began, after = self._clock(), -1
        while batch := self._reading.read(after, self._most):
            step = self._decide(batch)
            self._keep_pace(began, len(_to_send(step)))
            if self._carry_out(step):
                self._note_kept(step, batch)
                after = batch.end
                self._report_progress()
            else:
                # Another replay sent some of these, so all must be read again before they are sent.
                self._packing.renew()
                self._reading.renew()
        self._chain.release()
        return self.result

    def _report_progress(self) -> None:
        try:
            self._progress(self.result)
        except BaseException:  # the caller ends the replay, between two steps
            self._chain.release()
            raise

    def rehearse(self) -> ReplayResult:
        """Does everything but send and delete; returns the result that ``run`` would have."""
        sent, after = self._chain.find_sent(self._vertices), -1
        while batch := self._reading.read(after, STEP):
            left = [entry for entry in batch.letters if entry.number not in sent]
            step = self._decide(replace(batch, letters=left))
            to_send = len(_to_send(step))
            self.result.sent += to_send
            self.result.purged += len(step.leaving) - to_send + len(step.astray)
            self._note_kept(step, batch)
            after = batch.end
            self._progress(self.result)
        return self.result

    @property
    def _most(self) -> int:
        return STEP if self._rate is None else min(STEP, max(1, int(self._rate / _A_SECOND)))

    def _decide(self, batch: LetterBatch) -> _Step:
        step = _Step([], [], [])
        now = datetime.now(UTC)
        for entry in batch.letters:
            target = self._packing.choose(entry.letter)
            if target is not None and self._chain.is_purged(target, entry.number):
                self._unswept.add(target.vertex)  # whoever purges counts it
                continue
            fate = self._judge(entry.letter)
            if isinstance(fate, Stays):
                step.stays.append((entry.number, fate.why))
                self._unswept.add(entry.letter.vertex)
            elif target is None:
                step.astray.append(entry.number)
            elif isinstance(fate, str):
                step.leaving.append(Leaving(entry.number, target))
            else:
                death_headers = entry.letter.headers_for_replay(entry.number, now)
                step.leaving.append(Leaving(entry.number, target, fate, death_headers))
        return step

    def _judge(self, letter: Letter) -> Fate:
        why = self._packing.explain_refusal(letter)
        fate = Stays(why) if why else transform_letter(letter, self._transform)
        if isinstance(fate, Letter) and (why := self._packing.explain_size(fate)):
            return Stays(why)
        return fate

    def _keep_pace(self, began: float, more: int) -> None:
        if self._rate is None:
            return
        due = began + (self.result.sent + more) / self._rate
        self._sleep(max(0.0, due - self._clock()))

    def _carry_out(self, step: _Step) -> bool:
        """Returns ``False`` if some dead letters have not gone and have to be read again."""
        parcels = self._packing.pack(step.leaving)
        gone = self._chain.send(parcels, self._find_swept(step.leaving))
        sent = len(gone.intersection(_to_send(step)))
        self.result.sent += sent
        self.result.purged += len(gone) - sent
        if len(gone) < len(step.leaving):
            return False
        if step.astray:
            self.result.purged += self._delete(step.astray)
        return True

    def _find_swept(self, letters: Iterable[Leaving]) -> dict[str, int]:
        """Returns by vertex the number up to which all dead letters are sent or dropped."""
        if not self._whole:
            return {}
        last = {entry.target.vertex: entry.number for entry in letters}
        return {vertex: end for vertex, end in last.items() if vertex not in self._unswept}

    def _note_kept(self, step: _Step, batch: LetterBatch) -> None:
        for number, why in step.stays:
            self.result.stayed[why].append(number)
        for number in batch.missing:
            self.result.stayed["it does not exist or was deleted"].append(number)


class Purge(Replay):
    """A replay that deletes every dead letter, also those that cannot be sent back."""

    @override
    def _judge(self, letter: Letter) -> Fate:
        return DROP


def _to_send(step: _Step) -> list[int]:
    return [entry.number for entry in step.leaving if entry.letter is not None]


# --- packing for a vertex -----------------------------------------------------------------------


class LetterPacking(Packing):
    """Packs dead letters for the partitions of a pipeline, which it reads from the streams."""

    def __init__(
        self, names: Names, list_streams: Callable[[], Collection[str]], largest: int
    ) -> None:
        self._names = names
        self._list_streams = list_streams
        self._largest = largest
        self.renew()

    @override
    def renew(self) -> None:
        self._streams = self._list_streams()
        self._partitions: dict[str, Sequence[int]] = {}

    def find_targets(self, vertex: str) -> list[ReplayTarget]:
        """Returns all partitions of the vertex that exist."""
        return [ReplayTarget(vertex, partition) for partition in self._find_partitions(vertex)]

    @override
    def explain_refusal(self, letter: Letter) -> str | None:
        if letter.unread:
            return _UNREAD
        if letter.size is not None:
            return _CUT
        if not self._find_partitions(letter.vertex):
            return (
                f"the pipeline has no vertex {letter.vertex!r} any more; run a pipeline that has "
                "it once, then replay"
            )
        return None

    @override
    def explain_size(self, letter: Letter) -> str | None:
        if len(letter.value) + _FRAME < self._largest // 2:
            return None
        size = len(frames.encode(_to_rows([letter], [{}])))
        if size + _FRAME <= self._largest:
            return None
        return f"as a message it takes {size:,} bytes; the server takes {self._largest:,}"

    @override
    def pack(self, letters: Sequence[Leaving]) -> dict[ReplayTarget, ReplayParcel]:
        by_target: dict[ReplayTarget, list[Leaving]] = defaultdict(list)
        for leaving in letters:
            by_target[leaving.target].append(leaving)
        return {target: _pack(group) for target, group in by_target.items()}

    @override
    def choose(self, letter: Letter) -> ReplayTarget | None:
        """Returns the partition by the original dead letter, not by the result of a transform."""
        partitions = self._find_partitions(letter.vertex)
        if not partitions:
            return None
        if len(partitions) == 1:
            place = 0
        elif letter.keys:
            place = partition_of(letter.keys, len(partitions))
        else:
            digest = hashlib.blake2b(letter.id.encode(), digest_size=8).digest()
            place = int.from_bytes(digest) % len(partitions)
        return ReplayTarget(letter.vertex, partitions[place])

    def _find_partitions(self, vertex: str) -> Sequence[int]:
        if vertex not in self._partitions:
            known = self._names.partitions_in(self._streams)
            self._partitions[vertex] = sorted(number for name, number in known if name == vertex)
        return self._partitions[vertex]


def _pack(group: Sequence[Leaving]) -> ReplayParcel:
    sent = [(one.letter, one.death_headers) for one in group if one.letter is not None]
    rows = _to_rows([letter for letter, _ in sent], [headers for _, headers in sent])
    packed = [PackedFrame(frame.num_rows, frames.encode(frame)) for frame in frames.split(rows)]
    return ReplayParcel(packed, tuple(leaving.number for leaving in group))


def _to_rows(
    letters: Sequence[Letter], death_headers: Sequence[Mapping[str, str]]
) -> pa.RecordBatch:
    """Returns messages as on their first delivery, with only the history of their failures."""
    headers = [
        [*{**letter.headers, **deaths}.items()]
        for letter, deaths in zip(letters, death_headers, strict=True)
    ]
    columns = {
        "id": [letter.id for letter in letters],
        "keys": [letter.keys for letter in letters],
        "value": [letter.value for letter in letters],
        "event_time": [letter.event_time for letter in letters],
        "headers": headers,
        "metadata": [
            [(group, [*entries.items()]) for group, entries in letter.metadata.items()]
            for letter in letters
        ],
        "first_seen": [letter.first_seen for letter in letters],
    }
    return frames.batch_of(columns, len(letters))
