"""Kill a Spark executor and a NATS node with -9 at once, and measure the interruption.

The executor is the one that runs the sink, and the node leads the positions: nothing can be settled
without either. Every number must arrive. The tool prints the longest time in which none arrived,
what the run reported, and a timeline of Spark and NATS. ``--cores 3 3`` are two Workers, of which
one has room for all three tasks; with ``--cores 2 1`` there is no spare slot. With ``--inline`` the
vertices share one task, as is the default of a run.

    python -m tests.chaos.lose_executor --cores 3 3 [--times 3] [--only executor]
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import psutil

from ebbflow.engine.position import count_by_vertex
from ebbflow.nats.link import Link
from ebbflow.status.model import PipelineStatus
from ebbflow.status.stored import NOW
from ebbflow.streams.names import Names
from ebbflow.streams.positions import read_positions
from tests.chaos.kill_and_restart import kill_tree
from tests.chaos.tally import PIPELINE
from tests.cluster.cluster import Cluster
from tests.processes import command_of
from tests.standalone import SparkCluster
from tests.waiting import let_time_pass, until

NAMES = Names("lost")
EXECUTOR = "org.apache.spark.executor.CoarseGrainedExecutorBackend"
LOOK_EVERY = 0.05
_WORTH_REPORTING = {
    "run": re.compile(r"^(?!.*/s (read|written)=)"),
    "spark": re.compile(r"^\d\d:\d\d:\d\d\S* (WARN|ERROR) (?!.*BlockManager)"),
    "worker": re.compile(r"Asked to launch executor|Executor \S+ finished"),
    "n": re.compile(r"new (stream|metadata) leader"),
}


class Line(NamedTuple):
    """A line of a log, and when it was seen."""

    at: float
    origin: str
    text: str

    @property
    def is_worth_reporting(self) -> bool:
        kinds = (kind for name, kind in _WORTH_REPORTING.items() if self.origin.startswith(name))
        return any(kind.search(self.text) for kind in kinds)


class Logs:
    """Reads logs as they grow, on its own thread."""

    def __init__(self, **files: Path) -> None:
        self.lines: list[Line] = []
        self._files = files
        self._read = dict.fromkeys(files, 0)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch)

    def __enter__(self) -> Logs:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._stop.wait(LOOK_EVERY):
            for origin, file in self._files.items():
                with contextlib.suppress(FileNotFoundError):
                    self._look(origin, file)

    def _look(self, origin: str, file: Path) -> None:
        with open(file, encoding="utf-8", errors="replace") as log:
            log.seek(self._read[origin])
            text = log.read()
            whole, _, rest = text.rpartition("\n")
            self._read[origin] = log.tell() - len(rest.encode())
        now = time.time()
        self.lines += [Line(now, origin, line) for line in whole.split("\n") if whole]


class Counted:
    """Receives the states that the run publishes, and notes when the done count grew."""

    def __init__(self, link: Link) -> None:
        self.grown: list[float] = []
        self._done = 0
        subject = NAMES.status_subject(NOW)
        link.run(link.client.subscribe(subject, cb=self._receive))

    async def _receive(self, message) -> None:
        status = PipelineStatus.from_bytes(message.data)
        done = sum(vertex.counts.done for vertex in status.vertices if vertex.name == "out")
        if done > self._done:
            self._done = done
            self.grown.append(time.time())


@dataclass(frozen=True)
class Outcome:
    """The outcomes of the messages, and how long none arrived."""

    messages: int
    numbers: Counter[int]
    settled: int
    gap: float
    counted_gap: float
    killed_at: float
    node: str
    reported: list[Line]
    exit_code: int

    @property
    def lost(self) -> list[int]:
        return [number for number in range(self.messages) if number not in self.numbers]

    @property
    def repeated(self) -> int:
        """How many calls of the sink repeated a message."""
        return self.numbers.total() - len(self.numbers)

    @property
    def lines(self) -> list[str]:
        """The lines that the run itself has logged since the kill."""
        return [line.text for line in self.reported if line.origin == "run"]

    def __str__(self) -> str:
        timeline = "".join(
            f"\n{line.at - self.killed_at:+6.1f} s {line.origin:<8} {line.text}"
            for line in self.reported
        )
        return (
            f"{timeline}\n{len(self.numbers)} of {self.messages} arrived, {len(self.lost)} lost, "
            f"{self.settled} settled, {self.repeated} repeated at the sink; "
            f"longest gap {self.gap:.1f} s, in the status {self.counted_gap:.1f} s"
        )


class Loss:
    """One run that loses an executor and a node, in one folder."""

    def __init__(
        self, folder: Path, messages: int = 4000, rate: int = 200, *, inline: bool = False
    ) -> None:
        self._folder = folder
        self._messages = messages
        self._journal = folder / "journal"
        self._journal.mkdir()
        text = (PIPELINE / "lost.yaml").read_text(encoding="utf-8")
        text = text.replace("4000", str(messages)).replace("rpu: 200", f"rpu: {rate}")
        text = text.replace("inline: false", f"inline: {json.dumps(inline)}")
        (folder / "lost.yaml").write_text(text, encoding="utf-8")
        shutil.copy(PIPELINE / "lost_steps.py", folder)

    def run(
        self,
        nats: Cluster,
        cores: Sequence[int],
        *,
        after: float = 8.0,
        only: str = "",
        options: Sequence[str] = (),
    ) -> Outcome:
        """Run the pipeline to its end, and kill both after it has worked for a while."""
        spark = SparkCluster(self._folder)
        try:
            spark.add_workers(*cores)
            with self._logs(nats, len(cores)) as logs:
                with self._pipeline(nats, spark.url, options) as process:
                    counted = Counted(nats.link)
                    self._wait_for_arrivals(process, after)
                    node, killed_at = self._kill(nats, only)
                    code = process.wait(180)
                let_time_pass(2 * LOOK_EVERY)
            return self._sum_up(nats.link, logs, counted, node, killed_at, code)
        finally:
            spark.close()

    def _logs(self, nats: Cluster, workers: int) -> Logs:
        files = {f"worker-{n}": self._folder / f"worker-{n}.log" for n in range(1, workers + 1)}
        nodes = {node.name: node.log for node in nats.all}
        spark = self._folder / ".ebbflow" / "logs" / "spark.log"
        return Logs(run=self._folder / "run.log", spark=spark, **files, **nodes)

    @contextlib.contextmanager
    def _pipeline(
        self, nats: Cluster, master: str, options: Sequence[str]
    ) -> Iterator[subprocess.Popen[bytes]]:
        command = [sys.executable, "-m", "ebbflow", "run", "lost.yaml", "--drain", "--plain"]
        places = {"LOST_JOURNAL": str(self._journal), "EBBFLOW_NATS_URL": nats.url}
        sent = f"spark.executorEnv.LOST_JOURNAL={self._journal}"
        with open(self._folder / "run.log", "wb") as log:
            process = subprocess.Popen(
                [*command, "--fresh", "--master", master, "--conf", sent, *options],
                cwd=self._folder,
                env=os.environ | places,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        try:
            yield process
        finally:
            if process.poll() is None:
                kill_tree(process.pid)
                process.wait()

    def _wait_for_arrivals(self, process: subprocess.Popen[bytes], seconds: float) -> None:
        def have_arrived() -> bool:
            arrivals = self._arrivals()
            return bool(arrivals) and time.time() >= arrivals[0][0] + seconds

        log = self._folder / "run.log"
        until(have_arrived, 150, process, lambda: log.read_text()[-2000:], every=LOOK_EVERY)

    def _entries(self) -> list[tuple[float, str, str]]:
        """The time, text and process of each entry, in order of time."""
        lines = (
            (*line.split(), file.name)
            for file in self._journal.iterdir()
            for line in file.read_text(encoding="utf-8").split("\n")[:-1]
        )
        return sorted((float(at), word, pid) for at, word, pid in lines)

    def _arrivals(self) -> list[tuple[float, str, str]]:
        return [entry for entry in self._entries() if entry[1] != "opened"]

    def _kill(self, nats: Cluster, only: str) -> tuple[str, float]:
        """Kill both, or only one; return the name of the node and the time."""
        executor = executor_of(int(self._arrivals()[-1][2]))
        node = nats.leader_of(f"KV_{NAMES.positions}")
        if only != "node":
            executor.kill()
        if only != "executor":
            nats.kill(node)
        return node.name, time.time()

    def _sum_up(
        self, link: Link, logs: Logs, counted: Counted, node: str, killed_at: float, code: int
    ) -> Outcome:
        begun = [entry for entry in self._entries() if entry[1] == "opened"]
        opened = [Line(at, "sink", f"opened in {pid}") for at, _, pid in begun]
        arrivals = self._arrivals()
        gap, until = _longest_gap([at for at, _, _ in arrivals], killed_at)
        lines = [*logs.lines, *opened, Line(until, "sink", "continues")]
        reported = sorted(line for line in lines if line.at >= killed_at)
        positions = link.run(read_positions(link.client, NAMES))
        return Outcome(
            messages=self._messages,
            numbers=Counter(int(word) for _, word, _ in arrivals),
            settled=count_by_vertex(positions)["out"].done,
            gap=gap,
            counted_gap=_longest_gap(counted.grown, killed_at)[0],
            killed_at=killed_at,
            node=node,
            reported=[
                line for line in reported if line.origin == "sink" or line.is_worth_reporting
            ],
            exit_code=code,
        )


def executor_of(pid: int) -> psutil.Process:
    """The executor that a Python worker belongs to."""
    parents = psutil.Process(pid).parents()
    return next(parent for parent in parents if EXECUTOR in command_of(parent))


def _longest_gap(times: Sequence[float], since: float) -> tuple[float, float]:
    """The longest gap between moments, and its end, without gaps that ended before ``since``."""
    gaps = [(after - before, after) for before, after in pairwise(times)]
    return max((gap for gap in gaps if gap[1] >= since), default=(0.0, since))


def main() -> None:
    """Run it as a command; exit 1 when anything was lost."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cores", type=int, nargs="+", default=[3, 3], help="of each Worker")
    parser.add_argument("--times", type=int, default=1)
    parser.add_argument("--only", choices=("executor", "node"), default="", help="kill only this")
    parser.add_argument("--after", type=float, default=8.0, help="seconds of work before the kill")
    parser.add_argument("--inline", action="store_true", help="all vertices share a task")
    parser.add_argument("--option", action="append", default=[], help="for ebbflow run")
    arguments = parser.parse_args()
    outcomes = [_run_once(arguments) for _ in range(arguments.times)]
    print(f"gaps {', '.join(f'{outcome.gap:.1f}' for outcome in outcomes)} s")
    sys.exit(1 if any(outcome.lost for outcome in outcomes) else 0)


def _run_once(arguments: argparse.Namespace) -> Outcome:
    with tempfile.TemporaryDirectory(prefix="ebbflow-lost-") as name:
        folder = Path(name)
        (folder / "run").mkdir()
        with Cluster(folder / "nodes").running() as nats:
            loss = Loss(folder / "run", inline=arguments.inline)
            only, after, options = arguments.only, arguments.after, arguments.option
            outcome = loss.run(nats, arguments.cores, after=after, only=only, options=options)
    print(outcome, flush=True)
    return outcome


if __name__ == "__main__":
    main()
