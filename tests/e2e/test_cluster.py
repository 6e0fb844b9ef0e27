"""The same pipeline on a real Spark cluster: a standalone master and worker on this machine."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pyspark
import pytest

# Many JVMs are started, one after another.
pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

HOME = Path(pyspark.__file__).parent


def spark_class(log: Path, *arguments: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [str(HOME / "bin" / "spark-class"), *arguments],
        env=os.environ
        | {
            "SPARK_HOME": str(HOME),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "PYSPARK_PYTHON": sys.executable,
            "SPARK_WORKER_DIR": str(log.parent / "work"),
        },
        stdout=open(log, "wb"),
        stderr=subprocess.STDOUT,
    )


def stop(process: subprocess.Popen[bytes]) -> None:
    family = [process, *psutil.Process(process.pid).children(recursive=True)]
    for member in family:
        member.kill()
    process.wait()


class Cluster:
    """A standalone master, and Workers that come and go."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._package = "org.apache.spark.deploy"
        self._number = 0
        self._workers: list[subprocess.Popen[bytes]] = []
        log = folder / "master.log"
        self._master = spark_class(
            log, f"{self._package}.master.Master", "--host", "127.0.0.1", "--port", "0",
            "--webui-port", "0",
        )  # fmt: skip
        self.url = found(log, r"spark://127\.0\.0\.1:\d+")

    def add_worker(self, cores: int) -> None:
        self._number += 1
        log = self._folder / f"worker-{self._number}.log"
        member = spark_class(
            log, f"{self._package}.worker.Worker", "--host", "127.0.0.1",
            "--webui-port", "0", "--cores", str(cores), "--memory", "1g", self.url,
        )  # fmt: skip
        self._workers.append(member)
        found(log, "Successfully registered with master")

    def lose_a_worker(self) -> None:
        """Kill a Worker and its executors."""
        stop(self._workers.pop())

    def close(self) -> None:
        for process in (*self._workers, self._master):
            stop(process)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A cluster with four slots, two on each of its Workers."""
    made = Cluster(tmp_path_factory.mktemp("cluster"))
    try:
        made.add_worker(2)
        made.add_worker(2)
        yield made
    finally:
        made.close()


def found(log: Path, pattern: str, start: int = 0) -> str:
    """What the log says from ``start`` on, waited for."""
    deadline = time.monotonic() + 150
    while time.monotonic() < deadline:
        match = re.search(pattern, log.read_text(errors="replace")[start:])
        if match:
            return match[0]
        time.sleep(0.1)
    raise TimeoutError(log.read_text(errors="replace"))


def test_a_pipeline_runs_on_a_cluster_with_the_modules_beside_its_spec(whole, cluster):
    whole.write({"messages": 2_000})
    process = whole.start("--drain", "--timeout", "180s", "--master", cluster.url)
    output, _ = process.communicate(timeout=280)

    assert process.returncode == 0, output
    assert whole.stored() == list(range(2_000))
    assert "cannot reach" not in output, "all executors are on this machine"


@pytest.mark.guarantee("a-run-goes-on")
def test_vertices_take_turns_where_there_are_fewer_slots_than_tasks(whole, cluster):
    whole.write({"messages": 500})
    options = (
        "--conf",
        "spark.cores.max=2",
        "--drain",
        "--timeout",
        "90s",
        "--master",
        cluster.url,
    )
    output, _ = whole.start(*options).communicate(timeout=280)

    assert "3 tasks have only 2 slots" in output
    assert whole.stored() == list(range(500))


@pytest.mark.guarantee("a-run-goes-on")
def test_a_lost_worker_is_told_and_vertices_take_turns_until_there_is_another(whole, cluster):
    """With epochs of ten minutes: those that are running end early, or some vertex would wait."""
    whole.write({"rpu": 100})
    log = whole.folder / "output.log"
    options = ("--epoch", "10m", "--timeout", "400s", "--master", cluster.url, "--plain")
    process = whole.start(*options, log=log)
    whole.wait_until(lambda: len(whole.stored()) > 100, process)
    start = len(log.read_text())  # on a slow machine executors may have come one by one

    cluster.lose_a_worker()
    found(log, "3 tasks have only 2 slots, so vertices take turns of 2 s", start)
    for _ in range(2):  # every vertex has its turn, and another one
        before = len(whole.stored())
        whole.wait_until(lambda n=before: len(whole.stored()) > n, process)

    start = len(log.read_text())
    cluster.add_worker(2)
    found(log, "all 3 tasks have slots again", start)
    process.send_signal(signal.SIGTERM)
    process.wait(90)
    assert process.returncode == 0, log.read_text()
    stored = whole.stored()
    assert set(stored) == set(range(max(stored) + 1)), "nothing is missing"
