"""Kill a random process of a pipeline that writes to Postgres every few seconds, and count rows.

The table has no unique index, so that a repeated write shows as a second row. Every number must be
a row exactly once, or be among the dead letters exactly once if the table rejects it. The server
crashes ``--crashes`` times in between. The driver, the JVM, the embedded NATS server and Python
processes of any kind are killed. A run that has ended is restarted. The seed is printed.

    python -m tests.chaos.postgres_kill --messages 500000 [--every 5] [--crashes 2] [--seed N]
"""

from __future__ import annotations

import argparse
import contextlib
import json
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import psutil

from ebbflow.deadletters import DeadLetters
from ebbflow.nats.locate import open_link, start_embedded
from tests.chaos.kill_and_restart import kill_tree
from tests.chaos.tally import PIPELINE
from tests.connectors.postgres.server import Postgres
from tests.processes import family_of

BAD = 1_000
"""One number in a thousand breaks a check of the table, as ``pipeline/rows.py`` makes it."""

PATIENCE = 1_800.0


@dataclass(frozen=True)
class Tally:
    """The counts of a run."""

    messages: int
    kills: Counter[str]
    crashes: int
    rows: Counter[int]
    dead: Counter[int]
    seconds: float

    @property
    def wrong(self) -> list[str]:
        """Everything that is not as expected."""
        bad = set(range(0, self.messages, BAD))
        good = set(range(self.messages)) - bad
        found = {
            "numbers have no row": good - self.rows.keys(),
            "numbers have several rows": {n for n, times in self.rows.items() if times > 1},
            "rows should not be there": self.rows.keys() - good,
            "bad numbers have no dead letter": bad - self.dead.keys(),
            "numbers have several dead letters": {n for n, t in self.dead.items() if t > 1},
            "dead letters should not be there": self.dead.keys() - bad,
        }
        return [f"{len(ns)} {what}: {sorted(ns)[:5]}" for what, ns in found.items() if ns]

    def __str__(self) -> str:
        killed = ", ".join(f"{name} {times}" for name, times in sorted(self.kills.items()))
        return (
            f"{self.messages} messages, {self.kills.total()} kills ({killed}), {self.crashes} "
            f"crashes of Postgres, {self.seconds:.0f} s: {self.rows.total()} rows of "
            f"{len(self.rows)} numbers, {self.dead.total()} dead letters of {len(self.dead)}"
            + "".join(f"\nwrong: {what}" for what in self.wrong)
        )


class PostgresChaos:
    """A table, and a pipeline in its own folder that is hit until everything has arrived."""

    def __init__(
        self, folder: Path, postgres: Postgres, messages: int, every: float, seed: int
    ) -> None:
        self._folder = folder
        self._postgres = postgres
        self._messages = messages
        self._every = every
        self._random = random.Random(seed)
        self._table = postgres.table("id bigint NOT NULL, amount bigint CHECK (amount >= 0)")
        self._kills: Counter[str] = Counter()
        self._process: subprocess.Popen[bytes] | None = None
        text = (PIPELINE / "rows.yaml").read_text(encoding="utf-8")
        text = text.replace("postgresql://shop@127.0.0.1:5432/postgres", postgres.url)
        text = text.replace("table: landed", f"table: {self._table}")
        text = text.replace("messages: 500000", f"messages: {messages}")
        (folder / "rows.yaml").write_text(text, encoding="utf-8")
        code = (PIPELINE / "rows.py").read_text(encoding="utf-8")
        (folder / "rows.py").write_text(code, encoding="utf-8")

    def run(self, crashes: int) -> Tally:
        """Kill and crash until the run has finished, and count."""
        began = time.monotonic()
        moments = [self._messages * n // (crashes + 1) for n in range(1, crashes + 1)]
        try:
            while self._runs():
                if moments and self._arrived() > moments[0]:
                    del moments[0]
                    self._postgres.restart()
                    print("Postgres crashed and was started again", flush=True)
                assert time.monotonic() - began < PATIENCE, self._log()[-3_000:]
        finally:
            if self._process is not None and self._process.poll() is None:
                kill_tree(self._process.pid)
        return self._count(crashes - len(moments), time.monotonic() - began)

    def _runs(self) -> bool:
        """Hits the run once, after a while; returns whether it is not finished yet."""
        if self._process is None or self._process.poll() is not None:
            self._process = self._start()
        try:
            code = self._process.wait(self._every)
        except subprocess.TimeoutExpired:
            self._kill_one(self._process)
            return True
        return code != 0

    def _start(self) -> subprocess.Popen[bytes]:
        with open(self._folder / "run.log", "ab") as log:
            return subprocess.Popen(
                [sys.executable, "-m", "ebbflow", "run", "rows.yaml", "--drain"],
                cwd=self._folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    def _kill_one(self, driver: subprocess.Popen[bytes]) -> None:
        # Ordered by process id, so that a seed is as reproducible as possible.
        family = sorted([psutil.Process(driver.pid), *family_of(driver.pid)], key=lambda p: p.pid)
        victim = self._random.choice(family)
        with contextlib.suppress(psutil.NoSuchProcess):
            name = "driver" if victim.pid == driver.pid else victim.name()
            victim.kill()
            self._kills[name] += 1
            if victim.pid == driver.pid:
                driver.wait()

    def _arrived(self) -> int:
        return self._postgres.ask(f"SELECT count(*) FROM {self._table}")[0][0]

    def _log(self) -> str:
        return (self._folder / "run.log").read_text()

    def _count(self, crashes: int, seconds: float) -> Tally:
        rows = Counter(n for (n,) in self._postgres.ask(f"SELECT id FROM {self._table}"))
        with start_embedded(self._folder / ".ebbflow") as server, open_link(server) as link:
            letters = DeadLetters(link, "rows").list()
            dead = Counter(json.loads(stored.letter.value)["id"] for stored in letters)
        return Tally(self._messages, self._kills, crashes, rows, dead, seconds)


def main() -> None:
    """Run it as a command; exit 1 when a row or a dead letter is not there exactly once."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--messages", type=int, default=500_000)
    parser.add_argument("--every", type=float, default=5.0, help="seconds between two kills")
    parser.add_argument("--crashes", type=int, default=2, help="crashes of Postgres")
    parser.add_argument("--seed", type=int, default=int(time.time()))
    arguments = parser.parse_args()
    print(f"seed {arguments.seed}", flush=True)
    with tempfile.TemporaryDirectory(prefix="ebbflow-chaos-") as name:
        folder = Path(name)
        postgres = Postgres().start()
        options = (arguments.messages, arguments.every, arguments.seed)
        try:
            tally = PostgresChaos(folder, postgres, *options).run(arguments.crashes)
        finally:
            postgres.close()
    print(tally)
    sys.exit(1 if tally.wrong else 0)


if __name__ == "__main__":
    main()
