"""A JVM that is killed, or runs out of memory, is replaced while the run goes on."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time

import psutil
import pytest

from tests.chaos.kill_and_restart import kill_tree

pytestmark = pytest.mark.slow


def workers_of(process):
    """Spark's Python workers and what they are forked from."""
    family = psutil.Process(process.pid).children(recursive=True)
    return [one for one in family if one.name().startswith("python")]


def jvm(process, killed=()):
    """The JVM of a run, also one that is just being started; none of those that were killed."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        for child in psutil.Process(process.pid).children():
            is_there = child.pid not in killed and child.status() != psutil.STATUS_ZOMBIE
            if child.name() == "java" and is_there:
                return child
        assert process.poll() is None, process.communicate()[0]
        time.sleep(0.05)
    raise TimeoutError("there is no JVM")


@pytest.mark.guarantee("a-run-goes-on")
def test_a_killed_jvm_is_replaced_and_the_run_goes_on(whole):
    whole.write({"messages": 1_200, "rpu": 400})
    process = whole.start("--drain", "--timeout", "120s", "--summary", "counts.json")
    whole.wait_until(lambda: len(whole.stored()) > 100, process)
    doomed = jvm(process)
    workers = workers_of(process)
    doomed.kill()
    output, _ = process.communicate(timeout=150)

    assert process.returncode == 0, output
    assert "Spark's JVM died (killed by signal 9); starting a new one" in output
    assert "Traceback" not in output
    assert "Connection refused" not in output
    assert set(whole.stored()) == set(range(1_200))
    counts = json.loads((whole.folder / "counts.json").read_text())["vertices"]
    assert counts["out"]["done"] == counts["out"]["read"] == 1_200
    assert workers
    assert psutil.wait_procs(workers, timeout=20)[1] == [], "they would go on settling"


@pytest.mark.guarantee("a-run-goes-on")
def test_a_jvm_that_keeps_dying_ends_the_run_with_a_sentence_and_a_code(whole):
    whole.write({"rpu": 100})
    process = whole.start("--timeout", "150s")
    whole.wait_until(lambda: len(whole.stored()) > 1, process)
    killed = []
    for _ in range(3):  # the second and the third while they are starting
        doomed = jvm(process, killed)
        doomed.kill()
        killed.append(doomed.pid)
    output, _ = process.communicate(timeout=140)

    assert process.returncode == 5, output
    assert "Spark's JVM died 3 times within minutes (while it was starting)." in output
    assert "the next run goes on where this one ended" in output.replace("\n", " ")
    assert "Traceback" not in output


PROGRAM = """
import os, signal, threading, time
from pyspark import SparkContext
from pyspark.sql import SparkSession
from ebbflow import Pipeline
from ebbflow.runtime.run_report import Silent

class Killing(Silent):
    def look(self, views):
        if views["out"].counts.done > 20:
            SparkContext._gateway.proc.kill()

spark = SparkSession.builder.master("local[4]").config("spark.ui.enabled", "false").getOrCreate()
pipeline = Pipeline("mine").source("in", generator={"rpu": 100}).sink("out", blackhole=True)
try:
    pipeline.run(watcher=Killing(), timeout="90s")
except Exception as error:
    print(type(error).__name__, error)
"""


@pytest.mark.guarantee("a-run-goes-on")
def test_a_session_of_the_users_own_is_not_replaced(tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        cwd=tmp_path,
        env=os.environ | {"SPARK_LOCAL_IP": "127.0.0.1", "PYSPARK_PYTHON": sys.executable},
        capture_output=True,
        text=True,
        timeout=150,
    )

    assert "EngineLost Spark's JVM died (killed by signal 9). Start a new session" in done.stdout, (
        done.stderr
    )


@pytest.mark.guarantee("a-run-goes-on")
def test_out_of_memory_is_told_with_what_to_do(whole):
    whole.write({"rpu": 100})
    (whole.folder / "pipeline.yaml").write_text(
        """
apiVersion: numaflow.numaproj.io/v1alpha1
kind: Pipeline
metadata: {name: whole}
spec:
  vertices:
    - {name: in, source: {generator: {rpu: 100}}}
    - name: huge
      udf: {sql: "SELECT id, array_join(transform(sequence(1, 50000000), x -> id), '') AS value FROM messages"}
    - {name: out, sink: {blackhole: {}}}
  edges:
    - {from: in, to: huge}
    - {from: huge, to: out}
"""  # noqa: E501
    )
    process = whole.start("--timeout", "90s", "--conf", "spark.driver.memory=500m")
    told = []
    for line in process.stdout:
        told.append(line)
        if "Spark's JVM died" in line:
            break
    kill_tree(process.pid)
    process.communicate()

    assert "died (out of memory); starting a new one" in told[-1], "".join(told)
    assert "--conf spark.driver.memory=4g" in told[-1]
