"""Postgres on a real server: the sink next to a bare COPY loop, Bento's ``sql_insert`` and Spark's
JDBC writer; the queue next to a bare loop.

The server is the one that tests use, in a separate folder, with syncing switched off for all
contestants. Every run has its own table, and ends with a check of all that was written.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import IO, TYPE_CHECKING, Literal

import psutil

from benchmarks import bento, contest, peers
from benchmarks.broker import Ground, cpu_seconds
from benchmarks.contest import Contestant, Round, Watched, watched
from benchmarks.ours import EBBFLOW, NAMES, lay_out, planned, worked
from benchmarks.outside import NotOnce
from benchmarks.sources import Given, Pulled
from benchmarks.work import objects
from ebbflow import Pipeline, connectors

if TYPE_CHECKING:
    from tests.connectors.postgres.server import Postgres

WRITES, READS = "rows into a table", "rows of a queue"
LOOP = "bare psycopg loop"
BENTO, JDBC = f"{bento.NAME} {bento.VERSION}, sql_insert", "Spark's JDBC writer"
_ROW = "id bigint PRIMARY KEY, name text, amount numeric"
_JOB = "id bigint PRIMARY KEY, value bytea, due_at timestamptz"
_EVERY = 0.05


class NoPostgres(Exception):
    """Why there is no Postgres on this machine."""


@contextmanager
def postgres_server() -> Iterator[Postgres]:
    """Yields a server, for as long as the context lasts; ``NoPostgres`` if none is available."""
    try:
        from tests.connectors.postgres import server
    except ImportError as error:
        raise NoPostgres(str(error)) from error
    try:
        running = server.Postgres().start()
    except server.NoPostgres as error:
        raise NoPostgres(str(error)) from error
    try:
        yield running
    finally:
        running.close()


def _count(postgres: Postgres, table: str) -> int:
    found: int = postgres.ask(f"SELECT count(*) FROM {table}")[0][0]
    return found


def _check(postgres: Postgres, table: str, messages: int) -> None:
    if (stored := _count(postgres, table)) != messages:
        raise NotOnce(f"{stored:,} rows for {messages:,} messages")


def _fill(postgres: Postgres, messages: int, size: int) -> str:
    """Returns a queue with that many rows."""
    table: str = postgres.table(_JOB, "jobs")
    postgres.ask(
        f"INSERT INTO {table} SELECT n, convert_to(repeat(md5(n::text), {size // 32 + 1}), 'UTF8'),"
        f" now() FROM generate_series(1, {messages}) AS n"
    )
    postgres.ask(f"CREATE INDEX ON {table} (due_at NULLS FIRST)")
    return table


@dataclass
class Sink:
    """A sink vertex behind a buffer that was filled in advance, which writes to a table."""

    postgres: Postgres
    on_conflict: Literal["fail", "ignore", "update"]
    pace: int
    name = EBBFLOW
    job = contest.POSTGRES

    @property
    def mode(self) -> str:
        """What it does with existing rows."""
        return WRITES if self.on_conflict == "fail" else f"{WRITES}, {self.on_conflict}"

    def run(self, ground: Ground, messages: int, size: int) -> Round:
        """By the vertex's own count."""
        table = self.postgres.table(_ROW)
        sink = connectors.Postgres(url=self.postgres.url, table=table, on_conflict=self.on_conflict)
        pipeline = Pipeline("bench").source("in", connectors.Generator(messages=1))
        plans = [replace(planned(ground, pipeline.sink("sink", sink))[-1], feeders=())]
        lay_out(ground, plans)
        ground.load_objects(NAMES.buffer_subject("sink", 0), messages, size)
        found = worked(ground, plans, messages)
        _check(self.postgres, table, messages)
        return found.round(messages)


@dataclass
class Loop:
    """A bare loop that writes to a table, or empties one."""

    postgres: Postgres
    work: str
    pace: int
    name = LOOP
    job = contest.POSTGRES

    @property
    def mode(self) -> str:
        """Which of the two."""
        return WRITES if self.work == "copy" else READS

    def run(self, ground: Ground, messages: int, size: int) -> Round:
        """By the number of rows in the table."""
        postgres, writes = self.postgres, self.work == "copy"
        table = postgres.table(_ROW) if writes else _fill(postgres, messages, size)
        numbers = map(str, (messages, size, ground.seed))
        words = ["-m", "benchmarks.workers.postgres_loop", postgres.url, table, *numbers, self.work]
        left = 0 if writes else messages

        def done() -> int:
            return abs(left - _count(postgres, table))

        with peers.process_of([sys.executable, *words]) as process:
            found = watched(lambda: [process], done, messages, _EVERY)
        _check(postgres, table, messages - left)
        return found.round(messages)


@contextmanager
def _objects_file(messages: int, size: int, seed: int) -> Iterator[Path]:
    """Yields a file with an object on each line."""
    with tempfile.TemporaryDirectory(prefix="ebbflow-bench-") as folder:
        file = Path(folder) / "objects.jsonl"
        with file.open("wb") as lines:
            lines.writelines(one + b"\n" for one in objects(messages, size, seed))
        yield file


@dataclass
class BentoInsert:
    """Bento, which reads the objects from a file."""

    postgres: Postgres
    pace: int
    name = BENTO
    job = contest.POSTGRES
    mode = WRITES

    def run(self, ground: Ground, messages: int, size: int) -> Round:
        """By the number of rows in the table."""
        postgres, table = self.postgres, self.postgres.table(_ROW)
        sink = {
            "driver": "postgres",
            "dsn": f"{postgres.url}?sslmode=disable",
            "table": table,
            "columns": ["id", "name", "amount"],
            "args_mapping": "root = [this.id, this.name, this.amount]",
            "max_in_flight": 4,
            "batching": {"count": 5_000, "period": "100ms"},
        }
        with _objects_file(messages, size, ground.seed) as file:
            source = {"file": {"paths": [str(file)], "scanner": {"lines": {}}}}
            with bento.bento(source, {"sql_insert": sink}, "root = content()") as process:
                count = partial(_count, postgres, table)
                found = watched(lambda: [process], count, messages, _EVERY)
        _check(postgres, table, messages)
        return found.round(messages)


@dataclass
class JdbcWriter:
    """A Spark job of two tasks, which reads the objects from a file."""

    postgres: Postgres
    driver: Path
    pace: int
    name = JDBC
    job = contest.POSTGRES
    mode = WRITES

    def run(self, ground: Ground, messages: int, size: int) -> Round:
        """From the start of the job to its end, as its rows are there only when a task commits."""
        table, url = self.postgres.table(_ROW), self.postgres.url
        with _objects_file(messages, size, ground.seed) as file:
            address = "jdbc:postgresql://" + url.partition("@")[2]
            words = [address, table, "shop", str(self.driver), str(file)]
            found = _timed([sys.executable, "-m", "benchmarks.workers.spark_jdbc", *words])
        _check(self.postgres, table, messages)
        return found.round(messages)


def _timed(command: list[str]) -> Watched:
    """Runs a program from the line that says that it is ready to the one that says it is done."""
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        _await(process.stdout, b"ready\n")
        family = psutil.Process(process.pid)
        every = [family, *family.children(recursive=True)]
        began, used = time.monotonic(), cpu_seconds(every)
        process.stdin.write(b"go\n")
        process.stdin.flush()
        _await(process.stdout, b"done\n")
        return Watched(time.monotonic() - began, cpu_seconds(every) - used)


def _await(lines: IO[bytes], expected: bytes) -> None:
    if (line := lines.readline()) != expected:
        raise RuntimeError(f"the program printed {line!r} and not {expected!r}")


@dataclass
class Queue(Pulled):
    """A MonoVertex that reads a queue and forgets what it read."""

    mode = READS
    job = contest.POSTGRES


@contextmanager
def _source(postgres: Postgres, ground: Ground, messages: int, size: int) -> Iterator[Given]:
    table = _fill(postgres, messages, size)
    yield connectors.Postgres(url=postgres.url, table=table, value="value")


def _find_driver(left_out: list[str]) -> Path | None:
    import pytest

    from tests.connectors.spark.postgres import find_driver

    try:
        return find_driver()
    except pytest.skip.Exception as error:
        left_out.append(f"{JDBC}: {error}")
        return None


def contestants(postgres: Postgres, left_out: list[str]) -> Iterator[Contestant]:
    """All contestants that are available; why others are not goes to ``left_out``."""
    yield Sink(postgres, "fail", 150_000)
    yield Sink(postgres, "update", 100_000)
    yield Loop(postgres, "copy", 200_000)
    if bento.is_there(left_out):
        yield BentoInsert(postgres, 30_000)
    if (driver := _find_driver(left_out)) is not None:
        yield JdbcWriter(postgres, driver, 60_000)
    yield Queue(EBBFLOW, partial(_source, postgres), 90_000)
    yield Loop(postgres, "queue", 150_000)
