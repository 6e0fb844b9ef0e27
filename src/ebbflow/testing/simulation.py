"""Whole pipelines in memory, on a virtual clock: no Spark, no NATS, milliseconds.

    result = simulate(orders, [b"1", b"2"])
    assert result["enrich"].redelivered == 2 and result.elapsed >= timedelta(seconds=5)

Each partition of each vertex runs the production chunk loop and the production calls of user code
(``simulated_task``). Only the server, the sources and the clock are simulated (``world``,
``stand_ins``). Vertices take turns. When no vertex has anything to do, the clock moves to the next
time at which a vertex has. Everything runs in the calling thread and process, so debuggers and
closures work; user code that ends its process ends the test.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from ebbflow.domain.durations import Duration, milliseconds
from ebbflow.domain.errors import SetupError
from ebbflow.domain.outcome import Counts
from ebbflow.domain.spelling import did_you_mean, named_options
from ebbflow.nats.login import Addresses
from ebbflow.runtime.plan import VertexPlan
from ebbflow.runtime.planning import make_plans
from ebbflow.testing.incidents import Crash, Incident, Outage, Pause
from ebbflow.testing.simulated import SimulatedVertex, show_simulation
from ebbflow.testing.simulated_task import SimulatedTask
from ebbflow.testing.stand_ins import SampleMessages, with_stand_ins
from ebbflow.testing.world import VirtualClock, World

if TYPE_CHECKING:
    from ebbflow.builders import Builder
    from ebbflow.engine.dead_letter import Letter
    from ebbflow.spec.model import Spec

__all__ = ["Crash", "Outage", "Pause", "Simulation", "simulate"]

MAX_PAYLOAD = 8 * 1024 * 1024
"""The largest message that the server in memory accepts, like the embedded one."""


class Simulation:
    """A simulated pipeline and its results so far, as ``simulate`` returns it; see ``__getitem__``.

    Its ``repr`` says what happened. ``with simulate(...) as result`` closes user code at the end of
    the block; otherwise it is closed as soon as nothing is pending.
    """

    def __init__(
        self, name: str, plans: Sequence[VertexPlan], incidents: Sequence[Incident]
    ) -> None:
        self.pipeline = name
        self._world = World(VirtualClock())
        for plan in plans:
            self._world.add(plan.vertex, plan.partitions)
        self._tasks = [
            SimulatedTask(self._world, plan, partition, incidents)
            for plan in plans
            for partition in range(plan.partitions)
        ]

    # --- results ----------------------------------------------------------------------------------

    def __getitem__(self, vertex: str) -> SimulatedVertex:
        """Returns the results of a vertex; a ``KeyError`` suggests the right name."""
        tasks = [task for task in self._tasks if task.plan.vertex == vertex]
        if not tasks:
            raise KeyError(f"there is no vertex {vertex!r}; {self._meant(vertex)}")
        chunks = [chunk for task in tasks for chunk in task.notes.chunks.values()]
        return SimulatedVertex(
            vertex,
            sum((task.streams.latest.counts for task in tasks), Counts()),
            sorted((each for chunk in chunks for each in chunk.deliveries), key=lambda d: d.at),
            [output for chunk in chunks for output in chunk.outputs],
            [answer for chunk in chunks for answer in chunk.answers],
            [letter for letter in self._world.letters if letter.vertex == vertex],
            [error for task in tasks for error in task.notes.errors],
            sum(task.pending for task in tasks),
            next((task.waiting for task in tasks if task.waiting), None),
        )

    def _meant(self, vertex: str) -> str:
        return did_you_mean(vertex, self._names, "there are")

    @property
    def _names(self) -> list[str]:
        return list(dict.fromkeys(task.plan.vertex for task in self._tasks))

    @property
    def vertices(self) -> dict[str, SimulatedVertex]:
        """The results of all vertices by name, sources first."""
        return {name: self[name] for name in self._names}

    @property
    def elapsed(self) -> timedelta:
        """The virtual time that has passed."""
        return self._world.clock.elapsed

    @property
    def dead_letters(self) -> list[Letter]:
        """All dead letters, in the order of storing."""
        return [*self._world.letters]

    @property
    def answers(self) -> dict[str, list[bytes]]:
        """The answers that sinks have served, by request id."""
        answers: dict[str, list[bytes]] = {}
        for vertex in self.vertices.values():
            for request, payload in vertex.answers:
                answers.setdefault(request, []).append(payload)
        return answers

    @property
    def pending(self) -> int:
        """The number of messages that have not ended, parked ones included."""
        return sum(task.pending for task in self._tasks)

    def __str__(self) -> str:
        return show_simulation(self.pipeline, self.vertices, self.elapsed)

    __repr__ = __str__

    # --- time -------------------------------------------------------------------------------------

    def advance(self, duration: Duration) -> Simulation:
        """Runs the pipeline for more virtual time; returns itself."""
        clock = self._world.clock
        end = clock.now_ms + milliseconds(duration)
        self._run_until(end)
        clock.now_ms = max(clock.now_ms, end)
        return self

    def _run_until(self, end_ms: int) -> None:
        """Lets the vertices take turns until nothing is left to do, or until a time."""
        clock = self._world.clock
        while True:
            self._world.move_due()
            if self._take_turns():
                continue
            times = [time for task in self._tasks if (time := task.next_at()) is not None]
            if not times:
                break
            if min(times) > end_ms:
                clock.now_ms = max(clock.now_ms, end_ms)
                break
            clock.now_ms = min(times)
        if not self.pending:
            self._close_code()

    def _take_turns(self) -> bool:
        worked = False
        for task in self._tasks:
            if task.has_work():
                worked |= task.take_turn()
        return worked

    # --- closing ----------------------------------------------------------------------------------

    def _close_code(self) -> None:
        for task in self._tasks:
            task.close()

    def close(self) -> None:
        """Closes user code and sources."""
        self._close_code()
        for task in self._tasks:
            task.close_source()

    def __enter__(self) -> Simulation:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


@named_options
def simulate(
    pipeline: Builder | Spec | str | Path,
    messages: SampleMessages | None = None,
    *,
    incidents: Sequence[Incident] = (),
    until: Duration = "24h",
    search: str | Path | None = None,
) -> Simulation:
    """Runs a pipeline in memory, on a virtual clock, until every message has ended.

    The pipeline is a ``Pipeline``, a ``MonoVertex``, a checked spec, or the path of a spec.
    ``messages`` are for its source, or for each source by name; without them a generator or a
    source written in Python produces its own. ``incidents`` are ``Outage``, ``Pause`` and
    ``Crash``. It ends at ``until`` at the latest; messages parked for longer are ``pending`` then,
    and ``advance`` lets more time pass. Modules of user code are looked up in ``search`` first, or
    in the folder of the spec's file.

    User code runs in this thread; its exceptions are outcomes of messages, as in a pipeline.
    ``SetupError`` names a vertex that cannot be simulated, ``SpecError`` has problems of the spec,
    ``SimulationError`` names a vertex that would never end.
    """
    spec, folder = _read(pipeline)
    _check_vertices(spec, incidents)
    modules = str(search or folder) if search or folder else None
    plans = make_plans(with_stand_ins(spec, messages), Addresses(()), MAX_PAYLOAD, modules)
    simulation = Simulation(spec.name, plans, incidents)
    RECENT.append(simulation)
    simulation._run_until(simulation._world.clock.now_ms + milliseconds(until))
    return simulation


RECENT: deque[Simulation] = deque(maxlen=4)
"""The last simulations of this process. The pytest plugin shows those of a failed test."""


def _read(pipeline: Builder | Spec | str | Path) -> tuple[Spec, Path | None]:
    from ebbflow.builders import Builder
    from ebbflow.spec.lint import load

    if isinstance(pipeline, str | Path):
        return load(pipeline), Path(pipeline).resolve().parent
    if isinstance(pipeline, Builder):
        return pipeline.spec, None
    if not hasattr(pipeline, "steps"):
        raise TypeError(
            "simulate() takes a Pipeline, a MonoVertex, a spec or the path of one, "
            f"not {type(pipeline).__name__}"
        )
    return pipeline, None


def _check_vertices(spec: Spec, incidents: Sequence[Incident]) -> None:
    names = [step.name for step in spec.steps]
    if not isinstance(incidents, Sequence):
        raise TypeError(f"incidents takes a list, not {type(incidents).__name__}")
    for incident in incidents:
        if not isinstance(incident, Incident):
            raise TypeError(
                f"an incident is an Outage, a Pause or a Crash, not {type(incident).__name__}"
            )
        if incident.vertex not in names:
            raise SetupError(
                f"{type(incident).__name__} names the vertex {incident.vertex}, "
                f"which {spec.name} does not have.",
                f"Its vertices are: {', '.join(names)}.",
            )
