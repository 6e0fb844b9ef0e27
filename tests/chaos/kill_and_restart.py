"""Kill or freeze processes of a pipeline at random moments, restart it, and count.

``--hit tree`` kills the whole process tree with -9 each time. ``--hit any`` picks a victim each
time: the driver, the JVM, a Python worker, the daemon that forks workers, the NATS server or all of
them; and either kills it with -9 or freezes it for seconds. The other processes must recover.

Every number that the source made must be in the sink's journal or among the dead letters. Numbers
that are in the journal twice are allowed, counted and reported, because a call of user code can be
repeated. A dead letter twice is not allowed. The forms ``storm`` and ``chain`` have user code that
decides the same on every replay, so that the totals must be exact as well. ``storm`` has buffers
between its vertices. The five vertices of ``chain`` share tasks, and before each start its spec is
changed, so that other vertices may run inline. The seed is printed.

    python -m tests.chaos.kill_and_restart --kills 20 --messages 50000 [--form mono] [--seed N]
    python -m tests.chaos.kill_and_restart --kills 20 --messages 100000 --form storm --hit any
    python -m tests.chaos.kill_and_restart --kills 20 --messages 100000 --form chain --hit any
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import psutil

from ebbflow.nats.locate import open_link, start_embedded
from tests.chaos.tally import FORMS, Tally, allow_inline, count, write_pipeline, written
from tests.processes import family_of
from tests.waiting import let_time_pass, until

# One hit in four happens during the start, the others while messages flow.
WHILE_STARTING = 0.25
STARTING, FLOWING = (0.5, 6.0), (0.0, 5.0)
VICTIMS = ("tree", "driver", "jvm", "worker", "daemon", "nats")
# One hit in four on a single process freezes it, for this many seconds.
FREEZES, FROZEN = 0.25, (1.0, 12.0)


class Chaos:
    """One pipeline in its own folder, hit and restarted."""

    def __init__(
        self, folder: Path, messages: int, rate: int, seed: int, form: str, hit: str = "tree"
    ) -> None:
        self._folder = folder
        self._messages = messages
        self._random = random.Random(seed)
        self._victims = VICTIMS if hit == "any" else (hit,)
        self._spec = write_pipeline(folder, form, messages, rate)
        self._exact = form in ("storm", "chain")
        self._changes = form == "chain"
        self._process: subprocess.Popen[bytes] | None = None
        self.hits: Counter[str] = Counter()

    def run(self, hits: int) -> Tally:
        """Hit it this many times, then let the run finish, and count."""
        done = 0
        while done < hits and not self._run_and_hit():
            done += 1
        self._started().wait(600)
        with start_embedded(self._folder / ".ebbflow") as server, open_link(server) as link:
            return count(self._folder, self._messages, done, link, exact=self._exact)

    def _started(self) -> subprocess.Popen[bytes]:
        """Return the run, restarted if the last hit has ended it or it has failed."""
        if self._process is None or self._process.poll() is not None:
            self._process = self._start()
        return self._process

    def _start(self) -> subprocess.Popen[bytes]:
        if self._changes:
            allow_inline(self._spec, self._random)
        with open(self._folder / "run.log", "ab") as log:
            return subprocess.Popen(
                [sys.executable, "-m", "ebbflow", "run", str(self._spec), "--drain"],
                cwd=self._folder,
                env=os.environ | {"CHAOS_JOURNAL": str(self._folder / "journal")},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    def _run_and_hit(self) -> bool:
        """Return whether the run finished before the moment to hit it."""
        began = time.monotonic()
        before = written(self._folder)
        process = self._started()
        starting = self._random.random() < WHILE_STARTING
        moment = self._random.uniform(*(STARTING if starting else FLOWING))
        if not starting:
            until(lambda: written(self._folder) != before or process.poll() is not None, 300)
        try:
            return process.wait(moment) == 0
        except subprocess.TimeoutExpired:
            what = self._hit(process)
            print(f"{what} after {time.monotonic() - began:.1f} s", flush=True)
            return False

    def _hit(self, process: subprocess.Popen[bytes]) -> str:
        """Hit one victim, or all; the driver replaces a victim that has not started yet."""
        victim = self._random.choice(self._victims)
        freezes, seconds = self._random.random() < FREEZES, self._random.uniform(*FROZEN)
        if victim == "tree":
            self.hits["killed tree"] += 1
            what = f"killed {kill_tree(process.pid)} processes"
            process.wait()
            return what
        target = self._random.choice(find(process.pid, victim) or [psutil.Process(process.pid)])
        what = f"{'froze' if freezes else 'killed'} {victim}"
        self.hits[what] += 1
        if freezes:
            freeze(target, seconds)
        else:
            target.kill()
            if target.pid == process.pid:  # its child processes must end by themselves
                process.wait()
        return what


def find(driver: int, victim: str) -> list[psutil.Process]:
    """Return the processes of this kind below the driver."""
    if victim == "driver":
        return [psutil.Process(driver)]
    below = psutil.Process(driver).children(recursive=True)
    return [process for process in below if _kind(process) == victim]


def _kind(process: psutil.Process) -> str:
    """Return the kind of a run's process: workers are forked by a daemon, which Spark starts."""
    try:
        name = process.name()
        if name in ("java", "nats-server"):
            return {"java": "jvm", "nats-server": "nats"}[name]
        words = process.cmdline()
        if "ebbflow.spark.daemon" not in words:
            return ""
        parent = process.parent()
        forked = parent is not None and "ebbflow.spark.daemon" in parent.cmdline()
        return "worker" if forked else "daemon"
    except psutil.Error:
        return ""


def freeze(process: psutil.Process, seconds: float) -> None:
    """Halt a process for a while, as swapping or a debugger does."""
    try:
        process.send_signal(signal.SIGSTOP)
        let_time_pass(seconds)
        process.send_signal(signal.SIGCONT)
    except psutil.NoSuchProcess:
        return


def kill_tree(pid: int) -> int:
    """Kill a process and its descendants at once; return how many there were."""
    tree = [psutil.Process(pid), *family_of(pid)]
    for process in tree:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    psutil.wait_procs(tree, timeout=20)
    return len(tree)


def main() -> None:
    """Run it as a command; exit 1 when anything was lost or counted wrong."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--messages", type=int, default=50_000)
    parser.add_argument("--rate", type=int, default=800)
    parser.add_argument("--form", choices=FORMS, default="pipeline")
    parser.add_argument("--hit", choices=("any", *VICTIMS), default="tree")
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--keep", type=Path, help="a folder to work in and leave as it is")
    arguments = parser.parse_args()
    print(f"seed {arguments.seed}", flush=True)
    with tempfile.TemporaryDirectory(prefix="ebbflow-chaos-") as temporary:
        folder = arguments.keep or Path(temporary)
        folder.mkdir(exist_ok=True)
        options = (arguments.messages, arguments.rate, arguments.seed, arguments.form)
        chaos = Chaos(folder, *options, arguments.hit)
        tally = chaos.run(arguments.kills)
    print(", ".join(f"{what} {times}" for what, times in sorted(chaos.hits.items())))
    print(tally)
    sys.exit(1 if tally.lost or tally.wrong else 0)


if __name__ == "__main__":
    main()
