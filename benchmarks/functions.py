"""Maps as separate functions, over Numaflow's gRPC protocol, next to the same in process.

Each passes messages on unchanged. Ebbflow's are hops between buffers, as in ``rates``; the function
is started next to the task. The Go function is the one that tests use. The peer is a plain client
on grpcio with the same Go function: no buffers, no outcomes, only requests.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import psutil

from benchmarks import contest
from benchmarks.broker import Ground, command_of, cpu_seconds, spark_processes, wait_until
from benchmarks.contest import Contestant, Round, Watched, watched
from benchmarks.ours import NAMES, counts, lay_out, planned, running
from benchmarks.peers import process_of
from benchmarks.work import MAPS
from ebbflow import Function, Pipeline
from ebbflow.connectors import Blackhole, Generator
from ebbflow.domain.code import Code

WIRE, IN_PROCESS, GRPCIO = "Ebbflow, gRPC", "Ebbflow, in process", "grpcio client"
GO, GO_BATCH = "Go", "Go, batch"
PYNUMAFLOW, OWN = "pynumaflow handler", "Ebbflow handler"
_ROOT = str(Path(__file__).parent.parent)


def contestants(left_out: list[str]) -> Iterator[Contestant]:
    """All contestants that are available; those that cannot be built go to ``left_out``."""
    go = _go(left_out)
    if go is not None:
        yield Remote(GO, (*go, "cat"), 90_000)
        yield Remote(GO_BATCH, (*go, "batch-cat"), 100_000)
    for kind, pace in (("sync", 4_000), ("async", 10_000), ("batch", 20_000)):
        command = (sys.executable, "-m", "benchmarks.workers.pynumaflow_cat", kind)
        yield Remote(f"pynumaflow server, {kind}", command, pace)
    yield InProcess(PYNUMAFLOW, _pynumaflow_handler, 300_000)
    yield InProcess(OWN, lambda: MAPS["unary"], 500_000)
    if go is not None:
        yield Loop((*go, "cat"), 9_000)


def _go(left_out: list[str]) -> tuple[str, ...] | None:
    from tests.numaflow.functions.building import NotBuilt, command

    try:
        return tuple(command("go"))
    except NotBuilt as error:
        left_out.append(f"functions in Go: {error}")
        return None


def _pynumaflow_handler() -> Callable[..., Any]:
    from benchmarks.workers.pynumaflow_cat import cat

    return cat


@contextmanager
def hop(ground: Ground, code: Code | Function, messages: int, size: int) -> Iterator[None]:
    """Runs the map between two buffers, planned as a run plans it; the first buffer is filled."""
    pipeline = Pipeline(NAMES.pipeline).source("in", Generator(messages=1))
    pipeline = pipeline.map("map", code).sink("out", Blackhole())
    plans = [plan for plan in planned(ground, pipeline) if plan.vertex == "map"]
    lay_out(ground, plans, "out")
    ground.load_frames(NAMES.buffer_subject("map", 0), messages, size)
    with running(ground, plans):
        yield


@dataclass
class Remote:
    """A function in a separate process, started by the task that calls it."""

    name: str
    command: tuple[str, ...]
    pace: int
    mode = WIRE
    job = contest.FUNCTIONS

    def run(self, ground: Ground, messages: int, size: int) -> Round:
        """By the server's own times; the function's share of a core is reported separately."""
        function = Function(self.command, working_dir=_ROOT)
        done = partial(_done, ground)
        with hop(ground, function, messages, size):
            wait_until(lambda: done() > 0)
            process = self._process()
            others = [one for one in spark_processes() if one != process]
            found = watched(lambda: others, done, messages, server=process)
        return found.round(messages, ground.span(NAMES.buffer("out", 0)))

    def _process(self) -> psutil.Process:
        """The function's own process, not the one that watches it."""
        command = list(self.command)
        return next(one for one in spark_processes() if command_of(one) == command)


@dataclass
class InProcess:
    """A handler in the task's own process, called message by message."""

    name: str
    handler: Callable[[], Callable[..., Any]]
    pace: int
    mode = IN_PROCESS
    job = contest.FUNCTIONS

    def run(self, ground: Ground, messages: int, size: int) -> Round:
        """By the server's own times of the first and the last output."""
        with hop(ground, self.handler(), messages, size):
            found = watched(spark_processes, partial(_done, ground), messages)
        return found.round(messages, ground.span(NAMES.buffer("out", 0)))


def _done(ground: Ground) -> int:
    return counts(ground, "map").done


@dataclass
class Loop:
    """The peer: grpcio's client in a separate process, and the function next to it."""

    command: tuple[str, ...]
    pace: int
    name = GO
    mode = GRPCIO
    job = contest.FUNCTIONS

    def run(self, ground: Ground, messages: int, size: int) -> Round:
        """By the client's own clock."""
        with (
            tempfile.TemporaryDirectory(prefix="ebbflow-") as folder,
            process_of((*self.command, folder)) as function,
        ):
            wait_until(lambda: (Path(folder) / "map.sock").exists())
            arguments = (f"{folder}/map.sock", messages, size, ground.seed)
            return _ask(tuple(map(str, arguments)), function).round(messages)


def _ask(arguments: Sequence[str], function: psutil.Process) -> Watched:
    command = (sys.executable, "-m", "benchmarks.workers.grpcio_loop", *arguments)
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as client:
        assert client.stdout is not None
        client.stdout.readline()
        began, used = time.monotonic(), cpu_seconds([function])
        report = json.loads(client.stdout.readline())
        share = (cpu_seconds([function]) - used) / (time.monotonic() - began)
    return Watched(report["seconds"], report["cpu"], share)
