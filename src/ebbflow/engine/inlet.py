"""The stream of rows that a vertex task reads: a buffer, a generator or a source.

Every inlet is complete: the task asks all of them the same questions and never what kind they are.
A kind that has nothing to say inherits an answer that says nothing. What an inlet promises is that
its rows can be had again after a crash: by ``take_until``, exactly as they were cut, or from the
source, which has not been told of them before they were recorded as done.

``Watermark`` is the time up to which all messages have been read, by what each writer has said.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

import pyarrow as pa

from ebbflow.domain.message import NackOptions
from ebbflow.domain.outcome import Redeliver, Retry
from ebbflow.engine.frames import Rows
from ebbflow.engine.outage import Waiting
from ebbflow.engine.position import NOTHING, Known, Mark
from ebbflow.engine.source_columns import NO_OFFSETS, OFFSETS

Origin = tuple[str | None, datetime | None]
"""The task that wrote a frame, and its watermark then."""

NEVER = 3600.0
"""Seconds until it is worth asking an inlet again that wakes its task by itself."""


NACKS = pa.schema(
    [
        pa.field("offset", OFFSETS, nullable=False),
        ("delay", pa.int64()),
        ("max_deliveries", pa.int64()),
        ("reason", pa.string()),
    ]
)
"""Rows that a source is to give again: their offsets, and the options of their nacks."""

NO_NACKS = pa.RecordBatch.from_pylist([], schema=NACKS)


@dataclass(frozen=True, slots=True)
class HandedBack:
    """The ends of a chunk's rows, as the source they came from is told them.

    ``acks`` are offsets, ``nacks`` are rows of ``NACKS``, and ``ids`` are the messages that are
    acknowledged.
    """

    acks: pa.BinaryArray
    nacks: pa.RecordBatch
    ids: pa.StringArray

    def __len__(self) -> int:
        return len(self.acks) + int(self.nacks.num_rows)

    @classmethod
    def join(cls, several: Sequence[HandedBack]) -> HandedBack:
        """Returns the ends of several chunks, to be told at once."""
        return cls(
            pa.concat_arrays([ends.acks for ends in several]),
            pa.concat_batches([ends.nacks for ends in several]),
            pa.concat_arrays([ends.ids for ends in several]),
        )


class Inlet(ABC):
    """A replayable stream of rows. Used on a worker, by the task's own thread only."""

    mark: Mark
    """Behind the last row that was taken."""

    known: Known = NOTHING
    """What was read of each writer's last chunk; nothing, unless the stream may hold copies."""

    passed: Mark | None = None
    """The mark behind which there were only copies so far, if there were any."""

    origins: Sequence[Origin] = ()
    """The writers of the frames that were taken last; nobody, unless tasks write the stream."""

    takes_back: bool = False
    """Whether the source takes nacked rows back and gives them again by itself."""

    @property
    def waiting(self) -> Waiting | None:
        """The system that is away, if the inlet waits for one."""
        return None

    @property
    def exhausted(self) -> bool:
        """Whether nothing more will ever come."""
        return False

    def ready_in(self) -> float:
        """Returns the seconds until it is worth asking again; arrivals wake the task before."""
        return NEVER

    @abstractmethod
    def take(self, limit: int) -> list[pa.RecordBatch]:
        """Returns up to ``limit`` rows that are there already, and moves ``mark`` behind them."""

    def take_frame(self, limit: int) -> list[pa.RecordBatch]:
        """Returns up to ``limit`` rows of one frame; ``give_back`` can undo it in part."""
        raise NotImplementedError(f"{type(self).__name__} cannot be read in order")

    def give_back(self, piece: pa.RecordBatch, used: int) -> None:
        """Puts all but the first ``used`` rows of the frame that was taken last back in place."""
        # No default: an inlet that did nothing here would lose the rows behind the held one.
        raise NotImplementedError(f"{type(self).__name__} cannot be read in order")

    @abstractmethod
    def take_until(self, end: Mark) -> list[pa.RecordBatch]:
        """Returns exactly the rows up to ``end``, with the ids they had before.

        A source returns none: it gives the rows again by itself, as it was not told of them.
        """

    def pick_up(self) -> pa.BinaryArray:
        """Returns the offsets of the rows taken since the last call, if a source wants them."""
        return NO_OFFSETS

    def hand_back(self, ends: HandedBack) -> None:  # noqa: B027 - nothing to do
        """Has the source told, soon, what became of rows that are recorded; from any thread."""

    def forget(self, done: Mark) -> None:  # noqa: B027 - nothing to do
        """Has everything up to ``done`` deleted, which is recorded as settled."""

    def close(self, for_good: bool = False) -> None:  # noqa: B027 - nothing to do
        """Ends the reading; ``for_good`` when no other task follows."""


def handed_back(
    offsets: pa.BinaryArray, rows: Rows, returned: Mapping[int, Redeliver | Retry]
) -> HandedBack:
    """Returns what to tell about the last rows of a chunk, which are those that have offsets."""
    first = len(rows) - len(offsets)
    ids = rows.batch.column("id").slice(first)
    if not returned:
        return HandedBack(offsets, NO_NACKS, ids)
    ended = [index for index in range(len(offsets)) if index + first not in returned]
    kept = pa.array(ended, pa.int64())
    return HandedBack(offsets.take(kept), _nacks(offsets, first, returned), ids.take(kept))


def _nacks(
    offsets: pa.BinaryArray, first: int, returned: Mapping[int, Redeliver | Retry]
) -> pa.RecordBatch:
    asked = [asked_for(how) for how in returned.values()]
    columns = [
        offsets.take(pa.array([index - first for index in returned], pa.int64())),
        pa.array([options.delay for options in asked], pa.int64()),
        pa.array([options.max_deliveries for options in asked], pa.int64()),
        pa.array([options.reason for options in asked], pa.string()),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=NACKS)


def asked_for(how: Redeliver | Retry) -> NackOptions:
    """Returns what user code asked for with its nack, or what back-off makes of a failure."""
    if isinstance(how, Retry):
        return NackOptions(how.delay, reason=how.error)
    return how.options or NackOptions(how.delay, reason=how.reason)


class Watermark:
    """The watermark of one task. ``feeders`` are the tasks that write to it."""

    def __init__(self, feeders: Iterable[str], start: datetime | None) -> None:
        self.current = start
        self._heard: dict[str, datetime | None] = dict.fromkeys(feeders)

    def hear(self, frames: Iterable[tuple[str | None, datetime | None]]) -> None:
        """Takes in the frames of a chunk: for each who wrote it, and their watermark then.

        Of several frames of one writer the first counts for this chunk, because rows of the first
        may be older than what the last one promises.
        """
        heard: dict[str, datetime] = {}
        for feeder, watermark in frames:
            if feeder in self._heard and watermark is not None:
                heard.setdefault(feeder, watermark)
        self._heard |= heard
        known = [time for time in self._heard.values() if time is not None]
        if known and len(known) == len(self._heard):
            self._rise(min(known))

    def made(self, event_times: Iterable[datetime]) -> None:
        """Follows the event times of messages that a source has made."""
        earliest = min(event_times, default=None)
        if earliest is not None:
            self._rise(earliest)

    def _rise(self, to: datetime) -> None:
        if self.current is None or to > self.current:
            self.current = to
