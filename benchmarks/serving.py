"""Requests that are answered over HTTP: Ebbflow's ``serving`` source next to FastAPI.

All contestants call the same small function. A separate program asks, first at a steady rate, then
faster and faster, then with many clients at once, and compares every answer with its request.
Ebbflow stores each request before it works on it, and each answer; the peers store nothing.
"""

from __future__ import annotations

import json
import math
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.request import urlopen

import psutil

from benchmarks import peers
from benchmarks.broker import cpu_seconds, wait_until
from benchmarks.latency import SHARES
from benchmarks.outside import NotOnce, free_port, outside
from benchmarks.start import run_of
from benchmarks.workers import environment

PIPELINE, MONO = "Ebbflow, three vertices", "Ebbflow MonoVertex"
DIRECT, NATS = "FastAPI, direct", "FastAPI, NATS request to a worker"
SIZE = 100
_SYNC, _ASK = "/v1/process/sync", "/ask"
_WARM = 3.0
_HELD_P99 = 100.0
_FIRST, _FASTEST, _STEPS = 400, 100_000, 3
_PIPELINE = """
apiVersion: numaflow.numaproj.io/v1alpha1
kind: ServingPipeline
metadata: {{name: asked}}
spec:
  serving: {{ports: {{http: {port}}}}}
  pipeline:
    vertices:
      - {{name: in, source: {{serving: {{}}}}}}
      - {{name: map, udf: {{python: "benchmarks.work:each"}}}}
      - {{name: out, sink: {{serve: {{}}}}}}
    edges:
      - {{from: in, to: map}}
      - {{from: map, to: out}}
"""
_MONO = """
apiVersion: numaflow.numaproj.io/v1alpha1
kind: MonoVertex
metadata: {{name: asked}}
spec:
  source: {{serving: {{ports: {{http: {port}}}}}}}
  udf: {{python: "benchmarks.work:each"}}
  sink: {{serve: {{}}}}
"""


@dataclass(frozen=True, slots=True)
class Served:
    """What one contestant did with requests; times are in milliseconds.

    ``cores`` is what all its processes took at the steady ``rate``. ``held`` is the highest rate a
    second at which all requests were answered and 99 of 100 within 100 ms; 0 if there is none.
    ``crowd_rate`` is how many ``clients`` at once got answered in a second.
    """

    name: str
    rate: int
    requests: int
    p50: float
    p95: float
    p99: float
    max: float
    cores: float
    held: int
    clients: int
    crowd_requests: int
    crowd_rate: float
    crowd_p99: float


@dataclass(frozen=True, slots=True)
class Demand:
    """The requests to send: a steady rate for some seconds, a crowd, and brief trials of rates."""

    rate: int
    seconds: float
    try_seconds: float
    clients: int
    requests: int


@dataclass(frozen=True, slots=True)
class Service:
    """What answers: its address, and all processes that work for it."""

    port: int
    path: str
    processes: Callable[[], list[psutil.Process]]


Start = Callable[[Path, int], AbstractContextManager[Service]]


def at(folder: Path, name: str, demand: Demand, seed: int) -> Served:
    """Makes one contestant answer; ``NotOnce`` if an answer is missing or another request's."""
    with CONTESTANTS[name](folder, seed) as service:
        asking = Asking(service, seed)
        used = cpu_seconds(service.processes())
        steady = asking.check("steady", demand.rate, demand.seconds, _WARM)
        # Only the seconds of requests count: the program that sends them takes a while to start.
        cores = (cpu_seconds(service.processes()) - used) / (_WARM + demand.seconds)
        held = _highest(asking, demand.try_seconds)
        crowd = asking.check("crowd", demand.clients, demand.requests)
    return Served(
        name,
        demand.rate,
        requests=round(demand.rate * demand.seconds),
        **{mark: steady[mark] for mark in SHARES},
        cores=cores,
        held=held,
        clients=demand.clients,
        crowd_requests=demand.requests,
        crowd_rate=crowd["rate"],
        crowd_p99=crowd["p99"],
    )


class Asking:
    """The program that asks one service."""

    def __init__(self, service: Service, seed: int) -> None:
        numbers = (SIZE, seed)
        self._place = (str(service.port), service.path, *map(str, numbers))

    def ask(self, how: str, *numbers: float) -> dict[str, Any]:
        """Returns the outcomes of the requests."""
        command = [sys.executable, "-m", "benchmarks.workers.asking", *self._place, how]
        command += [str(number) for number in numbers]
        ended = subprocess.run(command, stdout=subprocess.PIPE, check=True)
        report: dict[str, Any] = json.loads(ended.stdout)
        return report

    def check(self, how: str, *numbers: float) -> dict[str, Any]:
        """The same; ``NotOnce`` if not every request got its own answer."""
        report = self.ask(how, *numbers)
        if report["troubles"]:
            raise NotOnce(f"of {report['requests']:,} requests: {report['troubles']}")
        return report

    def holds(self, rate: int, seconds: float) -> bool:
        """Returns whether all requests are answered in time at this rate."""
        report = self.ask("steady", rate, seconds, seconds / 2)
        return not report["troubles"] and report["p99"] <= _HELD_P99


def _highest(asking: Asking, seconds: float) -> int:
    """Returns the highest rate that is held: doubled until it is not, then halved in between."""
    low, high = 0, _FIRST
    while high < _FASTEST and asking.holds(high, seconds):
        low, high = high, 2 * high
    for _ in range(_STEPS):
        middle = _between(low, high)
        if asking.holds(middle, seconds):
            low = middle
        else:
            high = middle
    return low


def _between(low: int, high: int) -> int:
    """Returns the rate in the middle with two digits: a rate is not more precise than that."""
    middle = (low + high) / 2
    unit: int = 10 ** max(0, math.floor(math.log10(middle)) - 1)
    return round(middle / unit) * unit


# --- contestants --------------------------------------------------------------------------------


def _ours(spec: str) -> Start:
    @contextmanager
    def start(folder: Path, seed: int) -> Iterator[Service]:
        """``ebbflow run``, with its JVM, workers and embedded server, all of which count."""
        port = free_port()
        with run_of(folder, spec.format(port=port), {}) as process:
            wait_until(lambda: _answers(f"http://127.0.0.1:{port}/ready"))
            yield Service(port, _SYNC, lambda: [process, *process.children(recursive=True)])

    return start


def _answers(url: str) -> bool:
    try:
        urlopen(url).close()
    except (URLError, OSError):
        return False
    return True


@contextmanager
def _direct(folder: Path, seed: int) -> Iterator[Service]:
    """FastAPI, which calls the function in its endpoint."""
    with _fastapi("direct") as (port, process):
        yield Service(port, _ASK, lambda: [process])


@contextmanager
def _behind_nats(folder: Path, seed: int) -> Iterator[Service]:
    """FastAPI, a worker and a NATS server between them."""
    with ExitStack() as stack:
        server = stack.enter_context(outside(seed))
        worker = stack.enter_context(peers.started(server, "answering", ["worker"]))
        variables = environment(server.link.server)
        port, process = stack.enter_context(_fastapi("nats", variables))
        yield Service(port, _ASK, lambda: [process, worker, server.process])


@contextmanager
def _fastapi(
    kind: str, variables: dict[str, str] | None = None
) -> Iterator[tuple[int, psutil.Process]]:
    port = free_port()
    command = [sys.executable, "-m", "benchmarks.workers.answering", str(port), kind]
    with peers.process_of(command, variables) as process:
        wait_until(lambda: _answers(f"http://127.0.0.1:{port}/openapi.json"))
        yield port, process


CONTESTANTS: dict[str, Start] = {
    PIPELINE: _ours(_PIPELINE),
    MONO: _ours(_MONO),
    DIRECT: _direct,
    NATS: _behind_nats,
}
