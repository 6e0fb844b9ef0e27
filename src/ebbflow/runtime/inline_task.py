"""The vertices that a task on a worker may run inline: their user code, control and load there.

Made by ``nats_task`` for the vertices that its plan names. Everything that people see of such a
vertex says its name, whichever task runs it: what it prints, its errors, taps and traces.
"""

from __future__ import annotations

import concurrent.futures
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import psutil

from ebbflow.accounts.events import Events
from ebbflow.accounts.taps import Taps
from ebbflow.engine.outage import OutageGate, VertexCode
from ebbflow.nats import api
from ebbflow.nats.link import Link
from ebbflow.nats.publish import Tally
from ebbflow.runtime.control import PauseWatch, halt, tell_answers, tell_outage
from ebbflow.runtime.deciding import ChunkDecider
from ebbflow.runtime.inline import InlineVertex
from ebbflow.runtime.inline_load import InlineLoad, TaskLoad
from ebbflow.runtime.plan import VertexPlan
from ebbflow.runtime.ports import Clock, VertexControl
from ebbflow.runtime.vertex_parts import decision_rules, late_observers, open_spans
from ebbflow.runtime.worker import WORKER
from ebbflow.streams.names import Names
from ebbflow.usercode.printing import Printed

_ASK_EVERY = 0.2
_TELL_EVERY = 0.5


class Speaker:
    """Whose events a task tells at the moment: those of the vertex whose user code is called."""

    def __init__(self, events: Events) -> None:
        self.events = events

    def log(self, printed: Printed) -> None:
        """Sends what the vertex prints whose user code is called."""
        self.events.log(printed)

    @contextmanager
    def speaks(self, events: Events, variables: Mapping[str, str]) -> Iterator[None]:
        """Has another vertex speak, in its own environment, for as long as the context lasts."""
        before, self.events = self.events, events
        own = {name: os.environ.get(name, "") for name in variables}
        os.environ.update(variables)
        try:
            yield
        finally:
            self.events = before
            os.environ.update(own)


class BufferBacklog:
    """How many frames wait in the buffer of a vertex. Asks NATS now and then, and never waits."""

    def __init__(self, link: Link, names: Names, plan: VertexPlan, clock: Clock) -> None:
        self._link = link
        self._streams = [names.buffer(plan.vertex, n) for n in range(plan.partitions)]
        self._clock = clock
        self._asked: concurrent.futures.Future[int] | None = None
        self._asked_at = 0.0
        self._known: int | None = None

    def __call__(self) -> int | None:
        """Returns the number as of the last answer; ``None`` while there was none."""
        if self._asked is not None and self._asked.done():
            self._known = None if self._asked.exception() else self._asked.result()
            self._asked = None
        now = self._clock.monotonic()
        if self._asked is None and now - self._asked_at >= _ASK_EVERY:
            self._asked, self._asked_at = self._link.submit(self._ask()), now
        return self._known

    def wait(self) -> None:
        """Waits for the first answer, for a moment."""
        self()
        if self._asked is not None:
            concurrent.futures.wait([self._asked], timeout=1.0)

    async def _ask(self) -> int:
        infos = [await api.read_info(self._link.client, stream) for stream in self._streams]
        return sum(int(info["messages"]) for info in infos)


class InlineTask:
    """One vertex as the task of another vertex runs it, for one epoch."""

    def __init__(
        self, plan: VertexPlan, runner: VertexPlan, partition: int, link: Link, clock: Clock
    ) -> None:
        self.plan = plan
        self._names = names = Names(plan.pipeline)
        self._link, self._clock = link, clock
        # The same in a replay on another worker: redeliveries are looked for where they were.
        self._partition = partition % plan.partitions
        self._told = -_TELL_EVERY
        self.control = VertexControl()
        self.pauses = PauseWatch(names, plan.vertex, self.control.pause)
        self._resident = WORKER.vertex(plan.whose)
        task = f"{runner.vertex}.{partition}"
        self.events = Events(link, names, plan.vertex, self._partition, Tally(), task)
        self.taps = Taps(link, names, plan.vertex, self._resident.taps(self._partition))
        self._variables = {
            "NUMAFLOW_POD": f"{plan.pipeline}-{plan.vertex}-{self._partition}",
            "NUMAFLOW_REPLICA": str(self._partition),
            "NUMAFLOW_VERTEX_NAME": plan.vertex,
        }

    def _tell(self, gate: OutageGate) -> None:
        """Has the vertex's own tasks know that its user code answers, or that it is stopped."""
        now = self._clock.monotonic()
        if gate.halted is not None:
            word = halt(self.plan.vertex, gate.halted)
        elif (outage := gate.outage) is not None:
            word = tell_outage(self.plan.vertex, outage)
        elif now - self._told < _TELL_EVERY:
            return
        else:
            word = tell_answers(self.plan.vertex)
        self._told = now
        # Without waiting: before anything of the chunk is published, and on the same connection.
        self._link.submit(self._link.client.publish(self._names.control_subject, word))

    def vertex(self, code: VertexCode, load: TaskLoad, speaker: Speaker) -> InlineVertex:
        """Returns the vertex, ready to be run."""
        plan, resident, clock = self.plan, self._resident, self._clock
        patience = resident.patience("code", plan.policy.on_unavailable)
        gate = OutageGate(code, patience, resident.breaker(plan.policy.breaker))
        backlog = BufferBacklog(self._link, self._names, plan, clock)
        backlog.wait()
        spans = open_spans(plan, self._partition)
        observers = [self.events, *late_observers(plan), *([spans] if spans else []), self.taps]
        size = resident.pace(self._partition, plan.call_rows)
        rules = decision_rules(plan, self._partition)
        return InlineVertex(
            plan.vertex,
            gate,
            ChunkDecider(rules, gate, size, clock, observers),
            InlineLoad(clock, load, backlog, plan.partitions),
            self.events,
            clock,
            self.control,
            observers,
            lambda: speaker.speaks(self.events, self._variables),
            self._tell,
        )


def open_load(clock: Clock) -> TaskLoad:
    """Returns the load of the calling thread's task."""

    def idle_seconds() -> float:
        times = psutil.cpu_times()
        return float(times.idle + getattr(times, "iowait", 0.0))

    return TaskLoad(clock, time.thread_time, idle_seconds)
