"""``ebbflow run`` as people use it: how soon the first message arrives, and what idling costs.

A separate run for each figure, with its own JVM, workers and embedded server.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

from benchmarks.broker import cpu_seconds, wait_until
from benchmarks.user_code import MARK

_SETTLED = 15.0
_SPEC = """
apiVersion: numaflow.numaproj.io/v1alpha1
kind: Pipeline
metadata: {name: start}
spec:
  vertices:
    - {name: in, source: {generator: {messages: 1}}}
    - {name: map, udf: {python: "benchmarks.work:each"}}
    - {name: sink, sink: {udsink: {python: "benchmarks.user_code:mark"}}}
  edges:
    - {from: in, to: map}
    - {from: map, to: sink}
"""


@dataclass(frozen=True, slots=True)
class Shares:
    """Shares of one core that a pipeline takes, in all and by process."""

    total: float
    driver: float
    jvm: float
    workers: float
    nats: float


def first_message(folder: Path) -> float:
    """Seconds from the start of the command to the first message in the sink."""
    began = time.monotonic()
    with _marked(folder) as (_, arrived):
        wait_until(arrived.exists, every=0.005)
        return time.monotonic() - began


def idle(folder: Path, seconds: float) -> Shares:
    """Measures the cost of three vertices that have nothing to do."""
    with _marked(folder) as (process, arrived):
        wait_until(arrived.exists)
        time.sleep(_SETTLED)
        return used_in(process, seconds)


def used_in(process: psutil.Process, seconds: float) -> Shares:
    """Measures for that many seconds what a run takes, with everything that it has started."""
    before, began = used_by(process), time.monotonic()
    time.sleep(seconds)
    after, elapsed = used_by(process), time.monotonic() - began
    shares = {who: (after[who] - before[who]) / elapsed for who in before}
    return Shares(sum(shares.values()), **shares)


def used_by(process: psutil.Process) -> dict[str, float]:
    """Seconds of CPU so far, of a run and everything that it has started."""
    used = {"driver": cpu_seconds([process]), "jvm": 0.0, "workers": 0.0, "nats": 0.0}
    for child in process.children(recursive=True):
        with suppress(psutil.NoSuchProcess):  # it has ended meanwhile
            kind = {"java": "jvm", "nats-server": "nats"}.get(child.name(), "workers")
            used[kind] += cpu_seconds([child])
    return used


def memory_of(process: psutil.Process) -> float:
    """The megabytes of a run and everything that it has started (PSS: shared pages count once)."""
    found = 0
    for one in (process, *process.children(recursive=True)):
        with suppress(psutil.NoSuchProcess):
            found += one.memory_full_info().pss
    return found / 1e6


@contextmanager
def _marked(folder: Path) -> Iterator[tuple[psutil.Process, Path]]:
    arrived = folder / "arrived"
    arrived.unlink(missing_ok=True)
    with run_of(folder, _SPEC, {MARK: str(arrived)}) as process:
        yield process, arrived


@contextmanager
def run_of(
    folder: Path, spec: str, variables: Mapping[str, str], options: Sequence[str] = ()
) -> Iterator[psutil.Process]:
    """``ebbflow run`` of a spec, with more variables, for as long as the context lasts."""
    file = folder / "spec.yaml"
    file.write_text(spec, encoding="utf-8")
    command = [sys.executable, "-m", "ebbflow", "run", str(file), "--fresh"]
    command += ["--state", str(folder / "state"), *options]
    with open(folder / "run.log", "wb") as log:
        process = subprocess.Popen(command, env={**os.environ, **variables}, stdout=log, stderr=log)
    try:
        yield psutil.Process(process.pid)
    finally:
        process.terminate()
        process.wait(60)
