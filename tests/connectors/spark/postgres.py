"""A PostgreSQL server for tests, and its driver for Spark; without them, tests are skipped.

The server is the one that Debian's package ``postgresql`` brings. The driver is fetched by Ivy,
which comes with Spark, and kept; ``EBBFLOW_TEST_IVY_SETTINGS`` names a settings file for machines
that have a repository of their own.
"""

from __future__ import annotations

import os
import pwd
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyspark
import pytest

DRIVER = ("org.postgresql", "postgresql", "42.7.7")
_FETCH_WITHIN = 120
_missing: list[str] = []


class Postgres:
    """A server of its own in a folder, on the loopback interface."""

    def __init__(self, programs: Path, folder: Path) -> None:
        self._programs = programs
        self._folder = folder
        self.password = "hunter2"
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]

    def start(self) -> None:
        """Make the database and start serving it."""
        secret, data = self._folder / "password", self._folder / "data"
        secret.write_text(self.password)
        data.mkdir()
        for path in (self._folder, secret, data) if os.geteuid() == 0 else ():
            shutil.chown(path, "postgres")
        self._run("initdb", "-D", data, "-U", "test", "--pwfile", secret, "-A", "scram-sha-256")
        self.serve()

    def serve(self) -> None:
        """Start serving the database, at first or again."""
        data, log = self._folder / "data", self._folder / "log"
        options = f"-h 127.0.0.1 -p {self.port} -k '' -F"
        self._run("pg_ctl", "-D", data, "-l", log, "-w", "-o", options, "start")

    @property
    def url(self) -> str:
        """Where Python's clients connect to."""
        return f"postgresql://test:{self.password}@127.0.0.1:{self.port}/postgres"

    @property
    def driver(self) -> Path:
        """Its driver for Spark; the test is skipped where it is not available."""
        return find_driver()

    def stop(self) -> None:
        """Stop it immediately."""
        self._run("pg_ctl", "-D", self._folder / "data", "-m", "immediate", "stop")

    def ask(self, sql: str) -> list[str]:
        """The result of a statement, a line for each row."""
        address = f"postgresql://test@127.0.0.1:{self.port}/postgres"
        return self._run("psql", address, "-Atc", sql).splitlines()

    def _run(self, program: str, *arguments: object) -> str:
        # PostgreSQL refuses to be run by root.
        user: dict[str, Any] = {"user": "postgres"} if os.geteuid() == 0 else {}
        with tempfile.TemporaryFile("w+") as output:
            ended = subprocess.run(
                [self._programs / program, *map(str, arguments)],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                cwd="/",
                env={"PGPASSWORD": self.password, "LC_ALL": "C"},
                **user,
            )
            output.seek(0)
            text = output.read()
        assert ended.returncode == 0, text
        return text


@pytest.fixture(scope="module")
def postgres() -> Iterator[Postgres]:
    """A running server with nothing in it."""
    with running_postgres() as server:
        yield server


@contextmanager
def running_postgres() -> Iterator[Postgres]:
    """A server with nothing in it, for as long as the context lasts."""
    programs = _programs()
    with tempfile.TemporaryDirectory(prefix="ebbflow-postgres-") as folder:
        server = Postgres(programs, Path(folder))
        server.start()
        try:
            yield server
        finally:
            server.stop()


def _programs() -> Path:
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    if not found:
        _skip("there is no server; on Debian and Ubuntu: apt-get install postgresql")
    if os.geteuid() == 0 and "postgres" not in (entry.pw_name for entry in pwd.getpwall()):
        _skip("the server does not run as root, and there is no user postgres")
    return found[-1].parent


def find_driver() -> Path:
    """The driver's jar, fetched if this has not been done before."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "ebbflow-tests"
    jar = cache / f"{DRIVER[1]}-{DRIVER[2]}.jar"
    if not jar.exists():
        cache.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=cache, prefix="fetching-") as place:
            _fetch(Path(place))
            (Path(place) / jar.name).replace(jar)
    return jar


def _fetch(place: Path) -> None:
    (ivy,) = (Path(pyspark.__file__).parent / "jars").glob("ivy-*.jar")
    settings = os.environ.get("EBBFLOW_TEST_IVY_SETTINGS")
    command = [
        *("java", "-jar", str(ivy), "-warn", "-cache", str(place / "ivy")),
        *(("-settings", settings) if settings else ()),
        *("-dependency", *DRIVER, "-confs", "default", "-notransitive"),
        *("-retrieve", f"{place}/[artifact]-[revision].[ext]"),
    ]
    try:
        subprocess.run(command, capture_output=True, timeout=_FETCH_WITHIN, check=True)
    except (OSError, subprocess.SubprocessError) as error:
        _skip(f"its driver cannot be fetched: {type(error).__name__}")
    if not (place / f"{DRIVER[1]}-{DRIVER[2]}.jar").exists():
        _skip("its driver cannot be fetched")


def _skip(why: str) -> None:
    _missing.append(why)
    pytest.skip(f"no PostgreSQL: {why}")


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Repeat in the summary that nothing was tested against PostgreSQL."""
    if _missing:
        terminalreporter.section("PostgreSQL was NOT tested", sep="!", yellow=True, bold=True)
        terminalreporter.line(f"PostgreSQL cannot be used on this machine: {_missing[0]}")
