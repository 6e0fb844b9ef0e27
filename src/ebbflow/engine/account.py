"""The account of a chunk: the decisions about its rows and where its outputs went, made once.

An account is made when a chunk is decided and routed. Code that only reports on chunks is a
``ChunkObserver`` of it: the loop has a tuple of observers and knows none of them by name. No
observer changes the outcome of a message.

The outcomes of the rows are computed here, once and on first use: a chunk that no observer reports
on costs nothing.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import cached_property
from typing import Any, assert_never

import pyarrow as pa

from ebbflow.domain.outcome import (
    DeadLetter,
    Done,
    Dropped,
    FellBack,
    Outcome,
    Redeliver,
    Retry,
    Served,
    Succeeded,
)
from ebbflow.engine.frames import Rows
from ebbflow.engine.publications import ChunkNumber, Place, Publication, Routed
from ebbflow.engine.redelivery import due_time, shorten
from ebbflow.engine.verdict import Verdict

SENT = "sent"
"""Outputs of a message were forwarded before its end; a later row says how it ended."""
REDELIVERED = "redelivered"
DEAD_LETTERED = "dead_lettered"
OUTCOMES = ("done", "dropped", REDELIVERED, "fallback", "on_success", "served", DEAD_LETTERED)
"""Every outcome of a delivery; all but ``redelivered`` are the end of a message at a vertex."""
STAGES = ("read", "call", "publish", "settle")
"""The stages of a chunk: gathered, decided by user code, published, recorded."""
NOT_ROUTED = Dropped("no edge takes its tags")

_DONE: dict[str, Any] = {"outcome": "done"}


@dataclass(frozen=True, slots=True)
class HeldRow:
    """A row that an ordered vertex holds: it was delivered and is not settled."""

    row: pa.RecordBatch
    outcome: Outcome


@dataclass(frozen=True)
class AccountPart:
    """What one vertex did with the rows of a chunk. Used by the task's thread.

    ``amended`` are the rows whose outcome differs from the decision, as not all was stored.
    """

    place: Place
    batch: pa.RecordBatch
    verdict: Verdict
    routed: Routed
    at: datetime
    amended: Mapping[int, Outcome] = field(default_factory=dict)

    @cached_property
    def rows(self) -> Rows:
        """The rows as they were read, not as user code has seen and may have changed them."""
        return Rows(self.batch)

    @cached_property
    def outcomes(self) -> Mapping[int, Outcome]:
        """The outcome of each row that has one besides done."""
        unrouted = dict.fromkeys(self.routed.unrouted, NOT_ROUTED)
        return {**self.verdict.outcomes, **unrouted, **self.amended}

    @cached_property
    def ends(self) -> Mapping[int, dict[str, Any]]:
        """The description of each row's outcome besides done: see ``describe_outcome``."""
        return {index: describe_outcome(how, self.at) for index, how in self.outcomes.items()}

    def end(self, index: int) -> dict[str, Any]:
        """Returns the description of a row's outcome."""
        return self.ends.get(index, _DONE)

    def count_by_edge(self) -> dict[str, int]:
        """Returns how many rows go to each of the next vertices that get any."""
        return {edge.to: len(edge.parents) for edge in self.routed.edges if len(edge.parents)}


@dataclass(frozen=True)
class Account:
    """A chunk that is decided and routed, with a part for each vertex that worked on it.

    ``at`` is when that happened. ``held`` is the row right behind the chunk that an ordered vertex
    holds, ``reasons`` are the reasons for redeliveries, each with its number of rows. ``is_early``
    if these are outputs of rows that have not ended, ``is_probe`` if the chunk was taken to find
    out whether a system is back. An account that was corrected, because not all was stored, has a
    later ``edition``. ``writer`` is the task that settles the chunk and ``via`` the chain of inline
    vertices to this one, if another vertex's task ran it.
    """

    key: str
    number: ChunkNumber
    at: datetime
    parts: tuple[AccountPart, ...]
    watermark: datetime | None = None
    held: HeldRow | None = None
    reasons: Mapping[str, int] = field(default_factory=dict)
    is_early: bool = False
    is_probe: bool = False
    edition: int = 0
    writer: str = ""
    via: str = ""

    def amended(self, ends: Mapping[int, Outcome]) -> Account:
        """Returns the account with other outcomes of these rows than were decided."""
        parts = tuple(replace(part, amended=ends) for part in self.parts)
        return replace(self, parts=parts, edition=self.edition + 1)


@dataclass(slots=True)
class ChunkRecord:
    """One chunk: when it was taken, how many rows it has, and the seconds of each stage so far."""

    at: datetime
    rows: int
    read: float = 0.0
    call: float = 0.0
    publish: float = 0.0
    settle: float = 0.0
    ended: bool = False

    def end(self) -> None:
        """Notes that all of it is confirmed. Safe to call from any thread."""
        self.ended = True

    def to_json(self) -> list[float]:
        """Returns it as it is reported: time and rows, then microseconds."""
        micros = (round(getattr(self, stage) * 1e6) for stage in STAGES)
        return [self.at.timestamp(), self.rows, *micros]


class ChunkObserver:
    """Reports on the chunks of a task. Used by the task's thread; this base class does nothing.

    An observer overrides the methods that it needs, and no others are called. An ``idle`` observer
    needs to see nothing at the moment.
    """

    idle = False

    def calling(self, rows: Rows) -> AbstractContextManager[Rows]:
        """Surrounds the calls of user code with a chunk; yields the rows to call it with."""
        return nullcontext(rows)

    def late(self, account: Account) -> Iterable[Publication]:
        """Returns publications that follow the chunk's outputs, confirmed before it is done.

        Called again for an account with a later edition, whose publications then count.
        """
        return ()

    def see(self, account: Account) -> None:
        """Observes a chunk that is about to be settled; settling does not depend on it."""


def overriding(observers: Iterable[ChunkObserver], method: str) -> list[ChunkObserver]:
    """Returns the observers that override a method: the others need not be called."""
    nothing = getattr(ChunkObserver, method)
    return [observer for observer in observers if getattr(type(observer), method) is not nothing]


def gather_late(observers: Iterable[ChunkObserver], account: Account) -> Iterator[Publication]:
    """Yields the publications of all observers, which follow the chunk's outputs."""
    for observer in observers:
        yield from observer.late(account)


def describe_outcome(outcome: Outcome, now: datetime) -> dict[str, Any]:
    """Returns the description of an outcome: its name, the reason, and when a redelivery is due."""
    match outcome:
        case Done():
            return _DONE
        case Redeliver():
            due = _due(now, outcome.delay)
            return {"outcome": REDELIVERED, "reason": _text(outcome.reason), "due": due}
        case Retry():
            due = _due(now, outcome.delay)
            return {"outcome": REDELIVERED, "error": _text(outcome.error), "due": due}
        case DeadLetter():
            reason, error = _text(outcome.reason), _text(outcome.error)
            return {"outcome": DEAD_LETTERED, "reason": reason, "error": error}
        case Dropped():
            return {"outcome": "dropped", "reason": outcome.rule}
        case FellBack():
            return {"outcome": "fallback"}
        case Succeeded():
            return {"outcome": "on_success"}
        case Served():
            return {"outcome": "served"}
        case never:
            assert_never(never)


def _due(now: datetime, delay: int) -> datetime:
    due_ms = due_time(math.ceil(now.timestamp() * 1000), delay)
    return datetime.fromtimestamp(due_ms / 1000, UTC)


def _text(text: str | None) -> str | None:
    return None if text is None else shorten(text)
