"""A graph of vertices in the crash model: one server, a task of each vertex in any order, and any
edge inline in any chunk.

Everything that decides is the shipped chunk loop, as in ``crash_model``. The tasks take turns: each
runs until it is stopped, has nothing to do, or crashes; then another vertex has its turn, which may
read what the crashed one has published. So one task replays while the other has gone on.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from random import Random
from zlib import crc32

import pyarrow as pa

from ebbflow import Datum, Message, Nack
from ebbflow.domain.errors import Fenced, MessageTooLarge
from ebbflow.domain.outcome import Counts
from ebbflow.engine import frames
from ebbflow.engine.inlet import Intake
from ebbflow.engine.outage import Breaker, OutageGate, Patience
from ebbflow.engine.position import (
    Mark,
    Position,
    Span,
    Stamp,
    add_counts,
    known_of_redeliveries,
    known_of_writers,
)
from ebbflow.engine.publications import (
    DUE,
    FROM,
    REDELIVERED_BY,
    Place,
    Publication,
    Stage,
    with_due,
)
from ebbflow.engine.routing import Edge
from ebbflow.runtime.deciding import ChunkDecider, DecisionRules
from ebbflow.runtime.inline import InlineVertex, InlineVertices
from ebbflow.runtime.loop import ChunkLoop, Epoch, TaskParts
from ebbflow.usercode.calling import call_map
from tests.runtime.crash_model import (
    DELAYS,
    NO_BREAKER,
    POLICY,
    Chances,
    Crash,
    MemoryJournal,
    ModelClock,
    Rules,
    StampedReader,
    UserCode,
)
from tests.runtime.crash_run import FOR_EVER, AnySize, CalledCode, Silence, inlet_of

KINDS = ("forward", "forward", "two", "nack", "nack later", "nack later", "drop", "fail", "dead")
_MOST_WAITS = 3_000
_MOST_TURNS = 400

Graph = Mapping[str, Sequence[Edge]]
"""The edges of each vertex. The first one reads what comes from outside."""


@dataclass
class Frame:
    """A message of a buffer or of a redelivery stream."""

    batch: pa.RecordBatch
    msg_id: str
    stamp: Stamp | None = None


@dataclass
class Vertex:
    """What the server keeps of one vertex: its streams and its position."""

    name: str
    buffer: list[Frame] = field(default_factory=list)
    due: list[Frame] = field(default_factory=list)
    waiting: list[tuple[int, int, Frame]] = field(default_factory=list)
    moved: list[Frame] = field(default_factory=list)
    revision: int = 1

    def __post_init__(self) -> None:
        # Each partition has a lineage of its own.
        self.stored = Position(f"life of {self.name}").to_json()

    @property
    def position(self) -> Position:
        return Position.from_json(self.stored)

    @property
    def is_idle(self) -> bool:
        """Whether everything is read and settled."""
        end = Span(Mark(len(self.buffer)), Mark(len(self.due)))
        position = self.position
        return not self.waiting and position.done == end and not position.replays


class World:
    """The server. ``forgets`` is how likely it is at any publication to forget the ids it knows."""

    def __init__(self, graph: Graph, sizes: Sequence[int], chance: Random, forgets: float) -> None:
        self.graph = graph
        self.vertices = {name: Vertex(name) for name in graph}
        first = next(iter(self.vertices.values()))
        first.buffer += [Frame(batch, "") for batch in inlet_of(*sizes)]
        self.now = 1_000_000
        self.letters: list[tuple[str, str]] = []
        self.letter_ids: list[str] = []
        self._chance = chance
        self._forgets = forgets
        self._seen: set[tuple[Stage, str, int, str]] = set()
        self._published = 0

    def publish(self, publication: Publication) -> None:
        """Take a message, unless its stream has seen its id before."""
        stage, vertex = publication.stage, publication.target
        stream = (stage, vertex, publication.partition, publication.msg_id)
        if stream in self._seen:
            return
        self._seen.add(stream)
        if stage is Stage.DEAD_LETTER:
            self.letters.append((vertex, publication.headers["Ebbflow-Id"].strip('"')))
            self.letter_ids.append(publication.msg_id)
        elif stage in (Stage.OUTPUT, Stage.HAND_OVER):
            stamp = Stamp.of(publication.headers[FROM], publication.msg_id)
            assert stamp is not None, "a reader has to know copies of every output"
            self.vertices[vertex].buffer.append(_frame(publication, stamp))
        elif stage is Stage.REDELIVER:
            self._redeliver(publication)
        else:
            raise NotImplementedError(stage)

    def _redeliver(self, publication: Publication) -> None:
        vertex = self.vertices[publication.target]
        frame = _frame(publication, self._moved_stamp(publication))
        if publication.due is None:
            vertex.due.append(frame)
            return
        self._published += 1
        vertex.waiting.append((publication.due, self._published, frame))

    def _moved_stamp(self, publication: Publication) -> Stamp | None:
        sender = publication.headers.get(REDELIVERED_BY)
        if sender is None and publication.due is None:
            return None
        return Stamp.of_redelivery(publication.token, self.now / 1000, sender)

    def refuses(self, publication: Publication) -> bool:
        """Whether a stream never takes it."""
        return False

    def record(self, position: Position) -> bytes:
        """What is stored of a position."""
        return position.to_json()

    def happen(self) -> None:
        if self._chance.random() < self._forgets:
            self._seen.clear()
            self._move_again()

    def _move_again(self) -> None:
        """As a server that was killed does with frames that were parked: some come once more."""
        for vertex in self.vertices.values():
            if vertex.moved and self._chance.random() < 0.5:
                vertex.due.append(self._chance.choice(vertex.moved))

    def pass_time(self, ms: int) -> None:
        self.now += ms
        for vertex in self.vertices.values():
            vertex.waiting.sort(key=lambda one: one[:2])
            while vertex.waiting and vertex.waiting[0][0] <= self.now:
                frame = vertex.waiting.pop(0)[2]
                vertex.due.append(frame)
                vertex.moved.append(frame)

    def holds(self, publication: Publication, done: Mark) -> bool:
        """Whether it is stored, as far as whoever replays can find out."""
        if publication.stage is Stage.DEAD_LETTER:
            return publication.msg_id in self.letter_ids
        if publication.stage is not Stage.REDELIVER:
            return False
        vertex = self.vertices[publication.target]
        there = [*vertex.due[done.seq :], *(frame for _, _, frame in vertex.waiting)]
        return any(frame.msg_id == publication.msg_id for frame in there)

    @property
    def counts(self) -> Mapping[str, Counts]:
        """The counts of each vertex, whichever tasks ran it."""
        total: Mapping[str, Counts] = {}
        for name, vertex in self.vertices.items():
            position = vertex.position
            total = add_counts(total, add_counts({name: position.counts}, position.inline_counts))
        return total


def _frame(publication: Publication, stamp: Stamp | None) -> Frame:
    batch = frames.decode(publication.payload)
    if (due := publication.headers.get(DUE)) is not None:
        batch = with_due(batch, int(due))
    return Frame(batch, publication.msg_id, stamp)


class OneVertex:
    """The server as the journal of one vertex's task sees it."""

    full_until = 0

    def __init__(self, world: World, name: str) -> None:
        self._world = world
        self._vertex = world.vertices[name]
        self.publish, self.holds = world.publish, world.holds
        self.happen, self.pass_time = world.happen, world.pass_time
        self.refuses = world.refuses
        self.late: list[Publication] = []

    @property
    def now(self) -> int:
        return self._world.now

    @property
    def revision(self) -> int:
        return self._vertex.revision

    @property
    def position(self) -> Position:
        return self._vertex.position

    def write(self, position: Position, revision: int) -> int:
        vertex = self._vertex
        if revision != vertex.revision:
            raise Fenced(vertex.name, 0)
        vertex.stored, vertex.revision = self._world.record(position), revision + 1
        return vertex.revision

    def dies_before_it_confirms(self) -> bool:
        return False


class Decided(UserCode):
    """Decides by vertex and message alone, so the same on every attempt: a little of everything."""

    def __init__(self, vertex: str, calls: Counter[tuple[str, str]]) -> None:
        super().__init__(())
        self._vertex = vertex
        self._calls = calls

    def kind(self, datum: Datum) -> str:
        kind = KINDS[crc32(f"{self._vertex}:{datum.id}".encode()) % len(KINDS)]
        return "forward" if kind.startswith("nack") and datum.deliveries > 2 else kind

    def __call__(self, datum: Datum) -> object:
        self._calls[self._vertex, datum.id] += 1
        match self.kind(datum):
            case "forward":
                return Message(b"1")
            case "two":
                return [Message(b"1"), Message(b"2", tags=["y"])]
            case "nack":
                raise Nack
            case "nack later":
                raise Nack(delay=DELAYS[len(datum.id) % len(DELAYS)])
            case "drop":
                return None
            case "fail":
                raise ValueError
            case "dead":
                raise MessageTooLarge(9, 5)
            case other:
                raise NotImplementedError(other)


class Scripted(UserCode):
    """Decides by chance at every call, so differently on every attempt; at last: forward."""

    def __init__(self, vertex: str, chance: Random) -> None:
        super().__init__(())
        self._chance = chance
        self._left = 60

    def __call__(self, datum: Datum) -> object:
        self._left -= 1
        kinds = ("forward", "two", "nack", "nack later", "fail", "away", "dead")
        self._script = [self._chance.choice(kinds) if self._left > 0 else "forward"]
        return super().__call__(_Numbered(datum))


class _Numbered:
    """A datum whose id is that of the message it came from."""

    def __init__(self, datum: Datum) -> None:
        self.id = datum.id.partition("/")[0]


Codes = Callable[[str], UserCode]


class GraphTask:
    """One task of one vertex: with the vertices behind it, which it may run inline."""

    def __init__(
        self, world: World, name: str, codes: Codes, chances: Chances, inline: float, rules: Rules
    ) -> None:
        self.world, self.chances = world, chances
        self._vertex = world.vertices[name]
        self._codes, self._often = codes, inline
        self._waits = 0
        server = OneVertex(world, name)
        self.clock = ModelClock(server, self.idle)
        self.epoch = Epoch(FOR_EVER, self.clock)
        self.journal = MemoryJournal(server, rules, chances, self.clock)
        self.journal.stop = self.epoch.stop
        parts = TaskParts(
            journal=self.journal,
            open_intake=self._open,
            gate=self._gate(name),
            size=AnySize(chances.random, 6),
            rules=self._rules(name),
            events=Silence(),
            clock=self.clock,
            inline=self._inline(name),
        )
        self.loop = ChunkLoop(parts, self.epoch)

    def _gate(self, name: str) -> OutageGate:
        code = CalledCode(self._codes(name), partial(call_map, concurrency=1))
        return OutageGate(code, Patience(clock=self.clock.monotonic), Breaker(NO_BREAKER))

    def _rules(self, name: str) -> DecisionRules:
        return DecisionRules(Place(name, 0, self.world.graph[name], 1_000_000), POLICY, 10**6)

    def _inline(self, name: str) -> InlineVertices:
        return InlineVertices(self._inline_vertex(to) for to in self.world.graph if to != name)

    def _inline_vertex(self, name: str) -> InlineVertex:
        gate, random = self._gate(name), self.chances.random
        decider = ChunkDecider(self._rules(name), gate, AnySize(random, 6), self.clock)
        gate.open()
        few_wait = lambda: random.random() < self._often  # noqa: E731
        return InlineVertex(name, gate, decider, few_wait, Silence(), self.clock)

    def _open(self, done: Span) -> Intake:
        vertex, random = self._vertex, self.chances.random
        of_tasks = known_of_writers(done.known)
        inlet = _Frames(vertex.buffer, done.inlet, of_tasks, random, vertex, "inlet")
        known = known_of_redeliveries(done.known)
        again = _Frames(vertex.due, done.redelivery, known, random, vertex, "redelivery")
        self.read = Intake(inlet, again)
        return self.read

    def idle(self) -> None:
        self._waits += 1
        assert self._waits < _MOST_WAITS, "it works for ever"
        if not self.journal.is_busy and not self._more_comes():
            self.epoch.stop()

    def _more_comes(self) -> bool:
        inlet, again = self.read.inlet, self.read.redeliveries
        return bool(self._vertex.waiting) or inlet.rows_left or again.rows_left  # type: ignore[attr-defined]

    def run(self) -> None:
        try:
            self.loop.run()
        finally:
            self.journal.end()


class _Frames(StampedReader):
    """Follows a stream of frames that grows while the task runs."""

    def __init__(
        self,
        stream: list[Frame],
        start: Mark,
        known: Mapping,
        random: Random,
        vertex: Vertex,
        which: str,
    ) -> None:
        self._frames = stream
        super().__init__(
            _Batches(stream),  # type: ignore[arg-type]
            lambda seq: stream[seq].stamp,
            start,
            known,
            random,
            lambda: getattr(vertex.position.done, which),
        )


class _Batches(Sequence):
    """The batches of frames, as the reader of the crash model takes them."""

    def __init__(self, stream: list[Frame]) -> None:
        self._stream = stream

    def __len__(self) -> int:
        return len(self._stream)

    def __getitem__(self, seq):  # type: ignore[no-untyped-def]
        return self._stream[seq].batch


@dataclass
class GraphRun:
    """A run of a graph to its end, in which tasks crash and take turns at random."""

    graph: Graph
    sizes: Sequence[int]
    seed: int
    inline: float = 0.5
    crashes: int = 6
    forgets: float = 0.05
    rules: Rules = field(default_factory=Rules)
    task: type[GraphTask] = GraphTask
    server: type[World] = World

    def __post_init__(self) -> None:
        self.random = Random(self.seed)
        self.calls: Counter[tuple[str, str]] = Counter()
        self.world = self.server(self.graph, self.sizes, self.random, self.forgets)

    def run(self, codes: Codes | None = None) -> World:
        """Run until every vertex is idle."""
        codes = codes or (lambda name: Decided(name, self.calls))
        for _ in range(_MOST_TURNS):
            if all(vertex.is_idle for vertex in self.world.vertices.values()):
                return self.world
            self._turn(self.random.choice([*self.graph]), codes)
        raise AssertionError("it works for ever")

    def _turn(self, name: str, codes: Codes) -> None:
        chances = Chances(Random(self.random.random()))
        if self.crashes and self.random.random() < 0.5:
            self.crashes -= 1
            chances.crash_after = self.random.randint(0, 30)
        elif self.random.random() < 0.5:
            chances.stop_after = self.random.randint(0, 30)
        try:
            self.task(self.world, name, codes, chances, self.inline, self.rules).run()
        except Crash:
            self.world.pass_time(self.random.choice((0, 0, 5, 995, 10_000)))
