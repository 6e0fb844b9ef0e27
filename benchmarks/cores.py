"""``ebbflow run`` of vertices that could use more than one core, bound to one core and to two.

Vertices share a task until it is saturated while cores are idle; then some get separate tasks.
A run has its own JVM, workers and embedded server. Its rate is taken from the sink's notes, once
the vertices have had the time to separate.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from benchmarks.broker import wait_until
from benchmarks.start import run_of
from benchmarks.user_code import NOTES

_SETTLED = 30.0
THREE, EIGHT = "three vertices, 1 ms of CPU for a message each", "eight vertices at full load"


def _spec(rate: int, maps: int, code: str, sink: str) -> str:
    """A generator, that many maps with the same code, and a sink."""
    names = ["in", *(f"map{number}" for number in range(maps)), "sink"]
    vertices = [
        f"{{name: in, source: {{generator: {{rpu: {rate}, msgSize: 100}}}}}}",
        *(f'{{name: {name}, udf: {{python: "{code}"}}}}' for name in names[1:-1]),
        f"{{name: sink, sink: {{udsink: {{{sink}}}}}}}",
    ]
    edges = (f"{{from: {one}, to: {other}}}" for one, other in pairwise(names))
    return "\n".join(
        (
            "apiVersion: numaflow.numaproj.io/v1alpha1",
            "kind: Pipeline",
            "metadata: {name: cores}",
            f"spec: {{vertices: [{', '.join(vertices)}], edges: [{', '.join(edges)}]}}",
        )
    )


_SPECS = {
    THREE: _spec(
        5_000, 2, "benchmarks.user_code:burn", 'python: "benchmarks.user_code:BurningAndNoting"'
    ),
    EIGHT: _spec(
        1_000_000,
        6,
        "benchmarks.work:each",
        'python: "benchmarks.user_code:NotingRows", mode: columnar',
    ),
}


@dataclass(frozen=True, slots=True)
class OnCores:
    """Messages a second on that many cores."""

    work: str
    cores: int
    rate: float


def at(folder: Path, work: str, cores: int, seconds: float) -> OnCores:
    """Measures for that many seconds, once the vertices have settled."""
    notes = folder / "notes"
    notes.unlink(missing_ok=True)
    with _bound_to(cores), run_of(folder, _SPECS[work], {NOTES: str(notes)}):
        wait_until(notes.exists)
        time.sleep(_SETTLED)
        began = time.time()
        time.sleep(seconds)
    lines = (line.split() for line in notes.open(encoding="ascii"))
    rows = (int(rows) for at, rows in lines if began <= float(at) < began + seconds)
    return OnCores(work, cores, sum(rows) / seconds)


@contextmanager
def _bound_to(cores: int) -> Iterator[None]:
    """Processes that are started meanwhile run on the first cores of this machine only."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, sorted(before)[:cores])
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)
