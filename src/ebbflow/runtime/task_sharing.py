"""Which vertices share a task, and when one of them gets its own task.

A task that runs several vertices runs them inline on each other's outputs (``inline``). That costs
a third of what hops through buffers cost, in processor time, memory and latency, so a run begins
with as few tasks as possible (``group_plans``). A vertex is cut out of its group, together with the
vertices downstream of it, in three cases. Its calls are slow and would hold up the vertices
upstream. Or the task is saturated while cores are idle, and the two parts in parallel would process
much more, even with the cost of the hop between them. In these two cases it returns when both have
little to do. Or the spec, changed since a crash, no longer lets it run inline, and shares its task
only for the replay.

Groups change only between epochs that have ended well, when nothing is in flight. A run begins with
the largest possible groups. So the task that replays a chunk has all vertices that the chunk has
run inline: **a replay makes the same choices as before**, on any worker.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import psutil

from ebbflow.accounts.numbers import MESSAGE, Load, TaskNumbers
from ebbflow.runtime.plan import VertexPlan
from ebbflow.runtime.ports import Clock

SLOW = 0.05
"""The seconds of a call above which a vertex gets its own task."""

HOP = 1e-6
"""The extra seconds per row, on either side of an edge, when rows go through the buffer."""

WORTH_A_CUT = 1.3
"""The factor by which a cut must raise the throughput of a task."""

SATURATED, RELAXED = 0.9, 0.5
"""The least busy share of a saturated task, and the most of two tasks together that may merge."""

HOLD, LONGEST_HOLD = 30.0, 1800.0
"""The seconds for which a vertex keeps its own task: the first time, and at most."""

_WINDOW = 1.0
# The first calls of user code load what it needs.
_FIRST_CALLS = 2
_SIGNS = 2

Group = tuple[VertexPlan, ...]
"""The vertices that share a task, in the order of their edges. The first one leads the group."""


def group_plans(plans: Sequence[VertexPlan]) -> list[Group]:
    """Returns the largest groups: each vertex joins the first upstream vertex that may run it."""
    groups: dict[str, list[VertexPlan]] = {}
    homes: dict[str, str] = {}
    for plan in plans:
        writers = (other for other in plans if plan.vertex in _next_inline(other))
        home = next((homes[w.vertex] for w in writers if w.vertex in homes), plan.vertex)
        homes[plan.vertex] = home
        groups.setdefault(home, []).append(plan)
    return [tuple(group) for group in groups.values()]


def _next_inline(plan: VertexPlan) -> set[str]:
    return {edge.to for edge in plan.edges}.intersection(plan.inline)


def read_idle_seconds() -> float:
    """Returns the total seconds that the cores of this host have been idle."""
    times = psutil.cpu_times()
    return float(times.idle + getattr(times, "iowait", 0.0))


class TaskLoad:
    """How busy one task is, and how many cores of its host are idle. Used by the task's thread.

    ``rested`` are the seconds that the task had nothing to do, ``idle_seconds`` those of all cores.
    """

    def __init__(
        self, clock: Clock, rested: Callable[[], float], idle_seconds: Callable[[], float]
    ) -> None:
        self._clock = clock
        self._rested, self._idle_seconds = rested, idle_seconds
        self._before = clock.monotonic(), rested(), idle_seconds()
        self._load = Load()

    def look(self) -> Load:
        """Returns the load, measured again if the last measurement is a while ago."""
        at, rested, idle = self._before
        now = self._clock.monotonic()
        if (passed := now - at) >= _WINDOW:
            self._before = now, self._rested(), self._idle_seconds()
            busy = 1 - (self._before[1] - rested) / passed
            self._load = Load(round(busy, 2), round((self._before[2] - idle) / passed, 1))
        return self._load


class _Calls(NamedTuple):
    """The calls of a vertex: how many, how long in all, and with how many rows."""

    calls: int = 0
    seconds: float = 0.0
    rows: int = 0

    @classmethod
    def of(cls, numbers: TaskNumbers) -> _Calls:
        call, message = numbers.spreads.get("call"), numbers.spreads.get(MESSAGE)
        if call is None or message is None:
            return cls()
        return cls(call.count, call.seconds, message.count)

    def since(self, before: _Calls) -> _Calls:
        return _Calls(
            self.calls - before.calls, self.seconds - before.seconds, self.rows - before.rows
        )


@dataclass(slots=True)
class _VertexLoad:
    """The driver's measurements of a vertex.

    ``signs`` counts the consecutive looks that found a cut for the group that the vertex leads.
    """

    total: _Calls = field(default_factory=_Calls)
    recent: _Calls = field(default_factory=_Calls)
    slow: bool = False
    signs: int = 0
    hold: float = HOLD
    until: float = -math.inf


class Cut(NamedTuple):
    """A vertex and those downstream of it are to leave their group."""

    group: Group
    leaving: Group

    @property
    def tasks(self) -> int:
        """The number of tasks that this adds."""
        return self.leaving[0].partitions

    def describe(self) -> str:
        """Returns a description of the change, for people."""
        has = "has its" if len(self.leaving) == 1 else "have their"
        return f"{_list_names(self.leaving)} now {has} own tasks"


class Merge(NamedTuple):
    """A group is to rejoin the group that it was cut out of."""

    group: Group
    into: Group

    def describe(self) -> str:
        """Returns a description of the change, for people."""
        shares = "shares" if len(self.group) == 1 else "share"
        return f"{_list_names(self.group)} now {shares} the tasks of {self.into[0].vertex}"


def _list_names(group: Group) -> str:
    return ", ".join(plan.vertex for plan in group)


class TaskSharing:
    """Decides on the driver which vertices share a task. Used by one thread.

    ``load`` and ``numbers`` return the reports of a vertex's tasks, ``in_call`` returns the seconds
    for which its user code has been in one call, if that is long.
    """

    def __init__(
        self,
        plans: Sequence[VertexPlan],
        clock: Clock,
        load: Callable[[str], Load],
        numbers: Callable[[str], TaskNumbers],
        in_call: Callable[[str], float | None],
    ) -> None:
        self._home = {plan.vertex: group for group in group_plans(plans) for plan in group}
        self._only_replays = {name for plan in plans for name in plan.inline_replays}
        self._clock = clock
        self._load, self._numbers, self._in_call = load, numbers, in_call
        self._seen: dict[str, _VertexLoad] = {plan.vertex: _VertexLoad() for plan in plans}
        self._looked = clock.monotonic()
        self._passed = 0.0

    def look(self, groups: Sequence[Group]) -> Cut | Merge | None:
        """Returns a change that is due, if there is one; at most one in a second."""
        if all(len(group) == 1 for group in self._home.values()):
            return None
        self._passed = (now := self._clock.monotonic()) - self._looked
        if self._passed < _WINDOW:
            return None
        self._looked = now
        for name, seen in self._seen.items():
            self._count(name, seen)
        return self._find_cut(groups) or self._find_merge(groups)

    def _count(self, name: str, seen: _VertexLoad) -> None:
        total = _Calls.of(self._numbers(name))
        seen.recent, seen.total = total.since(seen.total), total
        if seen.recent.calls > 0 and total.calls > _FIRST_CALLS:
            seen.slow = seen.recent.seconds / seen.recent.calls > SLOW
        if self._in_call(name) is not None:
            seen.slow = True

    # --- cutting --------------------------------------------------------------------------------

    def _find_cut(self, groups: Sequence[Group]) -> Cut | None:
        for group in groups:
            first, head = self._choose_cut(group), self._seen[group[0].vertex]
            head.signs = head.signs + 1 if first else 0
            if first and head.signs >= _SIGNS:
                head.signs = 0
                return self._cut(group, first)
        return None

    def _choose_cut(self, group: Group) -> VertexPlan | None:
        """Returns the vertex of a group before which it should be cut, if there is one."""
        apart = [plan for plan in group[1:] if self._belongs_apart(plan)]
        if apart:
            return apart[0]
        load = self._load(group[0].vertex)
        if load.busy < SATURATED or not group[1:]:
            return None
        gains = {plan.vertex: self._gain(group, plan, load) for plan in group[1:]}
        best = max(group[1:], key=lambda plan: gains[plan.vertex])
        return best if gains[best.vertex] >= WORTH_A_CUT else None

    def _gain(self, group: Group, first: VertexPlan, load: Load) -> float:
        """Returns the factor by which a cut before a vertex raises the throughput of a group.

        The slower part limits it, and so do the cores that are now idle: both parts together work
        more than before, as the rows between them go through the buffer.
        """
        worked = load.busy * self._passed * group[0].partitions
        hop = HOP * self._seen[first.vertex].recent.rows
        costs, leaving = self._costs(group, worked), behind(first, group)
        moved = sum(costs[plan.vertex] for plan in leaving)
        cores = 1 + load.idle_cores / group[0].partitions
        return min(worked / (max(moved, worked - moved) + hop), cores * worked / (worked + 2 * hop))

    def _costs(self, group: Group, worked: float) -> dict[str, float]:
        """Returns each vertex's share of the seconds that the group's tasks worked lately.

        Besides the calls, every row costs about the same at every vertex.
        """
        calls = {plan.vertex: self._seen[plan.vertex].recent for plan in group}
        rows = sum(call.rows for call in calls.values())
        around = max(0.0, worked - sum(call.seconds for call in calls.values()))
        a_row = around / rows if rows else 0.0
        return {name: call.seconds + call.rows * a_row for name, call in calls.items()}

    def _cut(self, group: Group, first: VertexPlan) -> Cut:
        seen = self._seen[first.vertex]
        seen.until = self._clock.monotonic() + seen.hold
        seen.hold = min(2 * seen.hold, LONGEST_HOLD)
        return Cut(group, behind(first, group))

    def _belongs_apart(self, plan: VertexPlan) -> bool:
        return self._seen[plan.vertex].slow or plan.vertex in self._only_replays

    # --- merging --------------------------------------------------------------------------------

    def _find_merge(self, groups: Sequence[Group]) -> Merge | None:
        where = {plan.vertex: group for group in groups for plan in group}
        for group in groups:
            home = self._home[group[0].vertex]
            if home[0].vertex == group[0].vertex:
                continue
            into = self._group_before(group, home, where)
            if self._may_merge(group, into):
                return Merge(group, into)
        return None

    def _group_before(self, group: Group, home: Group, where: Mapping[str, Group]) -> Group:
        writers = (plan for plan in home if group[0].vertex in _next_inline(plan))
        return where[next(writers).vertex]

    def _may_merge(self, group: Group, into: Group) -> bool:
        if self._clock.monotonic() < self._seen[group[0].vertex].until:
            return False
        if any(map(self._belongs_apart, group)):
            return False
        return sum(self._load(part[0].vertex).busy for part in (group, into)) < RELAXED


def behind(first: VertexPlan, group: Group) -> Group:
    """Returns a vertex and those of its group that get messages only from it."""
    leaving = {first.vertex}
    for plan in group[1:]:
        writers = {other.vertex for other in group if plan.vertex in _next_inline(other)}
        if writers and writers <= leaving:
            leaving.add(plan.vertex)
    return tuple(plan for plan in group if plan.vertex in leaving)
