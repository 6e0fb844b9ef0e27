"""Runs of the shipped chunk loop in the crash model: one task after another, until all is done."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from datetime import datetime
from functools import partial
from random import Random
from typing import Any

import pyarrow as pa

from ebbflow.domain.outcome import Dropped, FellBack, Served
from ebbflow.engine import frames
from ebbflow.engine.account import ChunkObserver, ChunkRecord
from ebbflow.engine.blame import SystemOutage
from ebbflow.engine.causes import RaisedErrors
from ebbflow.engine.inlet import Intake
from ebbflow.engine.outage import Breaker, OpenCode, OutageGate, Patience, Waiting
from ebbflow.engine.position import Span
from ebbflow.engine.publications import Place
from ebbflow.engine.routing import Edge
from ebbflow.engine.settlement import Settlement
from ebbflow.engine.verdict import EMPTY, Operator, Verdict
from ebbflow.runtime.deciding import DecisionRules
from ebbflow.runtime.loop import ChunkLoop, Epoch, TaskParts
from ebbflow.runtime.ports import Report
from ebbflow.usercode.calling import Handler, call_map, call_with_retries, run_stream
from tests.runtime.crash_model import (
    DOWNTIMES,
    NO_BREAKER,
    PLACE,
    POLICY,
    RETRIES,
    Chances,
    Crash,
    DueReader,
    MemoryJournal,
    ModelClock,
    Reader,
    Rules,
    UserCode,
)
from tests.runtime.memory_server import Server

FOREVER = 1e9
_MOST_WAITS = 5_000


class SilentEvents:
    """Events that are not recorded."""

    def opened(self) -> None:
        pass

    def begin_chunk(self, at: datetime, rows: int) -> ChunkRecord:
        return ChunkRecord(at, rows)

    def takes_inline(self, vertex: str, inline: bool) -> None:
        pass

    def raised(self, errors: RaisedErrors) -> None:
        pass

    def waits(self, waiting: Waiting | None, halted: str | None) -> None:
        pass

    def report_if_due(self) -> None:
        pass

    def flush(self) -> None:
        pass


class AnySize:
    """Chunks of any size up to the largest."""

    def __init__(self, random: Random, largest: int) -> None:
        self._random = random
        self._largest = largest

    @property
    def limit(self) -> int:
        return self._random.randint(1, self._largest)

    def measured(self, verdict: Verdict) -> AbstractContextManager[None]:
        return nullcontext()


class CalledCode:
    """The user's code as a vertex calls it: with a retry strategy, a fallback and a store."""

    def __init__(self, code: UserCode, call: Callable[..., None]) -> None:
        self._code = code
        self._handler = Handler(code)
        self._call: Operator = partial(call, self._handler)

    def open(self) -> OpenCode:
        if self._handler.blame.outage is not None:
            self._handler.renew()
        return OpenCode(self, [self])

    @property
    def outage(self) -> SystemOutage | None:
        return self._handler.blame.outage

    def __call__(self, verdict: Verdict) -> None:
        self._code.asides.clear()
        self._code.broken.clear()
        call_with_retries(verdict, self._call, RETRIES, lambda _seconds: None, "map")
        for index, row_id in enumerate(verdict.rows.column("id")):
            if (aside := self._code.asides.get(row_id)) and verdict.outcomes.get(index) == EMPTY:
                verdict.decisions.finish(index, aside)
                if isinstance(aside, Served):
                    verdict.decisions.answer(index, [b"answer"])
        if self._code.broken:
            raise RuntimeError("a row that makes the operator fail")


class ModelTask:
    """One task of a vertex that reads a buffer. Nothing of it continues after its run."""

    ordered = False
    place: Place = PLACE
    observers: Sequence[ChunkObserver] = ()
    emits = False
    largest = 6
    seconds = FOREVER
    breaker = NO_BREAKER

    def __init__(self, server: Server, code: UserCode, rules: Rules, chances: Chances) -> None:
        self.server = server
        self.chances = chances
        self._undone: list[tuple[Span, set[str]]] = []
        self._waits = 0
        self.clock = clock = ModelClock(server, self._wake_up)
        self.epoch = Epoch(self.seconds, clock)
        self.journal = MemoryJournal(server, rules, chances, clock)
        self.journal.stop = self.epoch.stop
        self.journal.on_recorded = self._recorded
        self._decides = CalledCode(code, self.call())
        gate = OutageGate(self, Patience(clock=clock.monotonic), Breaker(self.breaker))
        rules_of_vertex = DecisionRules(self.place, POLICY, 10**6, self.emits)
        parts = TaskParts(
            journal=self.journal,
            open_intake=self._open,
            gate=gate,
            size=AnySize(chances.random, self.largest),
            rules=rules_of_vertex,
            events=SilentEvents(),
            clock=clock,
            observers=self.observers,
        )
        self.control = parts.control
        self.loop = ChunkLoop(parts, self.epoch)

    def _wake_up(self) -> None:
        self.control.wake.set()  # whatever ended the wait may have arrived for it
        self.idle()

    def call(self) -> Callable[..., None]:
        """How user code is called."""
        return partial(call_map, concurrency=1)

    def run(self, on_settled: Callable[[Settlement], None] = lambda settlement: None) -> Report:
        """Works until everything is done, or until a crash or a stop."""
        self.journal.on_settled = on_settled
        try:
            return self.loop.run()
        finally:
            self.journal.end()

    # --- what it reads --------------------------------------------------------------------------

    def _open(self, done: Span) -> Intake:
        server, random = self.server, self.chances.random
        self.redeliveries = DueReader(
            server.due,
            server.moved,
            done,
            random,
            lambda: server.position.done.redelivery,
        )
        self.inlet = self.open_inlet(done)
        self.read = Intake(self.inlet, self.redeliveries, ordered=self.ordered)
        return self.read

    def open_inlet(self, done: Span) -> Any:
        """The stream of new messages."""
        server = self.server
        return Reader(
            server.inlet, done.inlet, self.chances.random, lambda: server.position.done.inlet
        )

    def idle(self) -> None:
        """The task has waited. When nothing more arrives, the driver stops it."""
        self._waits += 1
        assert self._waits < _MOST_WAITS, "it never ends"
        if not self.journal.is_busy and not self.more_comes():
            self.epoch.stop()

    def more_comes(self) -> bool:
        """Whether there is any message that has not been taken."""
        coming = bool(self.server.waiting)
        return coming or self.inlet.rows_left or self.redeliveries.rows_left

    # --- its user code, and what has been dropped -----------------------------------------------

    def open(self) -> OpenCode:
        self._decides.open()
        return OpenCode(self, [self])

    @property
    def outage(self) -> SystemOutage | None:
        return self._decides.outage

    def __call__(self, verdict: Verdict) -> None:
        self._decides(verdict)
        ids, end = verdict.rows.column("id"), verdict.first_held()
        outcomes = {i: o for i, o in verdict.outcomes.items() if end is None or i < end}
        self.server.fallen |= {ids[i] for i, o in outcomes.items() if isinstance(o, FellBack)}
        dropped = {ids[i] for i, o in outcomes.items() if isinstance(o, Dropped)}
        self._undone.append((self.read.end, dropped))

    def _recorded(self, done: Span) -> None:
        """A dropped message has ended when its chunk is recorded as done."""
        for end, dropped in self._undone:
            if end.inlet <= done.inlet and end.redelivery <= done.redelivery:
                self.server.dropped |= dropped


class OrderedTask(ModelTask):
    """A task of an ordered vertex; its outputs go to one buffer."""

    ordered = True
    place = Place("v", 0, [Edge("x")], 1_000_000, "answers")

    def _recorded(self, done: Span) -> None:
        """The same for the rows before the held one: the chunk they were read in ends later."""
        before = self.server.inlet[: done.inlet.seq]
        settled = sum(batch.num_rows for batch in before) + done.inlet.row
        dropped = {row_id for _, ids in self._undone for row_id in ids}
        self.server.dropped |= {row_id for row_id in dropped if int(row_id[1:]) < settled}


class StreamTask(ModelTask):
    """A task of a stream map: what it yields is forwarded while it runs."""

    emits = True

    def call(self) -> Callable[..., None]:
        return run_stream


class Trickle(ModelTask):
    """A task whose buffer receives a row every ``every`` milliseconds."""

    rows = 60
    largest = 10_000
    every = 1

    def __init__(self, server: Server, code: UserCode, rules: Rules, chances: Chances) -> None:
        self._coming = inlet_of(*[1] * self.rows)
        began, pass_time = server.now, server.pass_time

        def arrive(ms: int) -> None:
            pass_time(ms)
            server.inlet += self._coming[len(server.inlet) : (server.now - began) // self.every]

        server.pass_time = arrive  # type: ignore[method-assign]
        super().__init__(server, code, rules, chances)
        self.clock.arrives_in = self.every / 1000

    def more_comes(self) -> bool:
        return len(self.server.inlet) < self.rows or super().more_comes()


def inlet_of(*sizes: int) -> list[pa.RecordBatch]:
    """Frames of these sizes, whose ids count up."""
    first = [sum(sizes[:number]) for number in range(len(sizes))]
    return [
        frames.batch_of(
            {"id": [f"m{n}" for n in range(start, start + size)], "value": [b""] * size}, size
        )
        for start, size in zip(first, sizes, strict=True)
    ]


def run_once(
    kind: type[ModelTask],
    server: Server,
    code: UserCode,
    rules: Rules,
    chances: Chances,
    on_settled: Callable[[Settlement], None] = lambda settlement: None,
) -> bool:
    """One task; ``False`` if it crashed."""
    try:
        kind(server, code, rules, chances).run(on_settled)
    except Crash:
        return False
    return True


def run_to_the_end(
    server: Server,
    code: UserCode,
    crashes: Sequence[Chances] = (),
    rules: Rules | None = None,
    on_settled: Callable[[Settlement], None] = lambda settlement: None,
    kind: type[ModelTask] = ModelTask,
) -> set[str]:
    """One task after another, the last without a crash. Returns the ids of the lost inputs."""
    rules = rules or Rules()
    for chances in crashes:
        if not run_once(kind, server, code, rules, chances, on_settled):
            server.pass_time(chances.random.choice(DOWNTIMES))
    last = kind(server, code, rules, Chances(Random(len(crashes))))
    for publication in server.late:
        server.publish(publication)
    last.run(on_settled)
    ids = {i for batch in server.inlet for i in batch.column("id").to_pylist()}
    return ids - server.ended()
