"""The same pipeline on a real Spark cluster: a standalone master and worker on this machine."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pyspark
import pytest

pytestmark = pytest.mark.slow

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


@pytest.fixture
def master(tmp_path: Path) -> Iterator[str]:
    """The URL of a cluster with four slots."""
    package = "org.apache.spark.deploy"
    log = tmp_path / "master.log"
    leader = spark_class(
        log, f"{package}.master.Master", "--host", "127.0.0.1", "--port", "0", "--webui-port", "0"
    )
    try:
        url = found(log, r"spark://127\.0\.0\.1:\d+")
        member = spark_class(
            tmp_path / "worker.log", f"{package}.worker.Worker", "--host", "127.0.0.1",
            "--webui-port", "0", "--cores", "4", "--memory", "1g", url,
        )  # fmt: skip
        try:
            found(tmp_path / "worker.log", "Successfully registered with master")
            yield url
        finally:
            stop(member)
    finally:
        stop(leader)


def found(log: Path, pattern: str) -> str:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        match = re.search(pattern, log.read_text(errors="replace"))
        if match:
            return match[0]
        time.sleep(0.1)
    raise TimeoutError(log.read_text(errors="replace"))


def test_a_pipeline_runs_on_a_cluster_with_the_modules_beside_its_spec(whole, master):
    whole.write({"messages": 2_000})
    process = whole.start("--drain", "--timeout", "90s", "--master", master)
    output, _ = process.communicate(timeout=150)

    assert process.returncode == 0, output
    assert whole.stored() == list(range(2_000))


def test_vertices_take_turns_where_there_are_fewer_slots_than_tasks(whole, master):
    whole.write({"messages": 500})
    options = ("--conf", "spark.cores.max=2", "--drain", "--timeout", "90s", "--master", master)
    output, _ = whole.start(*options).communicate(timeout=150)

    assert "3 tasks have only 2 slots" in output
    assert whole.stored() == list(range(500))
