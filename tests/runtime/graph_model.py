"""A graph of vertices in the crash model: one server, vertices that share tasks in any way, and any
edge inline in any chunk.

Everything that decides is the shipped chunk loop, as in ``crash_model``. The tasks take turns: each
runs the loops of its vertices until it is stopped, has nothing to do, or crashes with all of them.
Then another task has its turn, which may read what the crashed one has published. So one task
replays after the other has continued.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from random import Random
from zlib import crc32

import pyarrow as pa

from ebbflow import Datum, Message, Nack, NackOptions
from ebbflow.domain.errors import Fenced, MessageTooLarge
from ebbflow.domain.outcome import Counts
from ebbflow.engine.inlet import Intake
from ebbflow.engine.outage import Breaker, OutageGate, Patience
from ebbflow.engine.position import (
    Known,
    Mark,
    Position,
    Span,
    add_counts,
    known_of_redeliveries,
    known_of_writers,
)
from ebbflow.engine.publications import (
    FROM,
    Place,
    Publication,
    Stage,
)
from ebbflow.engine.routing import Edge
from ebbflow.runtime.deciding import ChunkDecider, DecisionRules
from ebbflow.runtime.inline import InlineVertex, InlineVertices
from ebbflow.runtime.loop import ChunkLoop, Epoch, TaskParts, run_loops
from ebbflow.runtime.ports import VertexControl
from ebbflow.testing.world import MemoryInlet, PartitionStreams, StoredFrame, VirtualClock
from ebbflow.testing.world import World as MemoryWorld
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
    UserCode,
)
from tests.runtime.crash_run import FOREVER, AnySize, CalledCode, SilentEvents, inlet_of

KINDS = ("forward", "forward", "two", "nack", "nack later", "nack later", "drop", "fail", "dead")
_MOST_WAITS = 3_000
_MOST_WAITS_FOR_OTHERS = 300
_MOST_TURNS = 400

Graph = Mapping[str, Sequence[Edge]]
"""The edges of each vertex. The first one reads the messages from outside."""


class World(MemoryWorld):
    """The server of simulations, which may forget the ids it knows.

    ``forgets`` is the probability of this at any publication. ``room`` is how many unfinished
    frames fit into a buffer, if there is a limit.
    """

    room: int | None = None

    def __init__(self, graph: Graph, sizes: Sequence[int], chance: Random, forgets: float) -> None:
        super().__init__(VirtualClock(datetime.fromtimestamp(1_000, UTC)))
        self.graph = graph
        for name in graph:
            self.add(name, 1)
        first = self.vertex(next(iter(graph)))
        first.buffer += [StoredFrame(batch, "") for batch in inlet_of(*sizes)]
        self._moved: defaultdict[tuple[str, int], list[StoredFrame]] = defaultdict(list)
        self._chance = chance
        self._forgets = forgets

    def vertex(self, name: str) -> PartitionStreams:
        """What it stores of a vertex."""
        return self.partitions[name, 0]

    @property
    def dead(self) -> list[tuple[str, str]]:
        """The vertex and the id of every dead letter."""
        return [(letter.vertex, letter.id) for letter in self.letters]

    @property
    def is_idle(self) -> bool:
        """Whether everything is read and settled."""
        return not any(
            streams.count_unread() or streams.parked or streams.position.replays
            for streams in self.partitions.values()
        )

    def publish(self, publication: Publication) -> None:
        if publication.stage in (Stage.OUTPUT, Stage.HAND_OVER):
            assert publication.headers[FROM], "a reader has to recognise copies of every output"
        super().publish(publication)

    def is_full(self, publication: Publication) -> bool:
        """Whether its buffer has no room until some of the frames are done."""
        if self.room is None or publication.stage not in (Stage.OUTPUT, Stage.HAND_OVER):
            return False
        target = self.vertex(publication.target)
        return len(target.buffer) - target.position.done.inlet.seq >= self.room

    def refuses(self, publication: Publication) -> bool:
        """Whether its stream never accepts it."""
        return False

    def record(self, position: Position) -> Position:
        """What is stored of a position."""
        return position

    def happen(self) -> None:
        if self._chance.random() < self._forgets:
            self._seen.clear()
            self._move_again()

    def _move_again(self) -> None:
        """As a killed server does with frames that were parked: some are moved once more."""
        for where, streams in self.partitions.items():
            if self._moved[where] and self._chance.random() < 0.5:
                streams.due.append(self._chance.choice(self._moved[where]))

    def pass_time(self, ms: int) -> None:
        self.clock.now_ms += ms
        self.move_due()

    def move_due(self) -> None:
        before = {where: len(streams.due) for where, streams in self.partitions.items()}
        super().move_due()
        for where, streams in self.partitions.items():
            self._moved[where] += streams.due[before[where] :]

    @property
    def counts(self) -> Mapping[str, Counts]:
        """The counts of each vertex, whichever tasks ran it."""
        total: Mapping[str, Counts] = {}
        for (name, _), streams in self.partitions.items():
            position = streams.position
            total = add_counts(total, add_counts({name: position.counts}, position.inline_counts))
        return total


class OneVertex:
    """The server as the journal of one vertex's task sees it."""

    def __init__(self, world: World, name: str) -> None:
        self._world = world
        self._vertex = world.vertex(name)
        self.publish, self.holds = world.publish, world.holds
        self.happen, self.pass_time = world.happen, world.pass_time
        self.refuses, self.is_full = world.refuses, world.is_full
        self.late: list[Publication] = []

    @property
    def now(self) -> int:
        return self._world.clock.now_ms

    @property
    def revision(self) -> int:
        return self._vertex.revision

    @property
    def position(self) -> Position:
        return self._vertex.position

    def write(self, position: Position, revision: int) -> int:
        vertex = self._vertex
        if revision != vertex.revision:
            raise Fenced(vertex.vertex, 0)
        vertex.latest = self._world.record(position)
        vertex.stored, vertex.revision = vertex.latest.to_json(), revision + 1
        return vertex.revision

    def dies_before_it_confirms(self) -> bool:
        return False


class Decided(UserCode):
    """Decides only by vertex and message, so the same on every attempt: a mix of all decisions."""

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
                raise Nack(NackOptions(delay=DELAYS[len(datum.id) % len(DELAYS)]))
            case "drop":
                return None
            case "fail":
                raise ValueError
            case "dead":
                raise MessageTooLarge(9, 5)
            case other:
                raise NotImplementedError(other)


class Scripted(UserCode):
    """Decides at random at every call, so differently on every attempt; finally it forwards."""

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
    """One task of the vertices that share it: their loops, which may run each other inline."""

    def __init__(
        self,
        world: World,
        names: Sequence[str],
        codes: Codes,
        chances: Chances,
        inline: float,
        rules: Rules,
    ) -> None:
        self.world, self.chances = world, chances
        self._codes, self._often = codes, inline
        self._waits = 0
        self._reads: dict[str, Intake] = {}
        self._journals: list[MemoryJournal] = []
        self._controls: list[VertexControl] = []
        self.clock = ModelClock(OneVertex(world, names[0]), self.idle)
        self.epoch = Epoch(FOREVER, self.clock)
        parts = {name: self._parts(name, rules) for name in names}
        inlined = {name: self._inline_vertex(name, own) for name, own in parts.items()}
        self.loops: list[ChunkLoop] = []
        for name, own in parts.items():
            runs = [vertex for to, vertex in inlined.items() if to != name]
            only_replays = [to for to in names if chances.random.random() < 0.2]
            others = InlineVertices(runs, only_replays)
            self.loops.append(ChunkLoop(replace(own, inline=others), self.epoch))

    def _parts(self, name: str, rules: Rules) -> TaskParts:
        journal = MemoryJournal(OneVertex(self.world, name), rules, self.chances, self.clock)
        journal.stop = self.epoch.stop
        code = CalledCode(self._codes(name), partial(call_map, concurrency=1))
        patience = Patience(clock=self.clock.monotonic)
        parts = TaskParts(
            journal=journal,
            open_intake=partial(self._open, name),
            gate=OutageGate(code, patience, Breaker(NO_BREAKER)),
            size=AnySize(self.chances.random, 6),
            rules=DecisionRules(Place(name, 0, self.world.graph[name], 1_000_000), POLICY, 10**6),
            events=SilentEvents(),
            clock=self.clock,
        )
        self._journals.append(journal)
        self._controls.append(parts.control)
        return parts

    def _inline_vertex(self, name: str, parts: TaskParts) -> InlineVertex:
        decider = ChunkDecider(parts.rules, parts.gate, parts.size, self.clock)
        few_wait = lambda: self.chances.random.random() < self._often  # noqa: E731
        return InlineVertex(name, parts.gate, decider, few_wait, SilentEvents(), self.clock)

    def _open(self, name: str, done: Span) -> Intake:
        vertex, random = self.world.vertex(name), self.chances.random
        inlet = _Frames(
            vertex.buffer,
            done.inlet,
            known_of_writers(done.known),
            random,
            lambda: vertex.position.done.inlet,
        )
        again = _Frames(
            vertex.due,
            done.redelivery,
            known_of_redeliveries(done.known),
            random,
            lambda: vertex.position.done.redelivery,
        )
        self._reads[name] = Intake(inlet, again)
        return self._reads[name]

    def idle(self) -> None:
        self._waits += 1
        assert self._waits < _MOST_WAITS, "it never ends"
        for control in self._controls:
            control.wake.set()  # whatever ended the wait may have arrived for it
        if len(self.loops) < len(self.world.graph) and self._waits > _MOST_WAITS_FOR_OTHERS:
            self.epoch.stop()  # the vertex that has to make room may be in another task
        busy = any(journal.is_busy for journal in self._journals)
        if not busy and not any(map(self._more_comes, self._reads)):
            self.epoch.stop()

    def _more_comes(self, name: str) -> bool:
        inlet, again = self._reads[name].inlet, self._reads[name].redeliveries
        waiting = self.world.vertex(name).parked
        return bool(waiting) or inlet.rows_left or again.rows_left  # type: ignore[attr-defined]

    def run(self) -> bool:
        """Whether no chunk is left for the next task to replay."""
        try:
            reports = run_loops(self.loops[::-1], self.epoch)
            return not any(report.replays for report in reports)
        finally:
            self.end()

    def end(self) -> None:
        """Nothing of the task continues."""
        for journal in self._journals:
            journal.end()


class _Frames(MemoryInlet):
    """Follows a stream that grows; now and then its frames are still in flight.

    ``recorded`` returns how far it is done according to the position.
    """

    def __init__(
        self,
        stream: Sequence[StoredFrame],
        start: Mark,
        known: Known,
        random: Random,
        recorded: Callable[[], Mark],
    ) -> None:
        super().__init__(stream, start, known)
        self._random = random
        self._recorded = recorded

    def take(self, limit: int) -> list[pa.RecordBatch]:
        return [] if self._random.random() < 0.2 else super().take(limit)

    def forget(self, done: Mark) -> None:
        """Deleted frames must be recorded as done: there is no other copy."""
        assert done <= self._recorded(), "deleted, and not recorded as done"
        if done == self.mark:
            self.passed = None


@dataclass
class GraphRun:
    """A run of a graph to its end, in which tasks crash and take turns at random.

    Vertices share tasks at random. As in a real run, that changes only when the tasks concerned
    have ended normally, or when a new run begins, in which all share one (``regroups_late``).
    """

    graph: Graph
    sizes: Sequence[int]
    seed: int
    inline: float = 0.5
    crashes: int = 6
    forgets: float = 0.05
    rules: Rules = field(default_factory=Rules)
    task: type[GraphTask] = GraphTask
    server: type[World] = World
    regroups_late: bool = True
    room: int | None = None

    def __post_init__(self) -> None:
        self.random = Random(self.seed)
        self.calls: Counter[tuple[str, str]] = Counter()
        self.world = self.server(self.graph, self.sizes, self.random, self.forgets)
        self.world.room = self.room
        self._groups: list[list[str]] = [[*self.graph]]
        self._unsettled: set[str] = set()

    def run(self, codes: Codes | None = None) -> World:
        """Run until every vertex is idle."""
        codes = codes or (lambda name: Decided(name, self.calls))
        for _ in range(_MOST_TURNS):
            if self.world.is_idle:
                return self.world
            self._turn(self.random.choice(self._groups), codes)
            self._regroup()
        raise AssertionError("it never ends")

    def _regroup(self) -> None:
        if self._unsettled and self.regroups_late:
            if self.random.random() < 0.3:  # a new run
                self._groups = [[*self.graph]]
        elif self.random.random() < 0.5:
            self._groups = _divide([*self.graph], self.random)

    def _turn(self, names: Sequence[str], codes: Codes) -> None:
        chances = Chances(Random(self.random.random()))
        if self.crashes and self.random.random() < 0.5:
            self.crashes -= 1
            chances.crash_after = self.random.randint(0, 30)
        elif self.random.random() < 0.5:
            chances.stop_after = self.random.randint(0, 30)
        try:
            task = self.task(self.world, names, codes, chances, self.inline, self.rules)
            if task.run():
                self._unsettled.difference_update(names)
            else:
                self._unsettled.update(names)
        except Crash:
            self._unsettled.update(names)
            self.world.pass_time(self.random.choice((0, 0, 5, 995, 10_000)))


def _divide(names: Sequence[str], random: Random) -> list[list[str]]:
    """Returns the names in groups, each in the order of the graph."""
    homes = [random.randrange(len(names)) for _ in names]
    groups = [[n for n, home in zip(names, homes, strict=True) if home == g] for g in set(homes)]
    return [group for group in groups if group]
