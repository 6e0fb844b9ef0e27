"""Stop the system that a pipeline needs under load, start it again, and count.

The system is a real PostgreSQL that the sink writes to, or that the source reads from, or a web
server that the sink posts to, each with user code as in the guides: connect in ``open()``, let
errors propagate. Every message must arrive, none may become a dead letter, and the pipeline must be
at full speed again soon after the system is back.

    python -m tests.chaos.outage [--role sink|source|api] [--seconds 120] [--rate 500]
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Protocol

import psycopg

from tests.connectors.spark.postgres import Postgres, running_postgres
from tests.waiting import let_time_pass, until

PIPELINE = Path(__file__).parent / "pipeline"
COMMAND = (sys.executable, "-m", "ebbflow", "run")
PATIENCE = 120.0
_WINDOW = 0.5


class System(Protocol):
    """The system that the pipeline needs."""

    def go_down(self) -> None:
        """Become unavailable at once."""

    def come_up(self) -> None:
        """Be available again when this returns."""

    def arrived(self) -> Counter[int]:
        """The numbers of the messages that have arrived; only while the system is available."""

    def count(self) -> int:
        """The number of arrived messages, duplicates included."""


class Database:
    """PostgreSQL with a table that the sink fills, or that the source empties."""

    def __init__(self, server: Postgres, role: str, messages: int) -> None:
        self._server = server
        self._ask("create table stored (number int)")
        self._ask("create table jobs (number int primary key, given bool default false)")
        if role == "source":
            self._ask(f"insert into jobs select n from generate_series(0, {messages - 1}) n")

    def go_down(self) -> None:
        self._server.stop()

    def come_up(self) -> None:
        self._server.serve()

    def arrived(self) -> Counter[int]:
        return Counter(number for (number,) in self._ask("select number from stored"))

    def count(self) -> int:
        return int(self._ask("select count(*) from stored")[0][0])

    def _ask(self, sql: str) -> list[Any]:
        with psycopg.connect(self._server.url, autocommit=True) as connection:
            cursor = connection.execute(sql)
            return cursor.fetchall() if cursor.description else []


class Api:
    """A web server that accepts numbers in POST requests."""

    def __init__(self) -> None:
        self._numbers: list[int] = []
        self._server = self._started(0)
        self.port = self._server.server_address[1]

    def _started(self, port: int) -> ThreadingHTTPServer:
        numbers = self._numbers

        class Posts(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                numbers.extend(json.loads(body))
                self.send_response(204)
                self.end_headers()

            def log_message(self, *_: object) -> None:
                pass

        server = ThreadingHTTPServer(("127.0.0.1", port), Posts)
        threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        return server

    def go_down(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def come_up(self) -> None:
        self._server = self._started(self.port)

    def arrived(self) -> Counter[int]:
        return Counter(self._numbers)

    def count(self) -> int:
        return len(self._numbers)


@dataclass(frozen=True)
class Tally:
    """The outcomes of the messages."""

    role: str
    messages: int
    down: float
    arrived: int
    duplicates: int
    dead: int
    restarts: int
    full_speed_after: float | None
    output: str

    def __str__(self) -> str:
        soon = "never" if self.full_speed_after is None else f"{self.full_speed_after:.1f} s"
        return (
            f"{self.role}: {self.messages} messages, down for {self.down:.0f} s: {self.arrived} "
            f"arrived, {self.duplicates} twice, {self.dead} dead letters, {self.restarts} "
            f"restarts; at full speed {soon} after it was up again"
        )


@contextmanager
def system_for(role: str, messages: int) -> Iterator[tuple[System, dict[str, str]]]:
    """The system, and the environment that user code needs to reach it."""
    if role == "api":
        api = Api()
        yield api, {"API": f"http://127.0.0.1:{api.port}/"}
        api.go_down()
        return
    with running_postgres() as server:
        yield Database(server, role, messages), {"DATABASE": server.url}


class Trial:
    """One pipeline and its system."""

    def __init__(self, role: str, seconds: float, rate: int) -> None:
        self._role = role
        self._seconds = seconds
        self._rate = rate
        self._messages = int(rate * (seconds + 6))
        self._samples: list[tuple[float, int]] = []

    def run(self) -> Tally:
        """Start, wait for messages to flow, stop the system, start it again, wait, count."""
        with (
            tempfile.TemporaryDirectory() as place,
            system_for(self._role, self._messages) as (system, known),
        ):
            folder, log = Path(place), Path(place, "log")
            process = self._started(folder, known)
            try:
                self._wait(process, lambda: system.count() > self._rate)
                system.go_down()
                let_time_pass(self._seconds)
                system.come_up()
                back = time.monotonic()
                self._wait(process, lambda: self._sample(system) >= self._messages)
                self._wait(process, lambda: "running again" in log.read_text())
            except AssertionError:
                print(log.read_text())
                raise
            finally:
                process.terminate()
                process.wait(60)
            return self._tally(system, back, folder, log.read_text())

    def _started(self, folder: Path, known: dict[str, str]) -> subprocess.Popen[str]:
        text = (PIPELINE / f"outage_{self._role}.yaml").read_text(encoding="utf-8")
        text = text.replace("rpu: 500", f"rpu: {self._rate}")
        text = text.replace("messages: 5000", f"messages: {self._messages}")
        (folder / "outage.yaml").write_text(text, encoding="utf-8")
        steps = (PIPELINE / "outage_steps.py").read_text(encoding="utf-8")
        (folder / "outage_steps.py").write_text(steps, encoding="utf-8")
        with open(folder / "log", "w", encoding="utf-8") as log:
            return subprocess.Popen(
                [*COMMAND, "outage.yaml", "--plain", "--summary", "summary.json"],
                cwd=folder,
                env=os.environ | known | {"RATE": str(self._rate)},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                text=True,
            )

    def _wait(self, process: subprocess.Popen[str], enough: Callable[[], bool]) -> None:
        until(enough, PATIENCE + self._seconds, process, every=0.05)

    def _sample(self, system: System) -> int:
        count = system.count()
        self._samples.append((time.monotonic(), count))
        return count

    def _full_speed_after(self, back: float) -> float | None:
        """Seconds from the return of the system until messages arrive at full rate."""
        for when, count in self._samples:
            later = next((c for t, c in self._samples if t >= when + _WINDOW), count)
            if later - count >= 0.9 * self._rate * _WINDOW or count >= self._messages:
                return when - back
        return None

    def _tally(self, system: System, back: float, folder: Path, output: str) -> Tally:
        numbers = system.arrived()
        summary = json.loads((folder / "summary.json").read_text(encoding="utf-8"))
        dead = sum(counts["dead_lettered"] for counts in summary["vertices"].values())
        duplicates = numbers.total() - len(numbers)
        return Tally(
            self._role,
            self._messages,
            self._seconds,
            len(numbers),
            duplicates,
            dead,
            output.count("restarting"),
            self._full_speed_after(back),
            output,
        )


def main() -> None:
    """Run it from the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--role", choices=("sink", "source", "api"), default="sink")
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--rate", type=int, default=500)
    options = parser.parse_args()
    tally = Trial(options.role, options.seconds, options.rate).run()
    print(tally.output)
    print(tally)
    fine = tally.arrived == tally.messages and tally.dead == 0
    sys.exit(0 if fine else 1)


if __name__ == "__main__":
    main()
