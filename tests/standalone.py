"""A standalone Spark cluster on this machine: a master, and Workers that come and go."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
from pathlib import Path

import psutil
import pyspark

from ebbflow.spark.jvm import ClassArchive
from ebbflow.spark.session import java_version
from tests.processes import family_of
from tests.waiting import until

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
    family: list[psutil.Process | subprocess.Popen[bytes]] = [process, *family_of(process.pid)]
    for member in family:
        with contextlib.suppress(psutil.NoSuchProcess):
            member.kill()
    process.wait()


def await_text(log: Path, pattern: str, start: int = 0) -> str:
    """Returns the match of the pattern in the log from ``start`` on, once there is one."""

    def found() -> re.Match[str] | None:
        return re.search(pattern, log.read_text(errors="replace")[start:])

    try:
        return until(found, 150, every=0.1)[0]
    except AssertionError:
        raise TimeoutError(log.read_text(errors="replace")) from None


class SparkCluster:
    """The master and its Workers. It must be closed in any case."""

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
        """Adds a Worker for each number of cores; they start concurrently."""
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
        """Kills a Worker and its executors."""
        stop(self._workers.pop())

    def close(self) -> None:
        for process in (*self._workers, self._master):
            stop(process)
