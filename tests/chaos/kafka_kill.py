"""Kill a pipeline that reads from Kafka with -9 at random points, and count.

Every record of the topic must be in the sink's journal, and no partition may have any lag at
the end. Some kills hit the driver alone, some all of its processes. Duplicate records
are allowed and counted. The seed is printed.

    python -m tests.chaos.kafka_kill --records 100000 --kills 2 [--seed N]
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.chaos.kill_and_restart import kill_tree
from tests.chaos.tally import PIPELINE, written
from tests.waiting import until

if TYPE_CHECKING:
    from tests.connectors.kafka.broker import Broker

GROUP = "records-in"
PARTITIONS = 6


@dataclass(frozen=True)
class Tally:
    """The counts of a run: what arrived, how often, and what is left."""

    records: int
    kills: int
    arrived: int
    duplicates: int
    nacked: int
    lag: dict[int, int]
    seconds: float

    @property
    def lost(self) -> int:
        return self.records - self.arrived

    def __str__(self) -> str:
        return (
            f"{self.records} records, {self.kills} kills, {self.nacked} nacks: {self.arrived} "
            f"arrived, {self.duplicates} duplicates, {self.lost} lost, lag "
            f"{sum(self.lag.values())} in {len(self.lag)} partitions, {self.seconds:.0f} s"
        )


class KafkaChaos:
    """A topic, and a pipeline in its own folder that is killed and restarted."""

    spec = "records.yaml"
    placeholder = "127.0.0.1:9092"
    partitions = PARTITIONS

    def __init__(self, folder: Path, broker: Any, records: int, seed: int) -> None:
        self._folder = folder
        self._broker = broker
        self._records = records
        self._random = random.Random(seed)
        self._topic = broker.topic(self.partitions)
        broker.fill(self._topic, (b"%d" % number for number in range(records)))
        self._size = sum(len(f"{number}\n") for number in range(records))
        text = (PIPELINE / self.spec).read_text(encoding="utf-8")
        text = text.replace(self.placeholder, broker.address)
        text = text.replace("topic: numbers", f"topic: {self._topic}")
        (folder / "records.yaml").write_text(text, encoding="utf-8")
        code = (PIPELINE / "records.py").read_text(encoding="utf-8")
        (folder / "records.py").write_text(code, encoding="utf-8")

    def run(self, kills: int) -> Tally:
        """Kill that many times, each time later in the run, then let the run finish."""
        began = time.monotonic()
        points = sorted(self._random.uniform(0.02, 0.9) for _ in range(kills))
        done = sum(self._run_and_kill(point) for point in points)
        assert self._start().wait(600) == 0, (self._folder / "run.log").read_text()[-3_000:]
        return self._count(done, time.monotonic() - began)

    def _start(self) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "ebbflow", "run", "records.yaml", "--drain"]
        with open(self._folder / "run.log", "ab") as log:
            return subprocess.Popen(
                [*command, "--summary", "summary.json"],
                cwd=self._folder,
                env=os.environ | {"CHAOS_JOURNAL": str(self._folder / "journal")},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    def _run_and_kill(self, point: float) -> bool:
        """Returns whether the run was killed before it finished."""
        process = self._start()
        until(
            lambda: written(self._folder) >= point * self._size or process.poll() is not None,
            600,
            every=0.01,
        )
        if process.poll() is not None:
            return False
        what = self._kill(process)
        print(f"killed {what} when {point:.0%} had arrived", flush=True)
        return True

    def _kill(self, process: subprocess.Popen[bytes]) -> str:
        """Returns what was killed."""
        alone = self._random.random() < 0.5
        if alone:
            process.kill()
        else:
            kill_tree(process.pid)
        process.wait()
        return "the driver" if alone else "all processes"

    def _lag(self) -> dict[int, int]:
        broker: Broker = self._broker
        return broker.lag(GROUP, self._topic)

    def _count(self, kills: int, seconds: float) -> Tally:
        journal = (self._folder / "journal").iterdir()
        numbers = Counter(int(line) for path in journal for line in path.read_text().split())
        assert set(numbers) <= set(range(self._records))
        totals = json.loads((self._folder / "summary.json").read_text())["totals"]
        return Tally(
            records=self._records,
            kills=kills,
            arrived=len(numbers),
            duplicates=numbers.total() - len(numbers),
            nacked=totals["in"]["redelivered"],
            lag=self._lag(),
            seconds=seconds,
        )


def main() -> None:
    """Run it as a command; exit 1 when anything was lost or is left."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--records", type=int, default=100_000)
    parser.add_argument("--kills", type=int, default=2)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    arguments = parser.parse_args()
    print(f"seed {arguments.seed}", flush=True)
    from tests.connectors.kafka.broker import Broker

    with tempfile.TemporaryDirectory(prefix="ebbflow-chaos-") as name:
        folder = Path(name)
        broker = Broker(folder / "kafka").start()
        try:
            tally = KafkaChaos(folder, broker, arguments.records, arguments.seed).run(
                arguments.kills
            )
        finally:
            broker.stop()
    print(tally)
    sys.exit(1 if tally.lost or any(tally.lag.values()) else 0)


if __name__ == "__main__":
    main()
