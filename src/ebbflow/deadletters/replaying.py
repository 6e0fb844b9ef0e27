"""A replay: dead letters are read in the order of their numbers and sent back, step by step.

Each step is complete in itself: letters are decided about, sent, deleted. A replay that was
interrupted is resumed by doing it again: what was sent is gone by then, and what an interrupted
step has left is tidied up first. How that is exact: see ``chain``.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any, Protocol

from ebbflow.deadletters.chain import Chain, ReplayParcel
from ebbflow.deadletters.records import StoredLetter
from ebbflow.deadletters.transforms import Stays, Transform, decide
from ebbflow.engine.dead_letter import Letter
from ebbflow.streams.replays import ReplayTarget

STEP = 1_000
"""The most letters that are sent in one go."""
_A_SECOND = 4
"""So many steps a second are made at least when there is a rate, unless that is lower."""


@dataclass(frozen=True, slots=True)
class LetterBatch:
    """Letters that were read together. ``end`` is the last number that was looked at.

    ``missing`` are numbers that were asked for and have no letter.
    """

    letters: Sequence[StoredLetter]
    end: int
    missing: Sequence[int] = ()


class Reading(Protocol):
    """The letters that are to be replayed, as they are there now."""

    def read(self, after: int, most: int) -> LetterBatch | None:
        """Returns the next ones behind a number; ``None`` when there are no more."""

    def renew(self) -> None:
        """Has everything read as it is from now on."""


@dataclass(frozen=True, slots=True)
class Sendable:
    """A letter as it goes back, and where to. ``story`` are headers that say how it died."""

    number: int
    letter: Letter
    story: dict[str, str]
    target: ReplayTarget


class Packing(Protocol):
    """The way back to the vertices."""

    def explain_refusal(self, letter: Letter) -> str | None:
        """Returns why a letter cannot be sent back, whatever becomes of its value."""

    def choose(self, letter: Letter) -> ReplayTarget:
        """Returns the partition that a letter goes to: always the same one."""

    def pack(self, letters: Sequence[Sendable]) -> dict[ReplayTarget, ReplayParcel]:
        """Returns the letters as parcels, in their order within each."""

    def renew(self) -> None:
        """Looks anew which partitions there are."""

    def explain_size(self, letter: Letter) -> str | None:
        """Returns why a letter is too large to be sent back."""


@dataclass(slots=True)
class ReplayResult:
    """What a replay has come to: letters sent back, letters deleted, and letters that stayed.

    ``stayed`` has the reasons with the numbers of the letters. After a dry run it is what a replay
    would have come to.
    """

    sent: int = 0
    purged: int = 0
    stayed: dict[str, list[int]] = field(default_factory=lambda: defaultdict(list))

    @property
    def kept(self) -> int:
        """The number of letters that stayed."""
        return sum(map(len, self.stayed.values()))

    def to_json(self) -> dict[str, Any]:
        """Returns it for programs."""
        stayed = [{"why": why, "numbers": numbers} for why, numbers in self.stayed.items()]
        return {"sent": self.sent, "purged": self.purged, "stayed": stayed}


@dataclass(frozen=True, slots=True)
class _Step:
    """What is to become of the letters of one step."""

    sendable: list[Sendable]
    dropped: list[int]
    stays: list[tuple[int, str]]


class Replay:
    """One replay. ``vertices`` are those that the letters are likely to be of.

    ``whole`` says that it reads every letter of each vertex that it reads from.
    """

    def __init__(
        self,
        chain: Chain,
        reading: Reading,
        packing: Packing,
        vertices: Collection[str],
        delete: Callable[[Sequence[int]], object],
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
            self._keep_pace(began, len(step.sendable))
            if self._carry_out(step):
                self._note_kept(step, batch)
                after = batch.end
                self._tell()
            else:
                # Another replay sent some of these. Only what is read from now on may be sent.
                self._packing.renew()
                self._reading.renew()
        self._chain.release()
        return self.result

    def _tell(self) -> None:
        try:
            self._progress(self.result)
        except BaseException:  # somebody wants it to end here, where nothing is half done
            self._chain.release()
            raise

    def rehearse(self) -> ReplayResult:
        """Does everything but send and delete; returns what ``run`` would come to."""
        sent, after = self._chain.find_sent(self._vertices), -1
        while batch := self._reading.read(after, STEP):
            left = [entry for entry in batch.letters if entry.number not in sent]
            step = self._decide(replace(batch, letters=left))
            self.result.sent += len(step.sendable)
            self.result.purged += len(step.dropped)
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
            why = self._packing.explain_refusal(entry.letter)
            fate = Stays(why) if why else decide(entry.letter, self._transform)
            if isinstance(fate, Letter) and (why := self._packing.explain_size(fate)):
                fate = Stays(why)
            if isinstance(fate, Stays):
                step.stays.append((entry.number, fate.why))
                self._unswept.add(entry.letter.vertex)
            elif isinstance(fate, str):
                step.dropped.append(entry.number)
            else:
                story = entry.letter.headers_for_replay(entry.number, now)
                target = self._packing.choose(entry.letter)
                step.sendable.append(Sendable(entry.number, fate, story, target))
        return step

    def _keep_pace(self, began: float, more: int) -> None:
        if self._rate is None:
            return
        due = began + (self.result.sent + more) / self._rate
        self._sleep(max(0.0, due - self._clock()))

    def _carry_out(self, step: _Step) -> bool:
        """Returns ``False`` if letters are left that have to be read anew."""
        parcels = self._packing.pack(step.sendable)
        sent = self._chain.send(parcels, self._find_swept(step.sendable))
        self.result.sent += len(sent)
        if len(sent) < len(step.sendable):
            return False
        if step.dropped:
            self._delete(step.dropped)
            self.result.purged += len(step.dropped)
        return True

    def _find_swept(self, letters: Iterable[Sendable]) -> dict[str, int]:
        """Returns up to which number a vertex has no letter but those that are sent or dropped."""
        if not self._whole:
            return {}
        last = {entry.letter.vertex: entry.number for entry in letters}
        return {vertex: end for vertex, end in last.items() if vertex not in self._unswept}

    def _note_kept(self, step: _Step, batch: LetterBatch) -> None:
        for number, why in step.stays:
            self.result.stayed[why].append(number)
        for number in batch.missing:
            self.result.stayed["there is no such dead letter, or no more"].append(number)
