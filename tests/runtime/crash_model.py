"""The shipped chunk loop over a server in memory, in which anything may crash at any step.

Everything that makes decisions is the real code: ``ChunkLoop`` with its settling, its intake, its
gate and its epoch, and the engine below them. The systems around it are modelled: the server, the
frames it reads, the clock and the user's code. ``Rules`` are the rules that the guarantee rests on
and that the loop leaves to its journal, so that a test can break one and show why it is needed.
"""

from collections.abc import Callable, Coroutine, Generator, Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from itertools import islice, takewhile
from random import Random
from threading import Event
from types import coroutine
from typing import Any

import pyarrow as pa

from ebbflow import Datum, Message, Nack, NackOptions
from ebbflow.domain.durations import Backoff
from ebbflow.domain.errors import MessageTooLarge
from ebbflow.domain.outcome import FellBack, Served
from ebbflow.engine.inlet import Inlet
from ebbflow.engine.outage import BreakerLimit
from ebbflow.engine.position import (
    Known,
    Mark,
    Position,
    Span,
    Stamp,
    is_copy,
    known_of_redeliveries,
    with_frame,
)
from ebbflow.engine.publications import LATE, Place, Publication, Stage
from ebbflow.engine.refused import divide
from ebbflow.engine.retry import RetryStrategy
from ebbflow.engine.routing import Edge
from ebbflow.engine.settlement import Settlement
from tests.runtime.memory_server import Moved, Server

PLACE = Place("v", 0, [Edge("x", 2), Edge("y", values=frozenset("y"))], 1_000_000, "answers")
RETRIES = RetryStrategy(Backoff("5s", steps=2, jitter=0.01), "drop")
POLICY = Backoff("1s", steps=2, jitter=0.01)
TOO_LARGE = Random(1).randbytes(990_000)
"""A value that user code may return, but that no frame of ``PLACE`` can hold."""
DOWNTIMES = (0, 0, 1, 3, 5, 8, 92, 995, 10_000)
"""Milliseconds that may pass before the next task starts; times of day are not rounded."""
DELAYS = tuple(around + more for around in (200, 990, 59_990) for more in (1, 3, 8, 11))
"""Delays that are close to each other, on both sides of every rounding boundary."""
NO_BREAKER = BreakerLimit(share=1.0)

_FACTS = ("deliveries", "failures", "retries", "first_seen", "nack_reason")
_BLOCKED = "blocked"
_LOOKED_FOR = (Stage.REDELIVER, Stage.DEAD_LETTER)


class Crash(BaseException):
    """The task is gone, wherever it was: not even user code that was being called can catch it."""


@dataclass(frozen=True)
class Rules:
    """How the journal carries out the loop's requests; the defaults are how Ebbflow does it."""

    content_hash: bool = True
    done_after_publishing: bool = True
    looks_up_before_repeating: bool = True
    looks_up_before_sending_again: bool = True
    order: Sequence[Stage] = tuple(Stage)

    def stages(self, settlement: Settlement) -> Iterator[list[Publication]]:
        """The publications of each stage, named by these rules."""
        named = settlement.publications
        if not self.content_hash:
            named = [
                replace(p, msg_id=f"{_chunk_of(p)}:{p.stage}:{p.target}:{number}", partition=0)
                for number, p in _numbered(named)
            ]
        for stage in self.order:
            yield [p for p in named if p.stage is stage]


def _chunk_of(publication: Publication) -> str:
    """The key of the chunk, with which every id begins."""
    return ":".join(publication.msg_id.split(":")[:5])


def _numbered(publications: Sequence[Publication]) -> Iterator[tuple[int, Publication]]:
    seen: dict[tuple[Stage, str], int] = {}
    for publication in publications:
        where = (publication.stage, publication.target)
        seen[where] = seen.get(where, -1) + 1
        yield seen[where], publication


@dataclass
class Chances:
    """Everything that hypothesis, or an enumeration, may choose about one task.

    Steps are counted: after ``crash_after`` of them it crashes, after ``stop_after`` the driver
    stops it.
    """

    random: Random = field(default_factory=lambda: Random(1))
    crash_after: int | None = None
    zombie: int = 0
    """How many publications of a crashed task still arrive after other tasks have continued."""
    stop_after: int | None = None
    crashed: bool = False

    def step(self, stop: Callable[[], None] = lambda: None) -> None:
        """One step was done, perhaps the last."""
        if self.stop_after is not None:
            self.stop_after -= 1
            if self.stop_after < 0:
                stop()
        if self.crash_after is not None:
            self.crash_after -= 1
            if self.crash_after < 0:
                self.crashed = True
                raise Crash


class AlwaysArrived(Random):
    """With it, the frames of a reader are never still in flight."""

    def random(self) -> float:
        return 0.9


class Reader(Inlet):
    """Rows of a growing list of frames from a mark on, as ``FrameReader`` reads them.

    ``recorded`` returns how far they are done according to the position.
    """

    def __init__(
        self,
        stream: list[pa.RecordBatch],
        start: Mark,
        random: Random,
        recorded: Callable[[], Mark] = lambda: Mark(2**62),
    ) -> None:
        self._stream = stream
        self._random = random
        self._recorded = recorded
        self.mark = self._before = start

    @property
    def rows_left(self) -> bool:
        """Whether there is anything behind the mark."""
        return self.mark != Mark(len(self._stream))

    def take(self, limit: int) -> list[pa.RecordBatch]:
        """At most ``limit`` rows that have arrived; now and then they are still in flight."""
        return [] if self._random.random() < 0.2 else self._cut(limit, len(self._stream))

    def take_frame(self, limit: int) -> list[pa.RecordBatch]:
        """At most ``limit`` rows of a frame."""
        return self._cut(limit, 1)

    def _cut(self, limit: int, most: int) -> list[pa.RecordBatch]:
        taken: list[pa.RecordBatch] = []
        while limit > 0 and len(taken) < most and self.rows_left:
            self._before = self.mark
            rest = self._stream[self.mark.seq].slice(self.mark.row)
            piece = rest.slice(0, limit)
            whole = piece.num_rows == rest.num_rows
            row = self.mark.row + piece.num_rows
            self.mark = Mark(self.mark.seq + 1) if whole else Mark(self.mark.seq, row)
            taken.append(piece)
            limit -= piece.num_rows
        return taken

    def give_back(self, piece: pa.RecordBatch, used: int) -> None:
        """Makes all but the first ``used`` rows of the last frame available again."""
        self.mark = Mark(self._before.seq, self._before.row + used)

    def take_until(self, end: Mark) -> list[pa.RecordBatch]:
        """Exactly the rows up to ``end``."""
        taken = []
        while self.mark < end:
            taken += self._cut(self._left(end), 1)
        return taken

    def _left(self, end: Mark) -> int:
        if self.mark.seq < end.seq:
            return int(self._stream[self.mark.seq].num_rows) - self.mark.row
        return end.row - self.mark.row

    def forget(self, done: Mark) -> None:
        """Deleted frames must be recorded as done: there is no other copy."""
        assert done <= self._recorded(), "deleted, and not recorded as done"


class StampedReader(Reader):
    """Reads frames that may be stored twice, and skips those whose stamp it knows."""

    def __init__(
        self,
        stream: list[pa.RecordBatch],
        stamp_at: Callable[[int], Stamp | None],
        start: Mark,
        known: Known,
        random: Random,
        recorded: Callable[[], Mark],
    ) -> None:
        super().__init__(stream, start, random, recorded)
        self._stamp_at = stamp_at
        self.known = self._known_before = known

    def _pass_copies(self, end: Mark | None = None) -> None:
        while self.rows_left and not self.mark.row and (end is None or self.mark < end):
            stamp = self._stamp_at(self.mark.seq)
            if stamp is None or not is_copy(self.known, stamp):
                return
            self.passed = self.mark if self.passed is None else self.passed
            self.mark = Mark(self.mark.seq + 1)

    def _left(self, end: Mark) -> int:
        self._pass_copies(end)
        return super()._left(end)

    def _cut(self, limit: int, most: int) -> list[pa.RecordBatch]:
        taken: list[pa.RecordBatch] = []
        while limit > 0 and len(taken) < most:
            self._pass_copies()
            seq, self._known_before = self.mark.seq, self.known
            pieces = super()._cut(limit, 1)
            if not pieces:
                break
            self.passed = None
            stamp = self._stamp_at(seq) if self.mark.seq > seq else None
            if stamp is not None:
                self.known = with_frame(self.known, stamp)
            taken += pieces
            limit -= pieces[0].num_rows
        return taken

    def give_back(self, piece: pa.RecordBatch, used: int) -> None:
        super().give_back(piece, used)
        self.known = self._known_before

    def forget(self, done: Mark) -> None:
        super().forget(done)
        if done == self.mark:
            self.passed = None


class DueReader(StampedReader):
    """Reads redeliveries, and skips those that the server has moved twice."""

    def __init__(
        self,
        stream: list[pa.RecordBatch],
        moved: list[Moved],
        done: Span,
        random: Random,
        recorded: Callable[[], Mark],
    ) -> None:
        known = known_of_redeliveries(done.known)
        super().__init__(
            stream, lambda seq: moved[seq].stamp, done.redelivery, known, random, recorded
        )


class ModelClock:
    """Time that passes only while the task waits. ``idle`` is called after each wait."""

    def __init__(self, server: Server, idle: Callable[[], None] = lambda: None) -> None:
        self._server = server
        self._idle = idle
        self.arrives_in = float("inf")
        """Seconds until something arrives that ends a wait."""

    def monotonic(self) -> float:
        return self._server.now / 1000

    def now(self) -> datetime:
        return datetime.fromtimestamp(self._server.now / 1000, UTC)

    def wait(self, wake: Event, seconds: float) -> None:
        self.sleep(min(seconds, self.arrives_in))
        self._idle()

    def sleep(self, seconds: float) -> None:
        self._server.pass_time(max(1, round(seconds * 1000)))


@coroutine
def _pause(why: str = "") -> Generator[str, None, None]:
    """A point at which a coroutine of the journal may be suspended for a while."""
    yield why


class Flight:
    """A coroutine of the journal: it continues only as many steps at a time as it is allowed."""

    def __init__(self, step: Coroutine[Any, Any, Any], clock: ModelClock) -> None:
        self._step = step
        self._clock = clock
        self._over = False
        self._value: Any = None
        self._error: Exception | None = None

    def advance(self, points: int) -> None:
        """Continue for that many steps."""
        while points > 0 and not self._over and self._go_on() != _BLOCKED:
            points -= 1

    def _go_on(self) -> str:
        try:
            return str(self._step.send(None))
        except StopIteration as end:
            self._over, self._value = True, end.value
        except Exception as error:
            self._over, self._error = True, error
        return ""

    def result(self, timeout: float | None = None) -> Any:
        while not self._over:
            if self._go_on() == _BLOCKED:
                assert timeout is not None, "waiting for room needs a timeout"
                self._clock.wait(Event(), timeout)
                raise TimeoutError
        if self._error is not None:
            raise self._error
        return self._value

    def done(self) -> bool:
        return self._over

    def cancel(self) -> bool:
        self._step.close()
        return True


class MemoryJournal:
    """The journal of the task on the server in memory. It may crash between any two steps."""

    def __init__(self, server: Server, rules: Rules, chances: Chances, clock: ModelClock) -> None:
        self._server = server
        self._rules = rules
        self._chances = chances
        self._clock = clock
        self._revision = 0
        self.other_threads: Callable[[], None] = lambda: None
        """What happens in other threads of the task."""
        self.stop: Callable[[], None] = lambda: None
        self.on_recorded: Callable[[Span], None] = lambda done: None
        self.on_settled: Callable[[Settlement], None] = lambda settlement: None
        self._whole: Settlement | None = None

    async def _point(self) -> None:
        await _pause()
        self.other_threads()
        self._chances.step(self.stop)

    async def claim(self) -> Position:
        await self._point()
        self._revision = self._server.revision
        position = self._server.position.claimed("me")
        self._revision = self._server.write(position, self._revision)
        return position

    async def write(self, position: Position) -> None:
        await self._point()
        if not self._rules.done_after_publishing:
            position = replace(position, done=position.intent)
        self._revision = self._server.write(position, self._revision)
        self.on_recorded(position.done)

    async def write_histories(self, rows: pa.RecordBatch) -> None:
        await self._point()
        for row in rows.to_pylist():
            self._server.ledger[row["id"]] = {name: row[name] for name in _FACTS}

    async def end_histories(self, ids: pa.StringArray) -> None:
        for message_id in ids.to_pylist():
            await self._point()
            self._server.ledger.pop(message_id, None)

    async def without_stored(self, settlement: Settlement, repeated: Mark | None) -> Settlement:
        self._whole = settlement
        if repeated is None or not self._rules.looks_up_before_repeating:
            return settlement
        left = [p for p in settlement.publications if not self._server.holds(p, repeated)]
        return replace(settlement, publications=left)

    async def publish(self, settlement: Settlement, done: Mark) -> list[Publication]:
        remaining: list[Publication] = []
        unstored: list[Publication] = []
        for stage in self._rules.stages(settlement):
            remaining += self._chances.random.sample(stage, len(stage))
        while remaining:
            while self._server.is_full(remaining[0]):
                await _pause(_BLOCKED)
            self._server.happen()
            try:
                await self._point()
            except Crash:
                # It also stops at a publication that is refused.
                taken = takewhile(lambda p: not self._server.refuses(p), remaining)
                self._server.late += islice(taken, self._chances.zombie)
                raise
            publication = remaining.pop(0)
            if self._server.refuses(publication):
                refused, pieces = self._refuse(publication, done)
                unstored.append(refused)
                remaining = [*pieces, *(p for p in remaining if p.stage not in LATE)]
            else:
                self._send(publication, done)
        whole, self._whole = self._whole or settlement, None
        self.on_settled(whole)
        return unstored

    def _refuse(
        self, publication: Publication, done: Mark
    ) -> tuple[Publication, list[Publication]]:
        """As in ``publish_settlement``: the publication that is not stored, and pieces to try."""
        pieces = divide(publication)
        parents = () if pieces else publication.parents
        refused = replace(publication, parents=parents, refusal="too large")
        looks = publication.stage is Stage.REDELIVER
        return refused, [p for p in pieces if not (looks and self._server.holds(p, done))]

    def _send(self, publication: Publication, done: Mark) -> None:
        """Sends it until the server, which may be killed, has confirmed it."""
        self._server.publish(publication)
        while self._server.dies_before_it_confirms():
            looks = self._rules.looks_up_before_sending_again and publication.stage in _LOOKED_FOR
            if looks and self._server.holds(publication, done):
                return
            self._server.publish(publication)

    def submit(self, step: Coroutine[Any, Any, Any]) -> Flight:
        """It begins at once and may have reached any step when the task next checks."""
        self._flight = Flight(step, self._clock)
        try:
            self._flight.advance(self._chances.random.randint(0, 6))
        except BaseException:
            self.end()
            raise
        return self._flight

    @property
    def is_busy(self) -> bool:
        """Whether something is in flight."""
        return not self._flight.done()

    def end(self) -> None:
        """The task is gone, and its chunk in flight stops where it is."""
        self._flight.cancel()


class UserCode:
    """Decides by a script, call by call, so differently on every attempt; finally it forwards."""

    def __init__(self, script: Sequence[str]) -> None:
        self._script = list(script)
        self.asides: dict[str, FellBack | Served] = {}
        self.broken: set[str] = set()
        """The messages because of which Ebbflow itself fails on the whole chunk."""

    def __call__(self, datum: Datum) -> object:
        decision = self._script.pop(0) if self._script else "forward"
        match decision:
            case "forward":
                return Message(b"1")
            case "two":
                return [Message(b"1"), Message(b"2", tags=["y"])]
            case "nack":
                raise Nack
            case "nack later":
                raise Nack(NackOptions(delay=DELAYS[int(datum.id[1:]) % len(DELAYS)]))
            case "drop":
                return None
            case "fail":
                raise ValueError
            case "away":
                raise ConnectionError("the database is down")
            case "dead":
                raise MessageTooLarge(9, 5)
            case "too large":
                return Message(TOO_LARGE)
            case "break":
                self.broken.add(datum.id)
                return Message(b"1")
            case "retry":
                return Message.to_fail("not yet")
            case "fall back":
                self.asides[datum.id] = FellBack()
            case "serve":
                self.asides[datum.id] = Served()
            case other:
                raise NotImplementedError(other)
        return None


DECISIONS = ("forward", "two", "nack", "nack later", "drop", "fail", "dead")
DECISIONS += ("retry", "fall back", "serve", "away", "too large", "break")
