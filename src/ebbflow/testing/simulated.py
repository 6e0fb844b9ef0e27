"""The results of a simulation: the outcome of every message, with its time, to assert on.

Times are ``timedelta``s of virtual time since the simulation began. The ``repr`` of a result says
what happened, so that a failing assert explains itself.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from typing_extensions import override

from ebbflow.domain.message import Datum
from ebbflow.domain.outcome import COUNTERS, Counts, Outcome, Redeliver, Retry
from ebbflow.engine.account import Account, AccountPart, ChunkObserver, describe_outcome
from ebbflow.engine.causes import Raised, RaisedErrors
from ebbflow.engine.dead_letter import Letter
from ebbflow.engine.frames import Rows, request_id
from ebbflow.engine.redelivery import due_time

if TYPE_CHECKING:
    from ebbflow.testing.world import VirtualClock

_MOST_SHOWN = 5
_ANY_TIME = datetime.fromtimestamp(0, UTC)


@dataclass(frozen=True, slots=True)
class Delivery:
    """One delivery of a message to a vertex, with its outcome and the time of the decision.

    ``outcome`` is ``done``, ``dropped``, ``redelivered``, ``fallback``, ``on_success``, ``served``
    or ``dead_lettered``. ``reason`` is why, and ``due`` is the time of the next delivery of a
    message that is redelivered.
    """

    id: str
    value: bytes
    deliveries: int
    outcome: str
    at: timedelta
    due: timedelta | None = None
    reason: str | None = None

    @override
    def __str__(self) -> str:
        again = f", due at {show_time(self.due)}" if self.due is not None else ""
        why = f": {self.reason}" if self.reason else ""
        number = f", delivery {self.deliveries}" if self.deliveries > 1 else ""
        return f"{show_time(self.at)} {self.id} {self.outcome}{number}{again}{why}"


@dataclass(frozen=True, slots=True)
class ChunkSeen:
    """A settled chunk: its deliveries, outputs and answers."""

    deliveries: Sequence[Delivery]
    outputs: Sequence[Datum]
    answers: Sequence[tuple[str, bytes]] = ()


class ChunkNotes(ChunkObserver):
    """Records each chunk of one partition. A replayed chunk replaces its first attempt."""

    def __init__(self, clock: VirtualClock) -> None:
        self._clock = clock
        self.chunks: dict[int, ChunkSeen] = {}
        self.errors = RaisedErrors()

    @override
    def see(self, account: Account) -> None:
        (part, *_) = account.parts
        if part.verdict.decisions.raised is not None:
            self.errors.merge(part.verdict.decisions.raised)
        seen = self._deliveries(part)
        if account.held is not None:
            rows = Rows(account.held.row)
            seen.append(self._delivery(rows, 0, account.held.outcome))
        self.chunks[account.number.number] = ChunkSeen(seen, _outputs(part), [*_answers(part)])

    def _deliveries(self, part: AccountPart) -> list[Delivery]:
        rows = part.rows
        return [self._delivery(rows, index, part.outcomes.get(index)) for index in range(len(rows))]

    def _delivery(self, rows: Rows, index: int, outcome: Outcome | None) -> Delivery:
        end, clock = name_end(outcome), self._clock
        due = None
        if isinstance(outcome, Redeliver | Retry):
            due = clock.at(due_time(clock.now_ms, outcome.delay))
        return Delivery(
            rows.column("id")[index],
            rows.column("value")[index],
            int(rows.column("deliveries")[index]),
            end[0],
            clock.elapsed,
            due,
            end[1],
        )


def name_end(outcome: Outcome | None) -> tuple[str, str | None]:
    """Returns the name of an outcome, and its reason."""
    if outcome is None:
        return "done", None
    facts = describe_outcome(outcome, _ANY_TIME)
    return facts["outcome"], facts.get("reason") or facts.get("error")


def _outputs(part: AccountPart) -> list[Datum]:
    """Returns the messages that a vertex forwards, or that a sink has written."""
    if part.place.edges:
        return [] if part.routed.batch is None else _data(Rows(part.routed.batch))
    rows = _data(part.rows)
    names = {index: name_end(outcome)[0] for index, outcome in part.outcomes.items()}
    return [datum for index, datum in enumerate(rows) if names.get(index, "done") == "done"]


def _data(rows: Rows) -> list[Datum]:
    return [*rows.data()]


def _answers(part: AccountPart) -> Iterator[tuple[str, bytes]]:
    for index, payloads in part.verdict.answers.items():
        for payload in payloads:
            yield request_id(part.rows, index), payload


@dataclass
class SimulatedVertex:
    """The results of one vertex. Its counts are attributes: ``done``, ``redelivered`` and so on."""

    name: str
    counts: Counts
    deliveries: list[Delivery]
    outputs: list[Datum]
    """The messages that it has forwarded or, for a sink, written."""
    answers: list[tuple[str, bytes]]
    dead_letters: list[Letter]
    errors: list[Raised] = field(default_factory=list)
    """The errors that its user code raised, grouped, each with file, line and traceback."""
    pending: int = 0
    """The number of messages that it has not decided about, parked ones included."""
    waiting: str | None = None
    """The system that it waits for, an error of every message, or why its breaker tripped."""
    read: int = field(init=False)
    written: int = field(init=False)
    done: int = field(init=False)
    redelivered: int = field(init=False)
    dead_lettered: int = field(init=False)
    dropped: int = field(init=False)
    fallback: int = field(init=False)
    served: int = field(init=False)
    on_success: int = field(init=False)

    def __post_init__(self) -> None:
        for name in COUNTERS:
            setattr(self, name, getattr(self.counts, name))

    @property
    def values(self) -> list[bytes]:
        """The values of its outputs."""
        return [datum.value for datum in self.outputs]

    @property
    def redeliveries(self) -> list[Delivery]:
        """The deliveries that ended with a redelivery, in the order of their decisions."""
        return [one for one in self.deliveries if one.outcome == "redelivered"]

    @override
    def __repr__(self) -> str:
        counts = ", ".join(f"{n} {count}" for n, count in self.counts.as_dict().items() if count)
        lines = [f"{self.name}: {counts or 'nothing read'}"]
        if self.pending:
            lines[0] += f", pending {self.pending}"
        if self.waiting:
            lines.append(f"  {self.waiting}")
        others = [str(one) for one in self.deliveries if one.outcome != "done"]
        lines += [f"  {text}" for text in others[:_MOST_SHOWN]]
        if len(others) > _MOST_SHOWN:
            lines.append(f"  and {len(others) - _MOST_SHOWN} more that were not simply done")
        lines += [f"  {_describe(error)}" for error in self.errors]
        return "\n".join(lines)


def _describe(error: Raised) -> str:
    """Returns a group of equal errors on one line: what, where, how often, and the last message."""
    where = f" ({error.where})" if error.where else ""
    times = f", {error.count} times" if error.count > 1 else ""
    message = f", message {error.message_id}" if error.message_id else ""
    return f"{error.kind}: {error.text}{where}{times}{message}"


def show_time(time: timedelta | None) -> str:
    """Returns a virtual time in a short form: ``5s``, ``1m30s``, ``250ms``."""
    if time is None:
        return ""
    ms = round(time / timedelta(milliseconds=1))
    hours, ms = divmod(ms, 3_600_000)
    minutes, ms = divmod(ms, 60_000)
    seconds, ms = divmod(ms, 1_000)
    parts = ((hours, "h"), (minutes, "m"), (seconds, "s"), (ms, "ms"))
    return "".join(f"{number}{unit}" for number, unit in parts if number) or "0s"


def show_simulation(
    pipeline: str, vertices: Mapping[str, SimulatedVertex], elapsed: timedelta
) -> str:
    """Returns everything that happened, a paragraph for each vertex."""
    lines = [f"{pipeline}: {show_time(elapsed)} of virtual time"]
    for vertex in vertices.values():
        lines.append(repr(vertex))
    return "\n".join(lines)
