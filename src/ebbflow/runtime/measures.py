"""The numbers of a running task, for people: a few for each chunk, none for a message.

A ``ChunkRecord`` begins when a chunk is taken and ends when all of it is confirmed; until then its
rows are in hand. The task's thread begins records, the thread of the link ends them, and the task's
thread adds up those that have ended.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from ebbflow.engine.causes import Raised, RaisedErrors
from ebbflow.engine.spread import Spread

STAGES = ("read", "call", "publish", "settle")
"""The stages of a chunk: gathered, decided by user code, published, recorded."""

MESSAGE = "message"
"""The time of user code for one message, counted beside the stages."""

_MOST_TOLD = 25


@dataclass(slots=True)
class ChunkRecord:
    """One chunk: when it was taken, its rows, and the seconds of each stage so far."""

    at: datetime
    rows: int
    read: float = 0.0
    call: float = 0.0
    publish: float = 0.0
    settle: float = 0.0
    ended: bool = False

    def end(self) -> None:
        """Notes that all of it is confirmed; from any thread."""
        self.ended = True

    def to_json(self) -> list[float]:
        """Returns it as it is told: time and rows, then microseconds."""
        micros = (round(getattr(self, stage) * 1e6) for stage in STAGES)
        return [self.at.timestamp(), self.rows, *micros]


class Measures:
    """The numbers of one task since it began. Used by the task's thread."""

    def __init__(self) -> None:
        self.spreads = {stage: Spread() for stage in (*STAGES, MESSAGE)}
        self.sent: Counter[str] = Counter()
        self.raised = RaisedErrors()
        self._open: list[ChunkRecord] = []
        self._told: deque[ChunkRecord] = deque(maxlen=_MOST_TOLD)

    def begin_chunk(self, at: datetime, rows: int) -> ChunkRecord:
        """Returns the record of a chunk that was just taken."""
        record = ChunkRecord(at, rows)
        self._open.append(record)
        return record

    def note_errors(self, errors: RaisedErrors) -> None:
        """Counts what user code has raised."""
        if errors:
            self.raised.merge(errors)

    def note_sent(self, rows: dict[str, int]) -> None:
        """Counts rows that go to the next vertices, by vertex."""
        self.sent.update(rows)

    @property
    def in_hand(self) -> tuple[int, float] | None:
        """The rows that are taken and not confirmed, and since when; from any thread."""
        records = [record for record in self._open.copy() if not record.ended]
        if not records:
            return None
        return sum(record.rows for record in records), records[0].at.timestamp()

    def add_up(self) -> None:
        """Counts the chunks that have ended since the last time."""
        ended = [record for record in self._open if record.ended]
        if not ended:
            return
        self._open = [record for record in self._open if not record.ended]
        for record in ended:
            for stage in STAGES:
                self.spreads[stage].add(getattr(record, stage))
            if record.rows:
                self.spreads[MESSAGE].add(record.call / record.rows, record.rows)
        self._told.extend(ended)

    def take_chunks(self) -> list[list[float]]:
        """Returns the chunks that have ended since they were last asked for, the newest of them."""
        chunks = [record.to_json() for record in self._told]
        self._told.clear()
        return chunks

    def take_errors(self) -> list[dict[str, Any]]:
        """Returns what was raised since this was last asked for."""
        raised, self.raised = self.raised, RaisedErrors()
        return [dump_raised(group) for group in raised]

    def spreads_as_json(self) -> dict[str, list[float]]:
        """Returns the spreads as they are told."""
        return {name: [s.seconds, *s.buckets] for name, s in self.spreads.items() if s.count}


def dump_raised(raised: Raised) -> dict[str, Any]:
    """Returns a group of errors as it is told."""
    return {name: getattr(raised, name) for name in Raised.__slots__}


def load_spreads(raw: dict[str, list[float]]) -> dict[str, Spread]:
    """Returns spreads from what was told."""
    return {name: Spread([int(n) for n in rest], sec) for name, (sec, *rest) in raw.items()}


def add_spreads(parts: Iterable[dict[str, Spread]]) -> dict[str, Spread]:
    """Returns the spreads of several tasks together."""
    total: dict[str, Spread] = {}
    for part in parts:
        for name, spread in part.items():
            total[name] = total[name] + spread if name in total else spread
    return total
