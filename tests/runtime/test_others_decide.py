"""Message or outage? The shipped gate with messages that answer, nack and raise in any mix."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from heapq import heappop, heappush
from random import Random
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from ebbflow import Message, Nack, NackOptions, Response, Unavailable
from ebbflow.domain.durations import Backoff
from ebbflow.domain.outcome import DeadLetter, Outcome, Redeliver, Retry
from ebbflow.engine.blame import Blame
from ebbflow.engine.checks import Rules
from ebbflow.engine.frames import Rows, concat
from ebbflow.engine.inlet import Intake
from ebbflow.engine.outage import Breaker, BreakerLimit, OpenCode, OutageGate, Patience
from ebbflow.engine.publications import redelivered_rows
from ebbflow.engine.retry import RetryStrategy
from ebbflow.engine.verdict import Operator, Verdict
from ebbflow.usercode.calling import Handler, call_map, call_sink, call_with_retries, run_batch_map
from ebbflow.usercode.sinks import Sinks, run_sinks
from tests.engine.sample_rows import some
from tests.thorough import examples

POLICY = Backoff("300ms", steps=5, factor=2.0, cap="1s")
STRATEGY = RetryStrategy(Backoff("2s", steps=3), "drop")

LISTED = ("ConnectionError", "TimeoutError", "Unavailable")
UNLISTED = ("ValueError", "KeyError", "TypeError", "AttributeError", "RuntimeError")
ERRORS: dict[str, Callable[[], Exception]] = {
    "ConnectionError": ConnectionError,
    "TimeoutError": TimeoutError,
    "Unavailable": partial(Unavailable, "the archive"),
    "ValueError": ValueError,
    "KeyError": KeyError,
    "TypeError": TypeError,
    "AttributeError": AttributeError,
    "RuntimeError": RuntimeError,
}
ANSWERS = ("ok", "nack", "raise Nack", "fail", "fallback")

ARRIVAL, STEADY = 0.001, 0.01
"""Seconds from one message to the next: those with a script, and those that are answered."""

Script = tuple[str, ...]
"""What happens on a message's first calls; all further ones succeed."""


@dataclass
class Clock:
    now: float = 0.0

    def __call__(self) -> float:
        return self.now


@dataclass
class Queue:
    """Rows that are each due at a certain time; the part of an inlet that an intake needs."""

    clock: Clock
    waiting: list[tuple[float, int, pa.RecordBatch]] = field(default_factory=list)
    _number: int = 0

    def add(self, due: float, rows: pa.RecordBatch) -> None:
        self._number += 1
        heappush(self.waiting, (due, self._number, rows))

    def take(self, limit: int) -> list[pa.RecordBatch]:
        taken: list[pa.RecordBatch] = []
        while limit > 0 and self.next_due() <= self.clock.now:
            due, number, rows = heappop(self.waiting)
            taken.append(rows.slice(0, limit))
            if rows.num_rows > limit:
                heappush(self.waiting, (due, number, rows.slice(limit)))
            limit -= taken[-1].num_rows
        return taken

    def next_due(self) -> float:
        return self.waiting[0][0] if self.waiting else float("inf")


class Code:
    """User code as a gate calls it: opened again after an outage, as in a worker."""

    def __init__(self, handlers: Sequence[Handler], operator: Operator) -> None:
        self._handlers = handlers
        self._operator = operator

    def open(self) -> OpenCode:
        for handler in self._handlers:
            if handler.blame.outage is not None:
                handler.renew()
        return OpenCode(self._operator, [handler.blame for handler in self._handlers])


class World:
    """A vertex with one script for each message, whose system may be down for a time."""

    def __init__(self, kind: str, scripts: Sequence[Script], seed: int) -> None:
        self.clock, self.chance = Clock(), Random(seed)
        self.scripts = {f"m{n}": script for n, script in enumerate(scripts)}
        self.unended = set(self.scripts)
        self.outage: Sequence[str] = ()
        self.calls: Counter[str] = Counter()
        self.calls_while_down = 0
        self.ends: dict[str, Outcome | None] = {}
        self.penalties: Counter[str] = Counter()
        self.closed = 0.0
        self.inlet, self.redeliveries = Queue(self.clock), Queue(self.clock)
        self.intake = Intake(self.inlet, self.redeliveries)  # type: ignore[arg-type]
        for number, message in enumerate(self.scripts):
            self.inlet.add(number * ARRIVAL, some(message).batch)
        self._steady = 0
        self.code = self._make(kind)
        self.patience = Patience(clock=self.clock)
        self.breaker = Breaker(BreakerLimit())
        self.gate = OutageGate(self.code, self.patience, self.breaker)

    def _make(self, kind: str) -> Code:
        if kind == "sink":
            primary, other = Handler(self.sink), Handler(self.accept)
            call, fallback = (partial(call_sink, one, batch_size=50) for one in (primary, other))
            sinks = Sinks(call, fallback, strategy=STRATEGY)
            return Code([primary, other], partial(run_sinks, sinks=sinks, pause=lambda _: None))
        code = self.map_async if kind == "async" else self.map
        handler = Handler(self.map_batch if kind == "batch" else code, Blame())
        call = (
            partial(run_batch_map, handler, batch_size=50)
            if kind == "batch"
            else partial(call_map, handler, concurrency=20)
        )
        operator = partial(
            call_with_retries, call=call, strategy=STRATEGY, pause=lambda _: None, what="map"
        )
        return Code([handler], operator)

    # --- user code ----------------------------------------------------------------------------

    def _act(self, message: str) -> str:
        """The action for this call of the message; raises if the script says so."""
        if self.outage:
            self.calls_while_down += 1
            raise ERRORS[self.chance.choice(self.outage)]()
        script, number = self.scripts[message], self.calls[message]
        self.calls[message] += 1
        action = script[number] if number < len(script) else "ok"
        if action in ERRORS:
            raise ERRORS[action]()
        if action == "raise Nack":
            raise Nack(delay="200ms")
        return action

    def map(self, datum: Any) -> Message:
        match self._act(datum.id):
            case "nack":
                return Message.to_nack(NackOptions(delay=300, reason="later"))
            case "fail":
                return Message.to_fail("failed")
            case _:
                return Message(datum.value)

    async def map_async(self, datum: Any) -> Message:
        return self.map(datum)

    def map_batch(self, data: list[Any]) -> dict[str, Message]:
        return {datum.id: self.map(datum) for datum in data}

    def sink(self, data: list[Any]) -> list[Response]:
        return [self._respond(datum) for datum in data]

    def _respond(self, datum: Any) -> Response:
        match self._act(datum.id):
            case "nack":
                return Response.nack(datum.id, NackOptions(delay=300))
            case "fail":
                return Response.failure(datum.id, "failed")
            case "fallback":
                return Response.fallback(datum.id)
            case _:
                return Response.ok(datum.id)

    def accept(self, data: list[Any]) -> list[Response]:
        return [Response.ok(datum.id) for datum in data]

    def go_down(self, errors: Sequence[str]) -> None:
        """From now on every call raises one of the errors."""
        self.outage = errors

    def come_back(self) -> None:
        self.outage = ()

    # --- the loop of a task -------------------------------------------------------------------

    def run(self, until: float) -> None:
        """Takes chunk after chunk until all messages have ended, or the time is over."""
        while (self.unended or self.outage) and self.clock.now < until:
            self._arrive()
            if (wait := self.gate.ready_in()) > 0:
                self.closed += wait
                self.clock.now += wait
                continue
            if not self.gate.open():
                continue
            limit = self.chance.choice((1, 5, 40, 200))
            probing = self.gate.probing
            taken = self.intake.take_probe(False) if probing else self.intake.take(limit, False)
            if taken is None:
                self.clock.now = max(
                    self.clock.now + 0.001,
                    min(self.inlet.next_due(), self.redeliveries.next_due(), until),
                )
                continue
            self._settle(Rows(concat(taken.batches)))
            self.clock.now += 0.002

    def _arrive(self) -> None:
        """Adds messages that user code answers, until the others have ended."""
        while self._steady * STEADY < self.clock.now:
            self._steady += 1
            message = f"steady{self._steady}"
            self.scripts[message] = (self.chance.choice(ANSWERS),)
            self.inlet.add(self._steady * STEADY, some(message).batch)

    def _settle(self, rows: Rows) -> None:
        verdict = Verdict(rows, Rules("v", POLICY, 10**6), self.chance)
        self.gate.decide(verdict)
        failures = rows.column("failures")
        returned: defaultdict[int, list[int]] = defaultdict(list)
        for index, message in enumerate(rows.column("id")):
            outcome = verdict.outcomes.get(index)
            if isinstance(outcome, Redeliver | Retry):
                returned[outcome.delay].append(index)
                if self.outage and outcome.failures > failures[index]:
                    self.penalties[message] += 1
            else:
                self.ends[message] = outcome
                self.unended.discard(message)
        for delay, at in returned.items():
            again = redelivered_rows(rows.batch, at, [verdict.outcomes[index] for index in at])
            self.redeliveries.add(self.clock.now + delay / 1000, again)


actions = st.sampled_from(ANSWERS + LISTED + UNLISTED)
kinds = st.sampled_from(["map", "async", "batch", "sink"])
seeds = st.integers(0, 2**16)
mixes = st.lists(st.lists(actions, min_size=1, max_size=3).map(tuple), max_size=5)


def spread(mix: Sequence[Script], answered: float, number: int, seed: int) -> list[Script]:
    """Scripts for that many messages; at least a share of them is answered on the first call."""
    chance = Random(seed)
    answers = [("ok",), ("nack",), ("raise Nack",), ("fail",), ("fallback",)]
    first = [script for script in mix if script[0] in ANSWERS] or answers
    return [
        chance.choice(first if chance.random() < answered or not mix else mix)
        for _ in range(number)
    ]


@pytest.mark.guarantee("outages-blame-no-message")
@settings(max_examples=examples(20), deadline=None)
@given(kind=kinds, mix=mixes, answered=st.floats(0.2, 1), seed=seeds)
@example("map", [("nack",), ("ValueError", "ValueError", "nack")], 0.6, 1)
@example("map", [("nack",), ("ConnectionError",)], 0.8, 1)
@example("map", [("ConnectionError",), ("raise Nack", "raise Nack")], 0.25, 0)
def test_no_mix_without_an_outage_stops_a_vertex_for_long(kind, mix, answered, seed):
    world = World(kind, spread(mix, answered, 200, seed), seed)
    world.run(until=60)
    assert not world.unended
    # A system that most calls say is unavailable may hold up the vertex for a while each time.
    is_flapping = answered < 0.5 and any(script[0] in LISTED for script in mix)
    assert world.closed < (60 if is_flapping else 20), "seconds that the gate was closed"
    assert world.breaker.tripped is None
    assert not [end for end in world.ends.values() if isinstance(end, DeadLetter)]


outages = st.lists(st.sampled_from(LISTED), min_size=1, max_size=2) | st.lists(
    st.sampled_from(UNLISTED), min_size=1, max_size=4
)


@pytest.mark.guarantee("outages-blame-no-message")
@settings(max_examples=examples(20), deadline=None)
@given(kind=kinds, mix=mixes, answered=st.floats(0.5, 1), outage=outages, seed=seeds)
def test_every_outage_stops_the_vertex_and_penalises_no_message(kind, mix, answered, outage, seed):
    world = World(kind, spread(mix, answered, 100, seed), seed)
    world.run(until=0.4)
    world.go_down(outage)
    world.run(until=0.4 + 6)
    assert world.gate.probing, "it waits"
    assert world.calls_while_down < 400
    if set(outage) <= set(LISTED):
        assert max(world.penalties.values(), default=0) <= 1, "only one that failed alone before"
    world.come_back()
    world.run(until=60)
    assert not world.unended
    assert not [end for end in world.ends.values() if isinstance(end, DeadLetter)]
