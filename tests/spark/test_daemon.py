"""Workers are forked from a process preloaded while the JVM starts, or else from Spark's daemon.

Spark talks to the daemon's standard input and output: it reads a port from its output and ends
the daemon by closing its input.
"""

from __future__ import annotations

import os
import signal
import socket
import struct
import subprocess
import sys
from pathlib import Path

import psutil
import pyarrow as pa
import pytest

from ebbflow.domain import host
from tests.waiting import until

DAEMON = [sys.executable, "-m", "ebbflow.spark.daemon", "pyspark.worker"]

linux = pytest.mark.skipif(not host.is_linux(), reason="preloads on Linux only")


def parent():
    return Path(f"/proc/{os.getppid()}/cmdline").read_bytes().decode()


def parents(batches):
    for _ in batches:
        yield pa.RecordBatch.from_pydict({"command": [parent()], "here": [os.getcwd()]})


@linux
def test_workers_are_forked_from_the_preloaded_process(spark):
    row = spark.range(1).mapInArrow(parents, "command string, here string").first()

    assert "--preload" in row.command
    assert row.here == os.getcwd()


@linux
def test_tasks_and_queries_use_workers_of_the_same_daemon(spark):
    row = spark.range(1).mapInArrow(parents, "command string, here string").first()
    command = spark.sparkContext.parallelize([0], 1).map(lambda _: parent()).first()

    assert command == row.command


@pytest.fixture
def preloaded(tmp_path):
    """A preloaded process, and the environment of a daemon that finds it."""
    env = {**os.environ, "EBBFLOW_LOADED_AHEAD": str(tmp_path / "daemon")}
    command = [sys.executable, "-m", "ebbflow.spark.daemon", "--preload", str(os.getpid())]
    process = subprocess.Popen(command, env=env)
    until((tmp_path / "daemon").exists, 240, process)
    yield process, env
    process.kill()
    process.wait()


def port_of(daemon: subprocess.Popen[bytes]) -> int:
    (port,) = struct.unpack("!i", daemon.stdout.read(4))
    return port


@linux
def test_daemon_and_preloaded_process_end_when_spark_closes_the_daemons_input(preloaded):
    process, env = preloaded
    with subprocess.Popen(DAEMON, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as daemon:
        port = port_of(daemon)
        listening = psutil.Process(process.pid).net_connections("inet")
        assert port in [one.laddr.port for one in listening]
        daemon.stdin.close()
        assert daemon.wait(120) == 0
    process.wait(120)


@linux
def test_daemon_and_preloaded_process_end_when_spark_terminates_the_daemon(preloaded):
    process, env = preloaded
    with subprocess.Popen(DAEMON, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as daemon:
        port_of(daemon)
        daemon.send_signal(signal.SIGTERM)
        assert daemon.wait(120) == 0
    process.wait(120)


@pytest.mark.parametrize("place", [None, "/nowhere/daemon"], ids=["not set", "missing"])
def test_a_daemon_without_a_preloaded_process_loads_everything_itself(place):
    env = {name: value for name, value in os.environ.items() if name != "EBBFLOW_LOADED_AHEAD"}
    env |= {} if place is None else {"EBBFLOW_LOADED_AHEAD": place}
    with subprocess.Popen(DAEMON, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as daemon:
        assert port_of(daemon) > 0
        daemon.stdin.close()
        daemon.wait(120)


@linux
def test_the_preloaded_process_ends_with_the_driver_that_started_it(tmp_path):
    program = "import time; from ebbflow.spark.daemon import preload\n"
    program += "with preload(): time.sleep(60)"
    env = {**os.environ, "TMPDIR": str(tmp_path)}
    driver = subprocess.Popen([sys.executable, "-c", program], env=env)
    children = until(psutil.Process(driver.pid).children, 60, driver, every=0.02)
    driver.kill()
    driver.wait()
    assert psutil.wait_procs(children, 60)[1] == []


def test_a_worker_ends_when_its_daemon_is_killed():
    """It may be waiting for a NATS server that is down as well, and then nothing would stop it."""
    with (
        subprocess.Popen(DAEMON, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as daemon,
        socket.create_connection(("127.0.0.1", port_of(daemon))),
    ):
        (worker,) = until(psutil.Process(daemon.pid).children)
        daemon.kill()
        until(lambda: host.has_ended(worker.pid))
