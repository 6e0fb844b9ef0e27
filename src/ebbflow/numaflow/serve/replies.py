"""Replies to requests: what a function said about each, before any rule of a vertex.

In a pipeline a verdict turns the words of user code into outcomes. A served function only hands
them on: the runtime at the other end counts deliveries, waits, retries and keeps dead letters.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from typing import NamedTuple

from ebbflow.domain.durations import DEFAULT_ON_ERROR
from ebbflow.domain.message import Metadata, Nack, NackOptions, Status
from ebbflow.domain.outcome import DeadLetter, Dropped, Redeliver, Retry
from ebbflow.engine.decisions import EMPTY, Decisions
from ebbflow.engine.outputs import AnyOutputs, ColumnOutputs
from ebbflow.engine.verdict import Emitter, Rules, Verdict
from ebbflow.numaflow.serve.requests import RequestRows

LARGEST = 64 * 1024 * 1024
"""Bytes that a message of the protocol may have, in both directions."""

# Room beside the value for keys, tags and ids.
_RESERVED = 64 * 1024

_FAILED = DeadLetter("failed")


def rules_of(name: str) -> Rules:
    """Returns the rules for a function of that name: it may say anything that fits on the wire."""
    return Rules(name, DEFAULT_ON_ERROR, LARGEST - _RESERVED, frozenset(Status))


class _TimedDecisions(Decisions):
    """Decisions that know of which input an event time was given that is not forwarded."""

    def __init__(self) -> None:
        super().__init__()
        self._unclaimed: list[datetime] = []
        self.times: dict[int, datetime] = {}

    def note_event_times(self, times: Iterable[datetime]) -> None:
        """Keeps the times for the input that is decided about next."""
        self._unclaimed += times

    def claim_times(self, index: int) -> None:
        """Takes what was noted since the last decision as the time of this input."""
        if self._unclaimed:
            self.times[index] = min(self._unclaimed)
            self._unclaimed = []

    def drop(self, index: int, rule: Dropped = EMPTY) -> None:
        """As in ``Decisions``."""
        self.claim_times(index)
        super().drop(index, rule)


class Replies(Verdict):
    """The replies to the requests of one call.

    ``nacked`` has the options of the inputs to be redelivered, ``errors`` what the function raised
    on an input, ``away`` the name of the system that was away for an input. An input in none of
    these, and with no entry in ``decisions``, is done.
    """

    def __init__(self, rows: RequestRows, rules: Rules, emitter: Emitter | None = None) -> None:
        self._timed = _TimedDecisions()
        super().__init__(rows, rules, emitter, self._timed)
        self.requests = rows.requests
        self.nacked: dict[int, NackOptions | None] = {}
        self.errors: dict[int, BaseException] = {}
        self.away: dict[int, str] = {}

    @property
    def times(self) -> dict[int, datetime]:
        """The event times given with a drop, a nack or a failure, by input."""
        return self._timed.times

    @property
    def dropped(self) -> list[int]:
        """The inputs that leave nothing behind."""
        return [at for at, end in self.outcomes.items() if isinstance(end, Dropped)]

    def nack(self, index: int, options: NackOptions | None) -> None:
        """Has the input redelivered; its options are for the runtime to obey."""
        self._timed.claim_times(index)
        self.nacked[index] = options
        self.decisions.redeliver(index, Redeliver(0, None, 0, options))

    def fail(self, index: int, error: str) -> None:
        """As in ``Verdict``."""
        self._timed.claim_times(index)
        super().fail(index, error)

    def record_error(self, index: int, error: BaseException) -> None:
        """Keeps what the function raised on the input."""
        if isinstance(error, Nack):
            self.nack(index, error.options)
        else:
            self.errors[index] = error
            self.decisions.dead_letter(index, _FAILED)

    def postpone(self, index: int, delay: int, why: str) -> None:
        """Leaves the input unanswered, because a system that the function needs is away."""
        self.errors.pop(index, None)
        self.away[index] = why
        self.decisions.redeliver(index, Retry(delay, why, 0, 0))


class Output(NamedTuple):
    """One output; ``None`` where it has what its input has."""

    parent: int
    value: bytes
    keys: Sequence[str] | None
    tags: Sequence[str]
    event_time: datetime | None
    metadata: Metadata | None


def list_outputs(outputs: AnyOutputs | None) -> Iterator[Output]:
    """Yields every output."""
    assert outputs is not None, "a function forwards no inputs as they are"
    if isinstance(outputs, ColumnOutputs):
        yield from _list_columns(outputs)
        return
    facts = (outputs.keys, outputs.tags, outputs.event_times, outputs.metadata)
    yield from map(Output, outputs.parents, outputs.values, *facts)


def _list_columns(outputs: ColumnOutputs) -> Iterator[Output]:
    row = 0
    for piece in outputs.pieces:
        count = len(piece["value"])
        parents, tags = (facts[row : row + count] for facts in (outputs.parents, outputs.tags))
        columns = {name: column.to_pylist() for name, column in piece.items()}
        names = ("keys", "event_time", "metadata")
        keys, times, metadata = (columns.get(name, [None] * count) for name in names)
        groups = map(_as_groups, metadata)
        yield from map(Output, parents, columns["value"], keys, tags, times, groups)
        row += count


def _as_groups(
    metadata: Sequence[tuple[str, Sequence[tuple[str, bytes]]]] | None,
) -> Metadata | None:
    if metadata is None:
        return None
    return {group: dict(entries) for group, entries in metadata}
