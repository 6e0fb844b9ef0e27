"""Runs of one process share a Spark session that the first of them has started."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
import time
from pyspark import SparkContext
from ebbflow import Pipeline
from ebbflow.connectors import Blackhole, Generator

def run(tasks, **options):
    pipeline = Pipeline("orders").source("in", Generator(messages=10))
    pipeline = pipeline.sink("out", Blackhole(), partitions=tasks)
    began = time.monotonic()
    with pipeline.start(drain=True, fresh=True, **options) as run:
        took = time.monotonic() - began
        assert run.wait(timeout="240s").vertices["out"].done == 10
    return SparkContext._active_spark_context.applicationId, took

first, cold = run(1)
second, warm = run(1)
assert first == second, "the session is kept"
assert warm < cold, (warm, cold)
third, _ = run(1, conf={"spark.sql.session.timeZone": "UTC"})
assert third != first, "another session for other settings"
print("ok")
"""


@pytest.mark.slow
@pytest.mark.long
def test_the_second_run_of_a_process_reuses_the_spark_session_of_the_first(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], cwd=tmp_path, capture_output=True, text=True, timeout=300
    )
    assert (done.stdout, done.returncode) == ("ok\n", 0), done.stderr
