"""The programme of a benchmark: which contestants run what, how often, in which order."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

from benchmarks import (
    calls,
    cores,
    end_to_end,
    functions,
    growth,
    kafka,
    latency,
    low_rates,
    observed,
    ours,
    peers,
    postgres,
    pubsub,
    pulsar,
    queues,
    serving,
    sinks,
    sources,
    sqs,
    start,
    web,
)
from benchmarks.broker import Ground, prepared
from benchmarks.contest import Case, Contestant
from benchmarks.figures import Figures
from benchmarks.growth import Point
from benchmarks.observed import ObservedCase
from benchmarks.serving import Demand
from benchmarks.work import DISTINCT

Say = Callable[[str], None]

# The most vertices of one measurement, in tasks.
_TASKS = 9
_LARGEST = 300_000_000


@dataclass(frozen=True, slots=True)
class Programme:
    """The amount of measuring. ``seconds`` is about how long a round should take.

    Idling is measured unless ``idle_seconds`` is 0. Contestants have one of ``who`` in their names.
    """

    sizes: Sequence[int]
    rounds: int
    seconds: float
    costs: Sequence[int]
    rates: Sequence[int]
    latency_seconds: float
    messages: Sequence[int]
    vertices: Sequence[int]
    partitions: Sequence[int]
    nacked: Sequence[int]
    parked: Sequence[int]
    growth_messages: int
    starts: int
    idle_seconds: float
    low_rates: Sequence[int]
    low_seconds: float
    cores: Sequence[tuple[str, int]]
    demand: Demand
    observed_messages: int = 0
    who: Sequence[str] = ("",)

    @property
    def smallest(self) -> Programme:
        """The same with the smallest payload only."""
        return replace(self, sizes=self.sizes[:1])


LONG = Programme(
    sizes=(100, 1_000, 10_000),
    rounds=3,
    seconds=2.0,
    costs=(0, 50, 400),
    rates=(10, 1_000, 20_000),
    latency_seconds=20.0,
    messages=(100_000, 1_000_000, 10_000_000),
    vertices=(1, 2, 4, 8),
    partitions=(1, 2, 4),
    nacked=(0, 10, 20, 50),
    parked=(0, 100_000, 1_000_000),
    growth_messages=600_000,
    starts=3,
    idle_seconds=30.0,
    low_rates=(10, 1_000),
    low_seconds=30.0,
    cores=((cores.THREE, 1), (cores.THREE, 2), (cores.EIGHT, 2)),
    demand=Demand(200, 30.0, 5.0, 500, 50_000),
    observed_messages=10_000_000,
)
SHORT = Programme(
    sizes=(100,),
    rounds=2,
    seconds=0.5,
    costs=(0, 50, 400),
    rates=(1_000,),
    latency_seconds=6.0,
    messages=(300_000,),
    vertices=(),
    partitions=(),
    nacked=(0, 10),
    parked=(),
    growth_messages=200_000,
    starts=1,
    idle_seconds=0.0,
    low_rates=(1_000,),
    low_seconds=10.0,
    cores=(),
    demand=Demand(200, 10.0, 2.0, 500, 5_000),
    observed_messages=2_000_000,
)


def measured(programme: Programme, parts: Sequence[str], seed: int, say: Say) -> Figures:
    """Carries out the programme."""
    figures = Figures()
    on_ground = [part for part in _ON_GROUND if part in parts]
    with tempfile.TemporaryDirectory(prefix="ebbflow-bench-") as folder:
        if on_ground:
            with prepared(Path(folder), _TASKS, seed) as ground:
                for part in on_ground:
                    _ON_GROUND[part](figures, ground, programme, say)
                    figures.taken[part] = _now()
        for part in _AS_COMMAND:
            if part in parts:
                _AS_COMMAND[part](figures, Path(folder), programme, seed, say)
                figures.taken[part] = _now()
    return figures


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def _hops(left_out: list[str]) -> Iterator[Contestant]:
    yield from (ours.Hop("unary", 500_000), ours.Hop("batch", 400_000))
    yield ours.Hop("columnar", 1_000_000)
    yield from (peers.Floor("unary", 1_200_000), peers.Floor("columnar", 1_500_000))
    yield peers.Floor("passed", 2_500_000)
    yield from (peers.nats_py(), peers.nats_py(64))
    if peers.has_faststream(left_out):
        yield peers.faststream()
    yield peers.Structured()
    yield ours.Sink(700_000)
    yield from (ours.Mono("unary", 350_000), ours.Mono("batch", 300_000))
    yield ours.Mono("columnar", 500_000)
    yield from (ours.Three("unary", 300_000), ours.Three("batch", 250_000))
    yield ours.Three("columnar", 400_000)


def _rates(figures: Figures, ground: Ground, programme: Programme, say: Say) -> None:
    _contest("rates", figures, _hops(figures.left_out), ground, programme, say)


def _end_to_end(figures: Figures, ground: Ground, programme: Programme, say: Say) -> None:
    contestants = end_to_end.contestants(figures.left_out)
    _contest("end-to-end", figures, contestants, ground, programme, say)


def _sources(figures: Figures, ground: Ground, programme: Programme, say: Say) -> None:
    contestants = [*sources.contestants(), *web.sources()]
    _contest("sources", figures, contestants, ground, programme.smallest, say)


def _sinks(figures: Figures, ground: Ground, programme: Programme, say: Say) -> None:
    contestants = [*sinks.contestants(), *web.sinks()]
    _contest("sinks", figures, contestants, ground, programme.smallest, say)


def _kafka(figures: Figures, ground: Ground, programme: Programme, say: Say) -> None:
    try:
        with kafka.kafka_broker() as broker:
            contestants = kafka.contestants(broker, figures.left_out)
            _contest("kafka", figures, contestants, ground, programme.smallest, say)
    except kafka.NoKafka as error:
        figures.left_out.append(f"Kafka: {error}")


def _postgres(figures: Figures, ground: Ground, programme: Programme, say: Say) -> None:
    try:
        with postgres.postgres_server() as server:
            contestants = postgres.contestants(server, figures.left_out)
            _contest("postgres", figures, contestants, ground, programme.smallest, say)
    except postgres.NoPostgres as error:
        figures.left_out.append(f"Postgres: {error}")


def _queues(
    part: str,
    service: queues.Running,
    figures: Figures,
    ground: Ground,
    programme: Programme,
    say: Say,
) -> None:
    try:
        with service() as running:
            _contest(part, figures, running.contestants(), ground, programme.smallest, say)
    except queues.NoService as error:
        figures.left_out.append(f"{part}: {error}")


def _functions(figures: Figures, ground: Ground, programme: Programme, say: Say) -> None:
    contestants = functions.contestants(figures.left_out)
    _contest("functions", figures, contestants, ground, programme.smallest, say)


def _contest(
    part: str,
    figures: Figures,
    contestants: Iterable[Contestant],
    ground: Ground,
    programme: Programme,
    say: Say,
) -> None:
    """Runs all contestants in every round, so that a slow minute of the machine affects all."""
    pairs = []
    for contestant in contestants:
        if not any(name in contestant.name for name in programme.who):
            continue
        for size in programme.sizes:
            messages = _messages(contestant, size, programme.seconds)
            who = (contestant.name, contestant.job, contestant.mode)
            case = Case(part, *who, size, messages)
            pairs.append((contestant, case))
    ours.Hop("unary", 1).run(ground, 20_000, 100)  # starts the workers
    for number in range(programme.rounds):
        for contestant, case in pairs:
            case.rounds.append(contestant.run(ground, case.messages, case.size))
            last = case.rounds[-1]
            rate = f"{last.rate:,.0f}/s" + (f", {last.copies:,} copies" if last.copies else "")
            say(f"round {number + 1}: {case.job}, {case.size} B, {case.name}, {case.mode}: {rate}")
    figures.cases += [case for _, case in pairs]


def _messages(contestant: Contestant, size: int, seconds: float) -> int:
    """Returns as many messages as take about this long, in thousands, at most a buffer full."""
    # Larger messages are slower, though not in proportion.
    pace = contestant.pace / (1 + size / 1_500 if contestant.pace > 20_000 else 1)
    wanted = min(int(pace * seconds), _LARGEST // size)
    return max(DISTINCT, wanted // DISTINCT * DISTINCT)


def _calls(figures: Figures, ground: Ground, programme: Programme, say: Say) -> None:
    for cost in programme.costs:
        # Long enough for some calls of the most expensive sink.
        figures.calls.append(calls.by_cost(ground, cost, 4 * programme.seconds))
        say(f"a sink with {cost} ms a call: {figures.calls[-1].rate:,.0f}/s")


def _latencies(figures: Figures, ground: Ground, programme: Programme, say: Say) -> None:
    for rate in programme.rates:
        found = latency.ours(ground, rate, programme.latency_seconds)
        # A worker that stores one message after another does not keep up with more.
        if rate <= 1_000:
            found += latency.plain(ground, rate, programme.latency_seconds)
        for one in found:
            say(f"{one.name}, {one.way}, {rate}/s: p50 {one.p50:.1f}, p99 {one.p99:.1f} ms")
        figures.latencies += found


def _growth(figures: Figures, ground: Ground, programme: Programme, say: Say) -> None:
    messages = programme.growth_messages
    plan: list[tuple[Sequence[int], Callable[[int], Point]]] = [
        (programme.messages, lambda n: growth.by_messages(ground, n)),
        (programme.vertices, lambda n: growth.by_vertices(ground, n, messages // max(1, n // 2))),
        (programme.partitions, lambda n: growth.by_partitions(ground, n, messages)),
        (programme.nacked, lambda n: growth.by_nacks(ground, n, messages)),
        (programme.parked, lambda n: growth.by_parked(ground, n, messages)),
    ]
    for steps, measure in plan:
        taken: list[list[Point]] = [[] for _ in steps]
        for _ in range(programme.rounds):
            for found, step in zip(taken, steps, strict=True):
                found.append(measure(step))
                say(f"{step:,} {found[-1].grows}: {found[-1].rate:,.0f}/s")
        figures.points += taken


def _starts(figures: Figures, folder: Path, programme: Programme, seed: int, say: Say) -> None:
    start.first_message(folder)  # the first of all may have to write the class-data archive
    for _ in range(programme.starts):
        figures.starts.append(start.first_message(folder))
        say(f"first message in the sink after {figures.starts[-1]:.1f} s")
    if programme.idle_seconds:
        figures.idle = start.idle(folder, programme.idle_seconds)
        say(f"idle: {figures.idle.total:.1%} of a core")


def _low_rates(figures: Figures, folder: Path, programme: Programme, seed: int, say: Say) -> None:
    for rate in programme.low_rates:
        figures.low_rates.append(low_rates.at(folder, rate, programme.low_seconds))
        last = figures.low_rates[-1]
        say(f"{rate:,}/s: {last.shares.total:.2f} cores, p50 {last.p50:.1f} ms")


def _cores(figures: Figures, folder: Path, programme: Programme, seed: int, say: Say) -> None:
    for work, number in programme.cores:
        figures.cores.append(cores.at(folder, work, number, programme.low_seconds))
        say(f"{work}, on {number} cores: {figures.cores[-1].rate:,.0f}/s")


def _serving(figures: Figures, folder: Path, programme: Programme, seed: int, say: Say) -> None:
    for name in serving.CONTESTANTS:
        if any(part in name for part in programme.who):
            figures.served.append(serving.at(folder, name, programme.demand, seed))
            one = figures.served[-1]
            times = f"p50 {one.p50:.1f}, p99 {one.p99:.1f} ms at {one.rate}/s"
            say(f"{name}: {times}, {one.held:,}/s held, a crowd {one.crowd_rate:,.0f}/s")


def _observed(figures: Figures, folder: Path, programme: Programme, seed: int, say: Say) -> None:
    ways = [way for way in observed.WAYS if any(name in way for name in programme.who)]
    cases = [ObservedCase(way, programme.observed_messages) for way in ways]
    for number in range(programme.rounds):
        for case in cases:
            case.rounds.append(observed.at(folder, case.how, case.messages))
            last = case.rounds[-1]
            say(f"round {number + 1}: {case.how}: {last.rate:,.0f}/s, {last.cpu:.2f} µs of CPU")
    figures.observed += cases


_ON_GROUND: dict[str, Callable[[Figures, Ground, Programme, Say], None]] = {
    "rates": _rates,
    "end-to-end": _end_to_end,
    "sources": _sources,
    "sinks": _sinks,
    "kafka": _kafka,
    "pulsar": partial(_queues, "pulsar", pulsar.pulsar),
    "sqs": partial(_queues, "sqs", sqs.sqs),
    "pubsub": partial(_queues, "pubsub", pubsub.pubsub),
    "postgres": _postgres,
    "functions": _functions,
    "calls": _calls,
    "latency": _latencies,
    "growth": _growth,
}
_AS_COMMAND: dict[str, Callable[[Figures, Path, Programme, int, Say], None]] = {
    "serving": _serving,
    "low-rates": _low_rates,
    "cores": _cores,
    "observed": _observed,
    "start": _starts,
}
