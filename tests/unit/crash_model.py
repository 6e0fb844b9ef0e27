"""A model of what a vertex task does to JetStream, in which anything may crash at any step.

The decisions are those of the real core (``Verdict``, ``settle``, ``Position``, ``chunk_key``); the
server, its duplicate detection, its schedules, the compare-and-set of positions and the task's
loop are modelled here. ``Rules`` holds the rules that the guarantee rests on, so that a test can
break one and show what it is for. With ``chance`` the server forgets ids at any time, and those who
read what the task writes go on, record and crash at any time.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from random import Random

import pyarrow as pa

from ebbflow import Datum, Message, Nack
from ebbflow.core import frames
from ebbflow.core.calling import Handler, run_map
from ebbflow.core.frames import Rows
from ebbflow.core.position import Mark, Position, Span, chunk_key
from ebbflow.core.publications import Chunk, Place, Publication, Stage
from ebbflow.core.retry import RetryStrategy, call_with_retries
from ebbflow.core.routing import Edge
from ebbflow.core.settlement import Settlement, settle
from ebbflow.core.verdict import EMPTY, Verdict
from ebbflow.durations import Backoff
from ebbflow.errors import Fenced, MessageTooLarge
from ebbflow.outcome import Counts, Dropped, FellBack, Served
from tests.unit.following import Follower

PLACE = Place("v", 0, [Edge("x", 2), Edge("y", values=frozenset("y"))], 1_000_000, "answers")
RETRIES = RetryStrategy(Backoff(interval=5_000, steps=2), "drop")
POLICY = Backoff(interval=1_000, steps=2)


class Crash(Exception):
    """The task is gone, wherever it was."""


@dataclass(frozen=True)
class Rules:
    """How a chunk is settled; the defaults are how Ebbflow does it."""

    content_hash: bool = True
    done_after_publishing: bool = True
    looks_before_repeating: bool = True
    order: Sequence[Stage] = tuple(Stage)

    def stages(self, key: str, settlement: Settlement) -> Iterator[list[Publication]]:
        """The publications of each stage, named by these rules."""
        named = settlement.publications
        if not self.content_hash:
            named = [
                replace(p, msg_id=f"{key}:{p.stage}:{p.target}:{number}", partition=0)
                for number, p in _numbered(named)
            ]
        for stage in self.order:
            yield [p for p in named if p.stage is stage]


def _numbered(publications: Sequence[Publication]) -> Iterator[tuple[int, Publication]]:
    seen: dict[tuple[Stage, str], int] = {}
    for publication in publications:
        where = (publication.stage, publication.target)
        seen[where] = seen.get(where, -1) + 1
        yield seen[where], publication


@dataclass
class Server:
    """Streams with duplicate detection, schedules, and one position replaced by compare-and-set."""

    inlet: list[pa.RecordBatch]
    chance: Random | None = None
    reader: type[Follower] = Follower
    followers: dict[tuple[str, int], Follower] = field(default_factory=dict)
    due: list[pa.RecordBatch] = field(default_factory=list)
    due_ids: list[str] = field(default_factory=list)
    waiting: list[tuple[int, bytes, str]] = field(default_factory=list)
    outputs: list[str] = field(default_factory=list)
    letters: list[str] = field(default_factory=list)
    letter_ids: list[str] = field(default_factory=list)
    answers: list[str] = field(default_factory=list)
    fallen: set[str] = field(default_factory=set)
    """What a fallback sink has taken; it is not on the server, but no crash takes it back."""
    now: int = 1_000_000
    late: list[Publication] = field(default_factory=list)
    dropped: set[str] = field(default_factory=set)
    stored: bytes = Position("lineage").to_json()
    revision: int = 1
    _seen: set[tuple] = field(default_factory=set)

    def publish(self, publication: Publication) -> None:
        """Take a message, unless its stream has seen its id before."""
        stream = (publication.stage, publication.target, publication.partition)
        if (stream, publication.msg_id) in self._seen:
            return
        self._seen.add((stream, publication.msg_id))
        if publication.stage is Stage.DEAD_LETTER:
            self.letters.append(publication.headers["Ebbflow-Id"].strip('"'))
            self.letter_ids.append(publication.msg_id)
        elif publication.stage is Stage.ANSWER:
            self.answers.append(publication.key.partition(".")[0])
        elif publication.stage is Stage.OUTPUT:
            self.outputs += frames.decode(publication.payload).column("id").to_pylist()
            buffer = (publication.target, publication.partition)
            self.followers.setdefault(buffer, self.reader()).store(publication)
        elif publication.due is None:
            self._came_due(publication.payload, publication.msg_id)
        else:
            self.waiting.append((publication.due, publication.payload, publication.msg_id))

    def _came_due(self, payload: bytes, msg_id: str) -> None:
        self.due.append(frames.decode(payload))
        self.due_ids.append(msg_id)

    def happen(self) -> None:
        """Whatever else goes on beside the task."""
        if self.chance is None:
            return
        if self.chance.random() < 0.2:
            self.forget_ids()
        for follower in self.followers.values():
            follower.happen(self.chance)

    def forget_ids(self) -> None:
        """The time is over in which the server knows copies."""
        self._seen.clear()

    def holds(self, publication: Publication, done: Mark) -> bool:
        """Whether it is found among the letters, or among what waits or is not read."""
        waiting = [msg_id for _, _, msg_id in self.waiting]
        return publication.msg_id in {*self.letter_ids, *waiting, *self.due_ids[done.seq :]}

    def read(self) -> list[str]:
        """The ids of all rows that the next vertices get, once they have read everything."""
        for follower in self.followers.values():
            follower.finish()
        return [one for follower in self.followers.values() for one in follower.done]

    def pass_time(self, ms: int) -> None:
        """Move what has become due."""
        self.now += ms
        for due, payload, msg_id in sorted(self.waiting):
            if due <= self.now:
                self._came_due(payload, msg_id)
        self.waiting = [one for one in self.waiting if one[0] > self.now]

    def write(self, position: Position, revision: int) -> int:
        """Replace the position if it is still the one of that revision."""
        if revision != self.revision:
            raise Fenced("v", 0)
        self.stored, self.revision = position.to_json(), revision + 1
        return self.revision

    def ended(self) -> set[str]:
        """The inputs that have come to an end that lasts."""
        forwarded = {i.partition("/")[0] for i in self.read()}
        return forwarded | {*self.letters, *self.answers} | self.dropped | self.fallen

    def coming_back(self) -> set[str]:
        """The inputs that some redelivery holds."""
        held = [*self.due, *(frames.decode(payload) for _, payload, _ in self.waiting)]
        return {i for batch in held for i in batch.column("id").to_pylist()}


class Reader:
    """Rows of a growing list of frames from a mark on, as ``FrameReader`` gives them."""

    def __init__(self, stream: list[pa.RecordBatch], start: Mark) -> None:
        self._stream = stream
        self.mark = start

    def take(self, limit: int) -> list[pa.RecordBatch]:
        """At most ``limit`` rows that are there."""
        taken = []
        while limit > 0 and self.mark.seq < len(self._stream):
            rest = self._stream[self.mark.seq].slice(self.mark.row)
            piece = rest.slice(0, limit)
            whole = piece.num_rows == rest.num_rows
            row = self.mark.row + piece.num_rows
            self.mark = Mark(self.mark.seq + 1) if whole else Mark(self.mark.seq, row)
            taken.append(piece)
            limit -= piece.num_rows
        return taken

    def take_until(self, end: Mark) -> list[pa.RecordBatch]:
        """Exactly the rows up to ``end``."""
        taken = []
        while self.mark < end:
            taken += self.take(self._left(end))
        return taken

    def _left(self, end: Mark) -> int:
        if self.mark.seq < end.seq:
            return int(self._stream[self.mark.seq].num_rows) - self.mark.row
        return end.row - self.mark.row


class UserCode:
    """Decides by a script, call by call, so differently on every attempt; in the end: forward."""

    def __init__(self, script: Sequence[str]) -> None:
        self._script = list(script)
        self._asides: dict[str, FellBack | Served] = {}
        self._handler = Handler(self)

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
                raise Nack(delay=5_000)
            case "drop":
                return None
            case "fail":
                raise ValueError
            case "away":
                raise ConnectionError("the database is away")
            case "dead":
                raise MessageTooLarge(9, 5)
            case "retry":
                return Message.to_fail("not yet")
            case "fall back":
                self._asides[datum.id] = FellBack()
            case "serve":
                self._asides[datum.id] = Served()
            case other:
                raise NotImplementedError(other)
        return None

    def decide(self, verdict: Verdict) -> None:
        """As a vertex with a retry strategy, a fallback sink and a serving store would."""
        self._asides.clear()
        call = partial(run_map, self._handler, concurrency=1)
        call_with_retries(verdict, call, RETRIES, lambda _seconds: None, "map")
        for index, row_id in enumerate(verdict.rows.column("id")):
            if (aside := self._asides.get(row_id)) and verdict.outcomes.get(index) == EMPTY:
                verdict.outcomes[index] = aside
                if isinstance(aside, Served):
                    verdict.answers[index] = [b"answer"]


DECISIONS = ("forward", "two", "nack", "nack later", "drop", "fail", "dead")
DECISIONS += ("retry", "fall back", "serve", "away")


@dataclass
class Chances:
    """Everything that hypothesis, or an enumeration, may choose."""

    random: Random = field(default_factory=lambda: Random(1))
    crash_after: int | None = None
    zombie: int = 0
    """How many publications of a crashed task still arrive, after others have gone on."""

    def step(self) -> None:
        """One thing was done; perhaps the last."""
        if self.crash_after is not None:
            self.crash_after -= 1
            if self.crash_after < 0:
                raise Crash


@dataclass
class Settled:
    """A chunk that is settled but not recorded yet."""

    end: Span
    counts: Counts
    dropped: set[str]
    rows: Rows
    settlement: Settlement


class Task:
    """The loop of ``VertexTask``: replay, then chunk after chunk until there is nothing more."""

    def __init__(self, server: Server, code: UserCode, rules: Rules, chances: Chances) -> None:
        self._server = server
        self._code = code
        self._rules = rules
        self._chances = chances
        stored = Position.from_json(server.stored)
        self._position = stored.claimed("me")
        self._revision = server.write(self._position, server.revision)
        self._inlet: Reader = self._opened(stored.done.inlet)
        self._redeliveries = Reader(server.due, stored.done.redelivery)
        self._unrecorded: Settled | None = None
        self._on_settled: Callable[[Settlement], None] = lambda settlement: None

    def _opened(self, start: Mark) -> Reader:
        """What the task reads from."""
        return Reader(self._server.inlet, start)

    def run(self, on_settled: Callable[[Settlement], None] | None = None) -> None:
        """Work until everything is done, or a crash. Afterwards nothing of it goes on."""
        self._on_settled = on_settled or self._on_settled
        self._chances.step()
        if self._position.replays:
            intent = self._position.intent
            redelivered = self._redeliveries.take_until(intent.redelivery)
            batches = [*redelivered, *self._inlet.take_until(intent.inlet)]
            if batches:
                self._process(batches)
            else:
                self._position = self._position.settled(intent, Counts())
        while self._more():
            redelivered = self._redeliveries.take(self._chances.random.randint(1, 3))
            fresh = self._inlet.take(self._chances.random.randint(1, 4))
            if redelivered or fresh:
                self._process([*redelivered, *fresh])
            if self._chances.random.random() < 0.3:
                self._record()
        self._record()

    def _more(self) -> bool:
        ends = Mark(len(self._server.inlet)), Mark(len(self._server.due))
        if (self._inlet.mark, self._redeliveries.mark) != ends:
            return True
        self._server.pass_time(60_000)
        return self._redeliveries.mark != Mark(len(self._server.due))

    def _process(self, batches: list[pa.RecordBatch]) -> None:
        rows = Rows(frames.concat(batches))
        start = self._unrecorded.end if self._unrecorded else self._position.done
        end = Span(self._inlet.mark, self._redeliveries.mark)
        verdict = Verdict("v", rows, POLICY, 10**6, Random(1))
        self._code.decide(verdict)
        key = chunk_key(self._position.lineage, "v", 0, start, end)
        now = datetime.fromtimestamp(self._server.now / 1000, UTC)
        settlement = settle(Chunk(key, rows), verdict, PLACE, now, returning=self._returning(rows))
        ids = rows.column("id")
        dropped = {ids[i] for i, o in verdict.outcomes.items() if isinstance(o, Dropped)}
        fallen = {ids[i] for i, o in verdict.outcomes.items() if isinstance(o, FellBack)}
        self._server.fallen |= fallen
        self._settle(key, Settled(end, settlement.counts, dropped, rows, settlement))

    def _returning(self, rows: Rows) -> Sequence[int]:
        """The rows that go back to where they came from if they are to come again."""
        return ()

    def _settle(self, key: str, settled: Settled) -> None:
        self._write(self._with_unrecorded().intending(settled.end))
        self._remember(settled)
        if not self._rules.done_after_publishing:
            self._unrecorded = settled
            self._record()
        remaining = []
        for stage in self._rules.stages(key, settled.settlement):
            remaining += self._chances.random.sample(stage, len(stage))
        if self._rules.looks_before_repeating and self._position.repeated is not None:
            done = self._position.repeated
            remaining = [p for p in remaining if not self._server.holds(p, done)]
        while remaining:
            self._server.happen()
            try:
                self._chances.step()
            except Crash:
                self._server.late += remaining[: self._chances.zombie]
                raise
            self._server.publish(remaining.pop(0))
        self._on_settled(settled.settlement)
        if self._rules.done_after_publishing:
            self._unrecorded = settled

    def _with_unrecorded(self) -> Position:
        settled = self._unrecorded
        if settled is None:
            return self._position
        return self._position.settled(settled.end, settled.counts)

    def _write(self, position: Position) -> None:
        """One write: what was settled before is done now, and with it its drops are final."""
        self._chances.step()
        self._revision = self._server.write(position, self._revision)
        done, self._position, self._unrecorded = self._unrecorded, position, None
        if done:
            self._server.dropped |= done.dropped
            self._told(done)

    def _remember(self, settled: Settled) -> None:
        """Before the first publication of a chunk."""

    def _told(self, done: Settled) -> None:
        """A chunk is recorded as done."""

    def _record(self) -> None:
        if self._unrecorded:
            self._write(self._with_unrecorded())


def inlet_of(*sizes: int) -> list[pa.RecordBatch]:
    """Frames of these sizes, whose ids count up."""
    first = [sum(sizes[:number]) for number in range(len(sizes))]
    return [
        frames.batch_of(
            {"id": [f"m{n}" for n in range(start, start + size)], "value": [b""] * size}, size
        )
        for start, size in zip(first, sizes, strict=True)
    ]


def run_to_the_end(
    server: Server,
    code: UserCode,
    crashes: Sequence[Chances] = (),
    rules: Rules | None = None,
    on_settled: Callable[[Settlement], None] | None = None,
) -> set[str]:
    """One task after another, the last without a crash. The ids of the inputs that were lost."""
    rules = rules or Rules()
    for chances in crashes:
        try:
            Task(server, code, rules, chances).run(on_settled)
        except Crash:
            server.pass_time(chances.random.choice([0, 0, 10_000]))
    last = Task(server, code, rules, Chances(Random(len(crashes))))
    for publication in server.late:
        server.publish(publication)
    last.run(on_settled)
    ids = {i for batch in server.inlet for i in batch.column("id").to_pylist()}
    return ids - server.ended()
