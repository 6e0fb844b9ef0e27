"""The figures of a benchmark as tables on a terminal."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence

from rich.table import Table

from benchmarks import contest, end_to_end, peers
from benchmarks.calls import CallCost
from benchmarks.contest import Case
from benchmarks.cores import OnCores
from benchmarks.figures import Figures
from benchmarks.goals import Goal, goals
from benchmarks.growth import Point
from benchmarks.latency import SHARES, Latency
from benchmarks.low_rates import LowRate
from benchmarks.observed import ObservedCase
from benchmarks.serving import Served


def tables(figures: Figures) -> Iterator[Table]:
    """Yields the tables of the parts that were measured."""
    if hops := figures.of(*_JOBS):
        yield _rates(hops)
    if whole := figures.of(contest.END_TO_END):
        yield _end_to_end(whole)
    for job, title in _EDGES.items():
        if edges := figures.of(job):
            yield _edges(title, edges)
    for job, title in _AT_LEAST_ONCE.items():
        if moved := figures.of(job):
            yield _at_least_once(title, moved)
    if called := figures.of(contest.FUNCTIONS):
        yield _functions(called)
    if figures.calls:
        yield _calls(figures.calls)
    if figures.latencies:
        yield _latencies(figures.latencies)
    if figures.low_rates:
        yield _low_rates(figures.low_rates)
    if figures.cores:
        yield _cores(figures.cores)
    if figures.served:
        yield _served(figures.served)
    if figures.observed:
        yield _observed(figures.observed)
    if figures.points:
        yield _growth(figures.points)
    if figures.starts:
        yield _starts(figures)
    if found := goals(figures):
        yield _goals(found)


def _table(title: str, texts: Sequence[str], numbers: Sequence[str]) -> Table:
    table = Table(title=title, title_justify="left")
    for name in texts:
        table.add_column(name)
    for name in numbers:
        table.add_column(name, justify="right")
    return table


def _rates(cases: Sequence[Case]) -> Table:
    title = "Throughput, one process for each vertex: medians, spread, ratios to the nats-py worker"
    numbers = ("bytes", "messages/s", "from", "to", "times", "a core second", "times a core")
    table = _table(title, ("job", "who", "mode"), numbers)
    for case in sorted(cases, key=lambda one: (_JOBS.index(one.job), one.size)):
        plain = _plain(cases, case)
        low, high = case.spread
        table.add_row(
            case.job,
            case.name,
            case.mode,
            f"{case.size:,}",
            *(f"{rate:,.0f}" for rate in (case.rate, low, high)),
            f"{case.rate / plain.rate:.1f}" if plain else "",
            f"{case.per_core:,.0f}",
            f"{case.per_core / plain.per_core:.1f}" if plain else "",
        )
    return table


def _end_to_end(cases: Sequence[Case]) -> Table:
    title = (
        "End to end on single messages: an outside JetStream stream, upper case, confirmed in "
        "another outside stream; ratios to the bulk process"
    )
    numbers = ("bytes", "messages/s", "from", "to", "of the floor", "a core second", "server")
    table = _table(title, ("who", "job"), numbers)
    for case in sorted(cases, key=lambda one: (one.mode == end_to_end.READS, one.size)):
        floor = _floor(cases, case)
        low, high = case.spread
        table.add_row(
            case.name,
            case.mode if case.mode == end_to_end.READS else case.job,
            f"{case.size:,}",
            *(f"{rate:,.0f}" for rate in (case.rate, low, high)),
            f"{case.rate / floor.rate:.2f}" if floor else "",
            f"{case.per_core:,.0f}",
            f"{case.server:.2f}" if case.server is not None else "",
        )
    return table


_EDGES = {
    contest.KAFKA: "Kafka to Kafka: a topic, upper case, another topic, one partition",
    contest.PULSAR: "Pulsar to Pulsar: a topic, upper case, another topic, no partitions",
    contest.POSTGRES: "Postgres: JSON objects into a table, and a table as a queue",
    contest.SOURCE: "Sources alone, in a MonoVertex that forgets what it reads",
    contest.SINK_ALONE: "Sinks alone, behind a filled buffer",
}


def _edges(title: str, cases: Sequence[Case]) -> Table:
    numbers = ("bytes", "messages/s", "from", "to", "a core second", "ms a post")
    table = _table(title, ("who", "how"), numbers)
    for case in cases:
        low, high = case.spread
        table.add_row(
            case.name,
            case.mode,
            f"{case.size:,}",
            *(f"{rate:,.0f}" for rate in (case.rate, low, high)),
            f"{case.per_core:,.0f}",
            f"{case.latency:.1f}" if case.latency is not None else "",
        )
    return table


_AT_LEAST_ONCE = {
    contest.SQS: "SQS to SQS: a queue, upper case, another queue",
    contest.PUBSUB: "Pub/Sub to Pub/Sub: a subscription, upper case, another topic",
}


def _at_least_once(title: str, cases: Sequence[Case]) -> Table:
    numbers = ("bytes", "messages/s", "from", "to", "a core second", "copies")
    table = _table(title, ("who",), numbers)
    for case in cases:
        low, high = case.spread
        rates = (f"{rate:,.0f}" for rate in (case.rate, low, high, case.per_core))
        table.add_row(case.name, f"{case.size:,}", *rates, f"{case.copies:,}")
    return table


def _functions(cases: Sequence[Case]) -> Table:
    title = "Functions of their own and in process: a map that passes on what comes"
    cpu = ("µs of CPU a message", "of the function")
    table = _table(title, ("function", "called by"), ("bytes", "messages/s", "from", "to", *cpu))
    for case in cases:
        low, high = case.spread
        theirs = None if case.server is None else 1e6 * case.server / case.rate
        table.add_row(
            case.name,
            case.mode,
            f"{case.size:,}",
            *(f"{rate:,.0f}" for rate in (case.rate, low, high)),
            f"{1e6 / case.per_core:.1f}",
            f"{theirs:.1f}" if theirs is not None else "",
        )
    return table


def _floor(cases: Sequence[Case], case: Case) -> Case | None:
    """The bulk process with the same job and payload."""
    wanted = (end_to_end.BULK, case.mode, case.size)
    return next((one for one in cases if (one.name, one.mode, one.size) == wanted), None)


_JOBS = (contest.HOP, contest.SINK, contest.MONO, contest.THREE)


def _plain(cases: Sequence[Case], case: Case) -> Case | None:
    """The plain worker's hop with the same payload."""
    same = (one for one in cases if one.name == peers.NATS_PY and one.size == case.size)
    return next(same, None) if case.job == contest.HOP else None


def _calls(calls: Sequence[CallCost]) -> Table:
    title = "Sinks whose calls have a cost of their own, 500 messages a call at most"
    table = _table(title, (), ("ms a call", "messages/s", "with full calls"))
    for one in calls:
        best = f"{one.best:,.0f}" if one.best else ""
        table.add_row(f"{one.milliseconds}", f"{one.rate:,.0f}", best)
    return table


def _latencies(latencies: Sequence[Latency]) -> Table:
    title = "Latency in milliseconds, epochs of 5 s"
    table = _table(title, ("who", "way"), ("a second", "messages", *SHARES))
    for one in latencies:
        marks = (f"{getattr(one, mark):.1f}" for mark in SHARES)
        table.add_row(one.name, one.way, f"{one.rate:,}", f"{one.messages:,}", *marks)
    return table


def _low_rates(found: Sequence[LowRate]) -> Table:
    title = "ebbflow run, generator, map and sink at low rates; cores of everything"
    who = ("driver", "jvm", "workers", "nats")
    table = _table(title, (), ("a second", "p50 ms", "p99 ms", "cores", *who, "MB"))
    for one in found:
        shares = (f"{getattr(one.shares, name):.3f}" for name in ("total", *who))
        times = f"{one.p50:.1f}", f"{one.p99:.1f}"
        memory = f"{one.megabytes:,.0f}" if one.megabytes else ""
        table.add_row(f"{one.rate:,}", *times, *shares, memory)
    return table


def _cores(found: Sequence[OnCores]) -> Table:
    table = _table("ebbflow run, on one core and on two", ("what",), ("cores", "messages/s"))
    for one in found:
        table.add_row(one.work, f"{one.cores}", f"{one.rate:,.0f}")
    return table


def _observed(found: Sequence[ObservedCase]) -> Table:
    title = "ebbflow run, generator, columnar map and sink at full speed, observed and not"
    numbers = ("messages/s", "times", "µs of CPU a message", "times")
    table = _table(title, ("observed by",), numbers)
    base = found[0]
    for case in found:
        shares = (f"{case.rate / base.rate:.2f}", f"{case.cpu / base.cpu:.2f}")
        table.add_row(case.how, f"{case.rate:,.0f}", shares[0], f"{case.cpu:.2f}", shares[1])
    return table


def _served(found: Sequence[Served]) -> Table:
    first = found[0]
    title = (
        f"Requests answered over HTTP: milliseconds and cores at {first.rate}/s, the highest rate "
        f"held, and {first.clients} clients at once"
    )
    numbers = (
        "p50",
        "p95",
        "p99",
        "max",
        "cores",
        "held, a second",
        "clients, a second",
        "their p99",
    )
    table = _table(title, ("who",), numbers)
    for one in found:
        marks = (f"{getattr(one, mark):.1f}" for mark in SHARES)
        rates = (f"{one.held:,}", f"{one.crowd_rate:,.0f}", f"{one.crowd_p99:,.0f}")
        table.add_row(one.name, *marks, f"{one.cores:.2f}", *rates)
    return table


def _growth(points: Sequence[Sequence[Point]]) -> Table:
    title = "As work grows (100 B, message by message); memory in MB"
    memory = ("JVM", "workers at 1/5", "workers at the end")
    table = _table(title, ("grows",), ("to", "messages/s", "from", "to ", *memory))
    for rounds in points:
        rates = [one.rate for one in rounds]
        shown = statistics.median(rates), min(rates), max(rates)
        first = rounds[0]
        megabytes = (first.jvm, first.early, first.late) if first.jvm else ()
        table.add_row(
            first.grows,
            f"{first.at:,}",
            *(f"{rate:,.0f}" for rate in shown),
            *(f"{one:,.0f}" for one in megabytes),
        )
    return table


def _goals(found: Sequence[Goal]) -> Table:
    table = _table("Goals, with the smallest payload", ("goal",), ("wanted", "found", ""))
    for goal in found:
        mark = "" if goal.reached else "missed"
        table.add_row(goal.what, goal.wanted, goal.shown, mark)
    return table


def markdown(table: Table) -> str:
    """The same table for a document."""
    heads = [str(column.header) or " " for column in table.columns]
    rules = ["---:" if column.justify == "right" else "---" for column in table.columns]
    rows = zip(*(column.cells for column in table.columns), strict=True)
    lines = (heads, rules, *([str(cell) for cell in row] for row in rows))
    body = "\n".join(f"| {' | '.join(cells)} |" for cells in lines)
    return f"**{table.title}**\n\n{body}\n"


def _starts(figures: Figures) -> Table:
    table = _table("ebbflow run, three vertices", ("what",), ("figure",))
    table.add_row("first message in the sink", f"{statistics.median(figures.starts):.1f} s")
    if (idle := figures.idle) is not None:
        table.add_row("idle, of one core", f"{idle.total:.1%}")
        for who in ("driver", "jvm", "workers", "nats"):
            table.add_row(f"  {who}", f"{getattr(idle, who):.1%}")
    return table
