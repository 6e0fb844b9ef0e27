"""HTTP: posts to a source next to a bare endpoint on the same web server, and a sink that posts."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from urllib.request import urlopen

import psutil

from benchmarks import contest, peers
from benchmarks.broker import Ground, cpu_seconds, spark_processes, wait_until
from benchmarks.contest import Contestant, Round, Watched
from benchmarks.ours import counts, lay_out, planned, running
from benchmarks.outside import free_port
from benchmarks.sinks import Prepare, Settings, SinkAlone
from ebbflow import MonoVertex
from ebbflow.connectors import Blackhole, Http, HttpBatch, Ports

HTTP, BARE, UVICORN = "http", "bare endpoint, same server", "bare endpoint, uvicorn"
SINGLE = "single posts"
_HOST, _PATH = "127.0.0.1", "/vertices/bench"
_CONNECTIONS = 64
_LINES = 1_000


@dataclass(frozen=True, slots=True)
class Listener:
    """What accepts posts: its address, and the processes that work for it."""

    port: int
    path: str
    processes: list[psutil.Process]


@dataclass
class Posts:
    """Posts of that many lines each, on 64 connections."""

    name: str
    lines: int
    pace: int
    job = contest.SOURCE

    @property
    def mode(self) -> str:
        """The number of messages in a post."""
        return SINGLE if self.lines == 1 else f"posts of {self.lines:,}"

    def run(self, ground: Ground, messages: int, size: int) -> Round:
        """By the client's own times."""
        posts = max(1, messages // self.lines)
        with self.listening(ground, posts * self.lines) as listener:
            before = cpu_seconds(listener.processes)
            report = self._post(listener, posts, size, ground.seed)
            used = cpu_seconds(listener.processes) - before
        found = Watched(report["seconds"], used, latency=report["p50"])
        return found.round(posts * self.lines)

    def listening(self, ground: Ground, messages: int) -> AbstractContextManager[Listener]:
        """Listens for as long as the context lasts, then checks that all messages have arrived."""
        raise NotImplementedError

    def _post(self, listener: Listener, posts: int, size: int, seed: int) -> dict[str, float]:
        numbers = (_CONNECTIONS, posts, self.lines, size, seed)
        place = (_HOST, str(listener.port), listener.path)
        command = [sys.executable, "-m", "benchmarks.workers.posting", *place, *map(str, numbers)]
        ended = subprocess.run(command, stdout=subprocess.PIPE, check=True)
        report: dict[str, float] = json.loads(ended.stdout)
        return report


class OwnPosts(Posts):
    """Posts to the HTTP source of a MonoVertex."""

    @contextmanager
    def listening(self, ground: Ground, messages: int) -> Iterator[Listener]:
        """The source is on the driver, so its CPU counts."""
        port = free_port()
        source = Http(ports=Ports(http=port))
        plans = planned(ground, MonoVertex("bench").source(source).sink(Blackhole()))
        lay_out(ground, plans)
        with running(ground, plans):
            # One post before the others, so that the start of the vertex does not count.
            urlopen(f"http://{_HOST}:{port}{_PATH}", b"first").close()
            wait_until(lambda: counts(ground, "bench").done == 1)
            yield Listener(port, _PATH, [psutil.Process(), *spark_processes()])
            wait_until(lambda: counts(ground, "bench").done == 1 + messages)


class BarePosts(Posts):
    """Posts to an endpoint that answers at once and does nothing."""

    @contextmanager
    def listening(self, ground: Ground, messages: int) -> Iterator[Listener]:
        """The endpoint is a separate process."""
        with _endpoint("own" if self.name == BARE else "uvicorn") as (port, process):
            yield Listener(port, "/", [process])


@contextmanager
def _endpoint(kind: str) -> Iterator[tuple[int, psutil.Process]]:
    port = free_port()
    command = [sys.executable, "-m", "benchmarks.workers.endpoint", str(port), kind]
    with peers.process_of(command) as process:
        wait_until(lambda: _listens(port))
        yield port, process


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex((_HOST, port)) == 0


def sources() -> Iterator[Contestant]:
    """The HTTP source next to bare endpoints."""
    yield OwnPosts(HTTP, 1, 6_000)
    yield BarePosts(BARE, 1, 10_000)
    yield BarePosts(UVICORN, 1, 6_000)
    yield OwnPosts(HTTP, _LINES, 300_000)
    yield BarePosts(BARE, _LINES, 1_000_000)


def sinks() -> Iterator[Contestant]:
    """The HTTP sink, which posts to the bare endpoint."""
    yield SinkAlone(f"http, {SINGLE}", _to_endpoint(), 2_000)
    yield SinkAlone("http, 500 in a request", _to_endpoint(HttpBatch(size=500)), 100_000)


def _to_endpoint(batch: HttpBatch | None = None) -> Prepare:
    @contextmanager
    def prepare(ground: Ground, messages: int) -> Iterator[Settings]:
        with _endpoint("own") as (port, _):
            yield {"sink": Http(url=f"http://{_HOST}:{port}/", batch=batch)}

    return prepare
