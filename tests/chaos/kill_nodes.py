"""Kill one node of a NATS cluster after another with -9 while a pipeline runs on it, and count.

At most one node is down at a time: the killed one is restarted, and the next is killed when the
cluster is healthy. Every number of the source must be in the sink's journal or among the dead
letters. Duplicates are allowed, counted and reported, and so is the longest time
in which nothing arrived. The seed of nodes and moments is printed.

    python -m tests.chaos.kill_nodes --messages 100000 --every 5 [--rate N] [--seed N]
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from tests.chaos.kill_and_restart import kill_tree
from tests.chaos.tally import Tally, count, write_pipeline, written
from tests.cluster.cluster import Cluster
from tests.waiting import until

DOWN = (0.5, 4.0)
LOOK_EVERY = 0.02


class Arrivals:
    """Watches the journal of the sink on its own thread."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch)
        self.longest_gap = 0.0

    def __enter__(self) -> Arrivals:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _watch(self) -> None:
        size, last = 0, None
        while not self._stop.wait(LOOK_EVERY):
            now, size_now = time.monotonic(), written(self._folder)
            if size_now != size:
                self.longest_gap = max(self.longest_gap, now - (last or now))
                size, last = size_now, now


class Chaos:
    """One pipeline on its own cluster, in one folder."""

    def __init__(self, folder: Path, messages: int, rate: int, seed: int) -> None:
        self._folder = folder
        self._messages = messages
        self._random = random.Random(seed)
        self._spec = write_pipeline(folder, "pipeline", messages, rate, replicas=3)
        self.kills = 0
        self.longest_gap = 0.0

    def run(self, every: float) -> Tally:
        """Run the pipeline to its end, and kill a node every ``every`` seconds meanwhile."""
        with Cluster(self._folder / "nodes").running() as cluster:
            with self._pipeline(cluster) as process, Arrivals(self._folder) as arrivals:
                until(lambda: written(self._folder) or process.poll() is not None, 300)
                while not self._ended(process, every):
                    self._kill_one(cluster, process)
            self.longest_gap = arrivals.longest_gap
            return count(self._folder, self._messages, self.kills, cluster.link)

    @contextlib.contextmanager
    def _pipeline(self, cluster: Cluster) -> Iterator[subprocess.Popen[bytes]]:
        journal = {"CHAOS_JOURNAL": str(self._folder / "journal")}
        with open(self._folder / "run.log", "wb") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "ebbflow", "run", str(self._spec), "--drain"],
                cwd=self._folder,
                env=os.environ | journal | {"EBBFLOW_NATS_URL": cluster.url},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        try:
            yield process
            if process.returncode:
                raise RuntimeError((self._folder / "run.log").read_text()[-2000:])
        finally:
            if process.poll() is None:
                kill_tree(process.pid)

    @staticmethod
    def _ended(process: subprocess.Popen[bytes], within: float) -> bool:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(within)
        return process.returncode is not None

    def _kill_one(self, cluster: Cluster, process: subprocess.Popen[bytes]) -> None:
        node = self._random.choice(cluster.all)
        cluster.kill(node)
        self.kills += 1
        print(f"killed {node.name}", end="", flush=True)
        began = time.monotonic()
        self._ended(process, self._random.uniform(*DOWN))
        node.start()
        cluster.wait_until_healthy()
        print(f", healthy again after {time.monotonic() - began:.1f} s", flush=True)


def main() -> None:
    """Run it as a command; exit 1 when anything was lost."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--messages", type=int, default=100_000)
    parser.add_argument("--every", type=float, default=5.0, help="seconds between two kills")
    parser.add_argument("--rate", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    arguments = parser.parse_args()
    print(f"seed {arguments.seed}", flush=True)
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="ebbflow-chaos-") as folder:
        chaos = Chaos(Path(folder), arguments.messages, arguments.rate, arguments.seed)
        tally = chaos.run(arguments.every)
    print(
        f"{tally}, longest gap {chaos.longest_gap:.1f} s, {time.monotonic() - began:.0f} s in all"
    )
    sys.exit(1 if tally.lost else 0)


if __name__ == "__main__":
    main()
