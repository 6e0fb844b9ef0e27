"""``ebbflow run`` of three vertices at full speed, observed and not: the cost of observing.

Each round runs the same messages through the same pipeline, once for each way of observing it.
A run has its own JVM, workers and embedded server. Its rate is taken from the sink's own notes,
between the first tenth of the messages and the last one, so that starting up does not count.
"""

from __future__ import annotations

import shutil
import statistics
import threading
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.broker import wait_until
from benchmarks.outside import free_port
from benchmarks.start import run_of, used_by
from benchmarks.user_code import NOTES

PLAIN, PAGE, AUDIT = "not observed", "page and metrics", "audit"
ALL, TRACES = "page, metrics and audit", "traces"
WAYS = (PLAIN, PAGE, AUDIT, ALL, TRACES)
_SCRAPE_EVERY = 1.0
_SPEC = """
apiVersion: numaflow.numaproj.io/v1alpha1
kind: Pipeline
metadata: {{name: observed}}
spec:
  {audit}
  vertices:
    - {{name: in, source: {{generator: {{messages: {messages}, msgSize: 100}}}}}}
    - {{name: map, udf: {{python: "benchmarks.work:columnar", mode: columnar}}}}
    - name: sink
      sink: {{udsink: {{python: "benchmarks.user_code:NotingRows", mode: columnar}}}}
  edges:
    - {{from: in, to: map}}
    - {{from: map, to: sink}}
"""


@dataclass(frozen=True, slots=True)
class ObservedRound:
    """One run: messages a second, and the microseconds of CPU for a message, of all processes."""

    rate: float
    cpu: float


@dataclass(slots=True)
class ObservedCase:
    """A way of observing, and the rounds that were run with it."""

    how: str
    messages: int
    rounds: list[ObservedRound] = field(default_factory=list)

    @property
    def rate(self) -> float:
        """The median of the rounds, in messages a second."""
        return statistics.median(one.rate for one in self.rounds)

    @property
    def cpu(self) -> float:
        """The median of the rounds, in microseconds a message."""
        return statistics.median(one.cpu for one in self.rounds)


def at(folder: Path, how: str, messages: int) -> ObservedRound:
    """Runs the pipeline once, observed in this way."""
    notes, audit = folder / "notes", folder / "audit"
    notes.unlink(missing_ok=True)
    shutil.rmtree(audit, ignore_errors=True)
    audited = f'audit: {{options: {{path: "{audit}"}}}}' if how in (AUDIT, ALL) else ""
    spec = _SPEC.format(messages=messages, audit=audited)
    with _seen(how) as (options, variables):
        variables = {NOTES: str(notes), **variables}
        with run_of(folder, spec, variables, options) as process:
            wait_until(lambda: _noted(notes) >= messages // 10)
            begin, used = _noted(notes), sum(used_by(process).values())
            wait_until(lambda: _noted(notes) >= messages, every=0.2)
            cpu = (sum(used_by(process).values()) - used) / (messages - begin)
    return ObservedRound(_rate(notes, messages), cpu * 1e6)


def _read(notes: Path) -> list[tuple[float, int]]:
    if not notes.exists():
        return []
    lines = notes.read_text(encoding="ascii").splitlines()
    return [(float(at), int(rows)) for at, rows in (line.split() for line in lines)]


def _noted(notes: Path) -> int:
    return sum(rows for _, rows in _read(notes))


def _rate(notes: Path, messages: int) -> float:
    """From the first tenth on."""
    so_far, begin = 0, (0.0, 0)
    for at, rows in _read(notes):
        so_far += rows
        if so_far >= messages // 10 and not begin[0]:
            begin = (at, so_far)
    return (so_far - begin[1]) / (at - begin[0])


Seen = tuple[Sequence[str], Mapping[str, str]]


@contextmanager
def _seen(how: str) -> Iterator[Seen]:
    """Watches a run as its web UI and Prometheus do; yields the run's options and variables."""
    port, over = free_port(), threading.Event()
    options: Sequence[str] = ()
    variables: dict[str, str] = {}
    watching = []
    if how in (PAGE, ALL):
        options, url = ("--ui", f"127.0.0.1:{port}"), f"http://127.0.0.1:{port}"
        watching = [
            threading.Thread(target=_follow_web_ui, args=(url, over), daemon=True),
            threading.Thread(target=_scrape, args=(url, over), daemon=True),
        ]
    if how == TRACES:
        # No server listens there; spans are made and encoded all the same.
        variables["OTEL_EXPORTER_OTLP_ENDPOINT"] = f"http://127.0.0.1:{port}"
    for thread in watching:
        thread.start()
    try:
        yield options, variables
    finally:
        over.set()


def _follow_web_ui(url: str, over: threading.Event) -> None:
    """Receives the events of the web UI, as a browser does."""
    while not over.wait(0.2):
        with suppress(OSError), _get(f"{url}/api/pipelines/observed/events") as events:
            while not over.is_set() and events.readline():
                pass


def _scrape(url: str, over: threading.Event) -> None:
    while not over.wait(_SCRAPE_EVERY):
        with suppress(OSError), _get(f"{url}/metrics") as metrics:
            metrics.read()


def _get(url: str) -> Any:
    return urllib.request.urlopen(url, timeout=10)
