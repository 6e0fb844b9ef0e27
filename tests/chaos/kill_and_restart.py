"""Kill a pipeline's whole process tree with -9 at random moments, restart it, and count.

Every number that the source made must be in the sink's journal or among the dead letters. Numbers
that are there twice are allowed, counted and reported. The seed of the moments is printed.

    python -m tests.chaos.kill_and_restart --kills 20 --messages 50000 [--form mono] [--seed N]
"""

from __future__ import annotations

import argparse
import os
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil

from ebbflow.nats.locate import open_link, start_embedded
from tests.chaos.tally import FORMS, Tally, count, write_pipeline, written

# One kill in four comes while things are being started, the others while messages flow.
WHILE_STARTING = 0.25
STARTING, FLOWING = (0.5, 6.0), (0.0, 5.0)


class Chaos:
    """One pipeline in a folder of its own, killed and restarted."""

    def __init__(self, folder: Path, messages: int, rate: int, seed: int, form: str) -> None:
        self._folder = folder
        self._messages = messages
        self._random = random.Random(seed)
        self._spec = write_pipeline(folder, form, messages, rate)

    def run(self, kills: int) -> Tally:
        """Kill so many times, then let it come to its end, and count."""
        done = 0
        while done < kills and not self._run_and_kill():
            done += 1
        self._start().wait(600)
        with start_embedded(self._folder / ".ebbflow") as server, open_link(server) as link:
            return count(self._folder, self._messages, done, link)

    def _start(self) -> subprocess.Popen[bytes]:
        log = open(self._folder / "run.log", "ab")  # noqa: SIM115
        return subprocess.Popen(
            [sys.executable, "-m", "ebbflow", "run", str(self._spec), "--drain"],
            cwd=self._folder,
            env=os.environ | {"CHAOS_JOURNAL": str(self._folder / "journal")},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
        )

    def _run_and_kill(self) -> bool:
        """Whether the run came to its end before the moment to kill it."""
        began = time.monotonic()
        before = written(self._folder)
        process = self._start()
        starting = self._random.random() < WHILE_STARTING
        moment = self._random.uniform(*(STARTING if starting else FLOWING))
        while not starting and written(self._folder) == before and process.poll() is None:
            time.sleep(0.02)
        try:
            process.wait(moment)
            return True
        except subprocess.TimeoutExpired:
            killed = kill_tree(process.pid)
            print(f"killed {killed} processes after {time.monotonic() - began:.1f} s", flush=True)
            process.wait()
            return False


def kill_tree(pid: int) -> int:
    """Kill a process and all that it started, at once; how many there were."""
    root = psutil.Process(pid)
    tree = [root, *root.children(recursive=True)]
    for process in tree:
        try:
            process.kill()
        except psutil.NoSuchProcess:
            continue
    psutil.wait_procs(tree, timeout=20)
    return len(tree)


def main() -> None:
    """Run it as a command; exit 1 when anything was lost."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--messages", type=int, default=50_000)
    parser.add_argument("--rate", type=int, default=800)
    parser.add_argument("--form", choices=FORMS, default="pipeline")
    parser.add_argument("--seed", type=int, default=int(time.time()))
    arguments = parser.parse_args()
    print(f"seed {arguments.seed}", flush=True)
    with tempfile.TemporaryDirectory(prefix="ebbflow-chaos-") as folder:
        options = (arguments.messages, arguments.rate, arguments.seed, arguments.form)
        tally = Chaos(Path(folder), *options).run(arguments.kills)
    print(tally)
    sys.exit(1 if tally.lost else 0)


if __name__ == "__main__":
    main()
