"""The goals of Ebbflow, as ratios of one run, and whether they are reached."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from benchmarks import (
    contest,
    cores,
    end_to_end,
    functions,
    kafka,
    observed,
    peers,
    postgres,
    pubsub,
    pulsar,
    queues,
    serving,
    sqs,
    web,
)
from benchmarks.calls import CallCost
from benchmarks.contest import Case
from benchmarks.figures import Figures
from benchmarks.growth import Point
from benchmarks.ours import EBBFLOW


@dataclass(frozen=True, slots=True)
class Goal:
    """One goal. ``at_least`` or at most ``target``; ``found`` is what was measured."""

    what: str
    at_least: bool
    target: float
    found: float
    unit: str = ""

    @property
    def reached(self) -> bool:
        """Whether it is."""
        return self.found >= self.target if self.at_least else self.found <= self.target

    @property
    def shown(self) -> str:
        """The figure as people read it."""
        number = f"{self.found:,.0f}" if self.found >= 1_000 else f"{self.found:,.3g}"
        return f"{number}{self.unit}"

    @property
    def wanted(self) -> str:
        """The goal as people read it."""
        return f"{'≥' if self.at_least else '≤'} {self.target:,g}{self.unit}"


def goals(figures: Figures) -> list[Goal]:
    """Returns the goals for which the measured parts have figures."""
    return [
        *_rates(figures.cases),
        *_end_to_end(figures.cases),
        *_calls(figures.calls),
        *_growth(figures.points),
        *_edges(figures.cases),
        *_functions(figures.cases),
        *_latency(figures),
        *_low_rates(figures),
        *_cores(figures),
        *_served(figures),
        *_observed(figures),
        *_starts(figures),
    ]


def _rates(cases: Sequence[Case]) -> Iterator[Goal]:
    """With the smallest payload, where Ebbflow's overhead per message has the greatest weight."""
    size = min((case.size for case in cases), default=0)
    found = {(c.job, c.name, c.mode): c for c in cases if c.size == size}
    hop, columnar, plain, other, floor, three = (
        found.get(key)
        for key in (
            (contest.HOP, EBBFLOW, "unary"),
            (contest.HOP, EBBFLOW, "columnar"),
            (contest.HOP, peers.NATS_PY, "unary"),
            (contest.HOP, peers.FASTSTREAM, "unary"),
            (contest.HOP, peers.FLOOR, "columnar"),
            (contest.THREE, EBBFLOW, "unary"),
        )
    )
    if hop and columnar and plain:
        yield Goal("hop, nats-py workers a core", True, 10, hop.per_core / plain.per_core, " x")
        yield Goal("columnar, the same", True, 60, columnar.per_core / plain.per_core, " x")
    if hop and other:
        yield Goal("hop, FastStream workers a core", True, 10, hop.per_core / other.per_core, " x")
    if columnar and floor:
        yield Goal("columnar, of the bare process", True, 0.7, columnar.rate / floor.rate)
    if hop and three:
        share = three.rate / (hop.rate * 2 / 3)
        yield Goal("three vertices, of two thirds of a hop", True, 0.8, share)
        yield Goal("three vertices, messages a second", True, 350_000, three.rate)
        yield Goal("three vertices, messages a core second", True, 330_000, three.per_core)


def _end_to_end(cases: Sequence[Case]) -> Iterator[Goal]:
    size = min((case.size for case in cases if case.job == contest.END_TO_END), default=0)
    rates = {
        case.name: case.rate
        for case in cases
        if (case.job, case.size) == (contest.END_TO_END, size) and case.mode != end_to_end.READS
    }
    for name, target in ((end_to_end.BENTO, 2), (end_to_end.BATCHED, 5), (end_to_end.BULK, 0.8)):
        if end_to_end.MONO in rates and name in rates:
            what = f"single messages, MonoVertex to {name}"
            yield Goal(what, True, target, rates[end_to_end.MONO] / rates[name], " x")


def _calls(calls: Sequence[CallCost]) -> Iterator[Goal]:
    for one in calls:
        if one.best:
            what = f"a sink with {one.milliseconds} ms a call, of full calls"
            yield Goal(what, True, 0.9, one.rate / one.best)


def _growth(points: Sequence[Sequence[Point]]) -> Iterator[Goal]:
    def rate(grows: str, at: int) -> float | None:
        taken = (one for rounds in points for one in rounds)
        found = [one.rate for one in taken if (one.grows, one.at) == (grows, at)]
        return statistics.median(found) if found else None

    for grows, base, at, target in (
        ("% nacked", 0, 10, 12),
        ("parked", 0, 100_000, 3),
        ("messages", 1_000_000, 10_000_000, 10),
    ):
        before, after = rate(grows, base), rate(grows, at)
        if before and after:
            what = f"loss of rate, {at:,} {grows}"
            yield Goal(what, False, target, 100 * (1 - after / before), " %")
    yield from _memory(points)


def _memory(points: Sequence[Sequence[Point]]) -> Iterator[Goal]:
    most = [rounds[0] for rounds in points if rounds[0].grows == "messages"]
    if most:
        last = max(most, key=lambda point: point.at)
        grown = 100 * (last.late / last.early - 1)
        yield Goal(f"growth of the workers, {last.at:,} messages", False, 5, grown, " %")


def _latency(figures: Figures) -> Iterator[Goal]:
    hops = {(one.name, one.rate): one for one in figures.latencies if one.way == "one hop"}
    one, plain = hops.get((EBBFLOW, 1_000)), hops.get((peers.NATS_PY, 1_000))
    if one:
        yield Goal("a hop at 1,000/s, p50", False, 4, one.p50, " ms")
        yield Goal("a hop at 1,000/s, p99", False, 10, one.p99, " ms")
        yield Goal("a hop at 1,000/s, longest at an epoch's end", False, 250, one.max, " ms")
    if one and plain:
        yield Goal("a hop at 1,000/s, nats-py workers, p50", False, 3, one.p50 / plain.p50, " x")


def _edges(cases: Sequence[Case]) -> Iterator[Goal]:
    rates = {(case.job, case.name, case.mode): case.rate for case in cases}
    for how in (postgres.WRITES, postgres.READS):
        one, bare = (rates.get((contest.POSTGRES, who, how)) for who in (EBBFLOW, postgres.LOOP))
        if one and bare:
            yield Goal(f"{contest.POSTGRES}, {how}, to a bare loop", True, 0.6, one / bare, " x")
    for (job, name, mode), other, target in (
        ((contest.KAFKA, kafka.MONO, "unary"), (kafka.LOOP, "unary"), 0.6),
        ((contest.PULSAR, queues.MONO, "unary"), (pulsar.LOOP, "unary"), 0.6),
        ((contest.SQS, queues.MONO, "unary"), (sqs.LOOP, "unary"), 0.6),
        ((contest.PUBSUB, queues.MONO, "unary"), (pubsub.LOOP, "unary"), 0.6),
        ((contest.KAFKA, kafka.MONO, "unary"), (kafka.BENTO, "unary"), 1),
        ((contest.POSTGRES, EBBFLOW, postgres.WRITES), (postgres.BENTO, postgres.WRITES), 1),
        ((contest.POSTGRES, EBBFLOW, postgres.WRITES), (postgres.JDBC, postgres.WRITES), 1),
        ((contest.SOURCE, web.HTTP, web.SINGLE), (web.BARE, web.SINGLE), 0.7),
    ):
        ours, theirs = rates.get((job, name, mode)), rates.get((job, *other))
        if ours and theirs:
            yield Goal(f"{job}, {name} to {other[0]}", True, target, ours / theirs, " x")
    for key, target in _EDGES.items():
        if found := rates.get(key):
            yield Goal(f"{key[0]}, {key[1]}, messages a second", True, target, found)


_EDGES = {
    (contest.SOURCE, "jetstream", ""): 120_000,
    (contest.SOURCE, "user-defined", ""): 250_000,
    (contest.SINK_ALONE, "jetstream", ""): 90_000,
    (contest.SINK_ALONE, "file", ""): 300_000,
}


def _functions(cases: Sequence[Case]) -> Iterator[Goal]:
    rates = {(case.name, case.mode): case.rate for case in cases if case.job == contest.FUNCTIONS}
    for key, target in _FUNCTIONS.items():
        if found := rates.get(key):
            yield Goal(f"{key[0]}, {key[1]}, messages a second", True, target, found)


_FUNCTIONS = {
    (functions.GO, functions.WIRE): 80_000,
    (functions.PYNUMAFLOW, functions.IN_PROCESS): 300_000,
}


def _low_rates(figures: Figures) -> Iterator[Goal]:
    wanted = {1_000: 0.28, 10: 0.06}
    for one in figures.low_rates:
        what = f"three vertices at {one.rate:,}/s"
        if one.rate in wanted:
            yield Goal(what, False, wanted[one.rate], one.shares.total, " cores")
        if one.rate == 1_000:
            yield Goal(f"{what}, p50", False, 2, one.p50, " ms")
            yield Goal(f"{what}, p99", False, 6, one.p99, " ms")
            if one.megabytes:
                yield Goal(f"{what}, memory", False, 520, one.megabytes, " MB")


def _cores(figures: Figures) -> Iterator[Goal]:
    rates = {(one.work, one.cores): one.rate for one in figures.cores}
    one, two = rates.get((cores.THREE, 1)), rates.get((cores.THREE, 2))
    if one and two:
        yield Goal(f"{cores.THREE}, two cores to one", True, 1.8, two / one, " x")
    if eight := rates.get((cores.EIGHT, 2)):
        yield Goal(f"{cores.EIGHT}, messages a second", True, 180_000, eight)


def _served(figures: Figures) -> Iterator[Goal]:
    wanted = {serving.PIPELINE: 6, serving.MONO: 4}
    for one in figures.served:
        if one.name in wanted and one.rate == 200:
            yield Goal(
                f"requests at 200/s, {one.name}, p50", False, wanted[one.name], one.p50, " ms"
            )
            yield Goal(f"requests at 200/s, {one.name}, p99", False, 60, one.p99, " ms")


def _observed(figures: Figures) -> Iterator[Goal]:
    rates = {case.how: case.rate for case in figures.observed}
    if observed.PLAIN in rates and observed.ALL in rates:
        share = rates[observed.ALL] / rates[observed.PLAIN]
        yield Goal(f"{observed.ALL}, of the rate without", True, 0.93, share)


def _starts(figures: Figures) -> Iterator[Goal]:
    if figures.starts:
        yield Goal("first message", False, 3.5, statistics.median(figures.starts), " s")
    if figures.idle is not None:
        yield Goal(
            "three vertices without work", False, 3, 100 * figures.idle.total, " % of a core"
        )
