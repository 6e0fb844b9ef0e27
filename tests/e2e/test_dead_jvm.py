"""A JVM that is killed, or runs out of memory, is replaced while the run continues."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from ebbflow.domain.outcome import Counts
from ebbflow.engine.position import count_by_vertex
from ebbflow.nats.locate import open_link_to_pipeline
from ebbflow.streams.names import Names
from ebbflow.streams.positions import read_positions
from tests.chaos.kill_and_restart import kill_tree
from tests.e2e.conftest import Whole, finish
from tests.processes import command_of, family_of
from tests.waiting import until

pytestmark = pytest.mark.slow

MESSAGES = 1_200


def workers_of(process):
    """Spark's Python workers and the processes that they are forked from."""
    return [one for one in family_of(process.pid) if program_of(one).startswith("python")]


def program_of(process):
    return Path((command_of(process) or [""])[0]).name


def jvm(process, killed=()):
    """The JVM of a run, even while it is starting, but none of those that were killed."""

    def found():
        family = (one for one in family_of(process.pid) if program_of(one) == "java")
        return next((one for one in family if one.pid not in killed), None)

    return until(found, 240, process, lambda: process.communicate()[0], every=0.05)


class Deaths:
    """A run whose JVM is killed while messages flow, and then twice while it is being started."""

    def __init__(self, whole: Whole) -> None:
        self.whole = whole
        process = whole.start("--timeout", "240s", "--plain")
        whole.wait_until(lambda: len(whole.stored()) > 100, process)
        killed = [jvm(process)]
        self.workers = workers_of(process)
        killed[0].kill()
        whole.wait_until(lambda: set(whole.stored()) == set(range(MESSAGES)), process)
        self.outlived = psutil.wait_procs(self.workers, timeout=120)[1]
        self.counts = self._settled(process)
        for _ in range(2):
            killed.append(jvm(process, [doomed.pid for doomed in killed]))
            killed[-1].kill()
        self.code, self.output = finish(process)

    def _settled(self, process: subprocess.Popen[str]) -> Counts:
        """The counts of the sink, once they are complete, from the server that the run uses."""
        deadline = time.monotonic() + 120
        while (counts := self._counts()).done < MESSAGES and time.monotonic() < deadline:
            assert process.poll() is None
        return counts

    def _counts(self) -> Counts:
        with open_link_to_pipeline(self.whole.folder / ".ebbflow", None) as link:
            return count_by_vertex(link.run(read_positions(link.client, Names("whole"))))["out"]


@pytest.fixture(scope="module")
def deaths(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deaths]:
    whole = Whole(tmp_path_factory.mktemp("deaths"))
    whole.write({"messages": MESSAGES, "rpu": 400})
    try:
        yield Deaths(whole)
    finally:
        whole.close()


@pytest.mark.guarantee("a-run-goes-on")
def test_a_killed_jvm_is_replaced_and_the_run_continues(deaths):
    assert "Spark's JVM died (killed by signal 9); starting a new one" in deaths.output
    assert "Connection refused" not in deaths.output
    assert deaths.counts.done == deaths.counts.read == MESSAGES
    assert deaths.workers
    assert deaths.outlived == [], "they would keep settling"


@pytest.mark.guarantee("a-run-goes-on")
def test_a_jvm_that_keeps_dying_ends_the_run_with_an_error_message_and_exit_code(deaths):
    assert deaths.code == 5, deaths.output
    assert "Spark's JVM died 3 times within minutes (while it was starting)." in deaths.output
    assert "the next run continues where this one ended" in deaths.output.replace("\n", " ")
    assert "Traceback" not in deaths.output


PROGRAM = """
from pathlib import Path
from pyspark import SparkContext
from ebbflow import Pipeline
from ebbflow.connectors import Blackhole, Generator
from ebbflow.status.run_report import Watcher
from ebbflow.spark.session import SessionPlan, start_session

class Killing(Watcher):
    def look(self, status):
        if status["out"].counts.done > 20:
            SparkContext._gateway.proc.kill()

plan = SessionPlan("mine", "local[4]", 2, Path("logs").resolve())
spark = start_session(plan)  # not the run's own
pipeline = Pipeline("mine").source("in", Generator(rpu=100)).sink("out", Blackhole())
try:
    pipeline.run(watcher=Killing(), timeout="240s")
except Exception as error:
    print(type(error).__name__, error)
"""


@pytest.mark.long
@pytest.mark.guarantee("a-run-goes-on")
def test_a_session_created_by_the_user_is_not_replaced(tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=300,
    )

    assert "EngineLost Spark's JVM died (killed by signal 9). Start a new session" in done.stdout, (
        done.stderr
    )


@pytest.mark.guarantee("a-run-goes-on")
@pytest.mark.long
def test_running_out_of_memory_is_reported_with_a_next_step(whole):
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
    process = whole.start("--timeout", "240s", "--conf", "spark.driver.memory=500m")
    lines = []
    for line in process.stdout:
        lines.append(line)
        if "Spark's JVM died" in line:
            break
    kill_tree(process.pid)
    process.communicate()

    assert "died (out of memory); starting a new one" in lines[-1], "".join(lines)
    assert "--conf spark.driver.memory=4g" in lines[-1]
