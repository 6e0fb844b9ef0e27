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

from ebbflow.spark.class_archive import ClassArchive
from ebbflow.spark.session import java_version
from tests.e2e.conftest import Whole

# Many JVMs are started, one after another.
pytestmark = [pytest.mark.slow, pytest.mark.long, pytest.mark.timeout(600)]

HOME = Path(pyspark.__file__).parent


def quick_java() -> str:
    """Options for JVMs that live for a minute, and mostly load and compile their classes."""
    archive = ClassArchive(java_version()).java_option()
    is_there = "-XX:SharedArchiveFile=" in archive
    return f"-XX:TieredStopAtLevel=1 {archive if is_there else '-XX:+UseSerialGC'}"


def spark_class(log: Path, *arguments: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [str(HOME / "bin" / "spark-class"), *arguments],
        env=os.environ
        | {
            "SPARK_HOME": str(HOME),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "PYSPARK_PYTHON": sys.executable,
            "SPARK_WORKER_DIR": str(log.parent / "work"),
            "SPARK_DAEMON_JAVA_OPTS": quick_java(),
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
        self.url = await_text(log, r"spark://127\.0\.0\.1:\d+")

    def add_workers(self, *cores: int) -> None:
        """Add a Worker for each number of cores; they start side by side."""
        for log in [self._start_worker(number) for number in cores]:
            await_text(log, "Successfully registered with master")

    def _start_worker(self, cores: int) -> Path:
        self._number += 1
        log = self._folder / f"worker-{self._number}.log"
        member = spark_class(
            log, f"{self._package}.worker.Worker", "--host", "127.0.0.1",
            "--webui-port", "0", "--cores", str(cores), "--memory", "1g", self.url,
        )  # fmt: skip
        self._workers.append(member)
        return log

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
        made.add_workers(2, 2)
        yield made
    finally:
        made.close()


def await_text(log: Path, pattern: str, start: int = 0) -> str:
    """What the log says from ``start`` on, once it says it."""
    deadline = time.monotonic() + 150
    while time.monotonic() < deadline:
        match = re.search(pattern, log.read_text(errors="replace")[start:])
        if match:
            return match[0]
        time.sleep(0.1)
    raise TimeoutError(log.read_text(errors="replace"))


class OnCluster:
    """A run whose cluster loses a Worker and gains another, with epochs of ten minutes.

    Epochs that are running must end early, or some vertex would wait for its slot.
    """

    def __init__(self, whole: Whole, cluster: Cluster) -> None:
        self.whole = whole
        log = whole.folder / "output.log"
        process = whole.start(
            *("--epoch", "10m", "--timeout", "400s", "--master", cluster.url, "--plain"),
            *("--conf", f"spark.executor.extraJavaOptions={quick_java()}"),
            log=log,
        )
        whole.wait_until(lambda: len(whole.stored()) > 100, process)
        start = len(log.read_text())  # on a slow machine executors may have come one by one
        cluster.lose_a_worker()
        await_text(log, "3 tasks have only 2 slots, so vertices take turns of 2 s", start)
        for _ in range(2):  # every vertex has its turn, and another one
            before = len(whole.stored())
            whole.wait_until(lambda n=before: len(whole.stored()) > n, process)
        start = len(log.read_text())
        cluster.add_workers(2)
        await_text(log, "all 3 tasks have slots again", start)
        process.send_signal(signal.SIGTERM)
        self.code = process.wait(90)
        self.output = log.read_text()


@pytest.fixture(scope="module")
def ended(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[OnCluster]:
    whole = Whole(tmp_path_factory.mktemp("on-cluster"))
    whole.write({"rpu": 100})
    try:
        yield OnCluster(whole, cluster)
    finally:
        whole.close()


def test_a_pipeline_runs_on_a_cluster_with_the_modules_beside_its_spec(ended):
    assert ended.code == 0, ended.output
    assert "cannot reach" not in ended.output, "all executors are on this machine"


@pytest.mark.guarantee("a-run-goes-on")
def test_a_lost_worker_is_told_and_vertices_take_turns_until_there_is_another(ended):
    stored = ended.whole.stored()
    assert set(stored) == set(range(max(stored) + 1)), "nothing is missing"
