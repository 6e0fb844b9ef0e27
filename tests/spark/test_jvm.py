"""How PySpark talks to its JVM, and which needless work it avoids."""

from __future__ import annotations

import logging
import os
import socket
import socketserver
import subprocess
import sys
import sysconfig
import time
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from py4j.java_gateway import GatewayClient
from py4j.protocol import Py4JNetworkError

from ebbflow.spark.jvm import ClassArchive, OnlyNumpy, is_not_of_py4j
from ebbflow.spark.session import SessionPlan, quieten_accumulators, quieten_py4j


class RecordingConverter:
    def __init__(self):
        self.values = []

    def can_convert(self, value):
        self.values.append(value)
        return True


class Table(np.ndarray):
    pass


@pytest.mark.parametrize("value", [np.int64(1), np.zeros(2), np.zeros(2).view(Table)])
def test_numpy_values_are_passed_to_numpys_converters(value):
    assert OnlyNumpy(RecordingConverter()).can_convert(value)


def test_other_values_are_not_passed_to_numpys_converters():
    converter = RecordingConverter()
    for value in (1, "text", [1], {"a": 1}, object()):
        assert not OnlyNumpy(converter).can_convert(value)
    assert converter.values == []


def test_numpy_values_reach_queries(spark):
    from pyspark.sql import functions

    row = spark.range(1).select(functions.lit(np.int64(7)), functions.lit(np.array([1, 2]))).first()
    assert tuple(row) == (7, [1, 2])


def test_the_drivers_module_path_is_passed_to_its_workers_only(spark):
    def path(_=None):
        return os.environ.get("PYTHONPATH", "").split(os.pathsep)

    own = sysconfig.get_path("purelib")
    assert own in spark.sparkContext.parallelize([0], 1).map(path).first()
    assert own not in path()


class Broken:
    """A connection whose JVM is gone."""

    def send_command(self, command):
        raise Py4JNetworkError("Answer from Java side is empty")

    def close(self, reset):
        pass


@pytest.mark.parametrize("filters", [[], [is_not_of_py4j]], ids=["by itself", "in a run"])
def test_calls_interrupted_by_the_end_of_a_jvm_print_no_traceback(filters, caplog, monkeypatch):
    monkeypatch.setattr(logging.getLogger(), "filters", filters)
    client = GatewayClient()
    monkeypatch.setattr(client, "_get_connection", Broken)
    client.send_command("c\n")
    assert ("Exception while sending command" in caplog.text) is not bool(filters)


@pytest.mark.parametrize("own", [logging.NOTSET, logging.DEBUG])
def test_py4j_logs_its_calls_only_if_its_own_logger_is_set_to_debug(own, caplog):
    py4j = logging.getLogger("py4j")
    before = py4j.level
    py4j.setLevel(own)
    try:
        with caplog.at_level(logging.DEBUG):  # as logging.basicConfig(level=DEBUG) does
            quieten_py4j()
            logging.getLogger("py4j.clientserver").debug("Command to send")
    finally:
        py4j.setLevel(before)
    assert bool(caplog.records) is (own is logging.DEBUG)


class Breaks(socketserver.BaseRequestHandler):
    def handle(self):
        raise EOFError("the JVM has died")


def test_a_dead_jvm_causes_no_traceback_in_the_accumulator_server(capfd):
    with socketserver.TCPServer(("127.0.0.1", 0), Breaks) as server:
        server.timeout = 10
        quieten_accumulators(SimpleNamespace(_accumulatorServer=server))
        with socket.create_connection(server.server_address):
            server.handle_request()
    assert capfd.readouterr() == ("", "")


def test_the_accumulator_server_of_a_run_is_quiet(spark):
    assert "handle_error" in vars(spark.sparkContext._accumulatorServer)


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "ebbflow"


def test_the_first_jvm_writes_a_class_archive_draft_and_gets_time_for_it(cache):
    archive = ClassArchive(17)
    assert "-XX:ArchiveClassesAtExit=" in archive.java_option()
    assert archive.seconds_to_end == 300

    draft = archive.java_option().partition("ArchiveClassesAtExit=")[2].partition('"')[0]
    with open(draft, "wb") as file:
        file.write(b"classes")
    archive.keep(whole=True)

    assert f"-XX:SharedArchiveFile={draft.rpartition('.')[0]}" in archive.java_option()
    assert archive.seconds_to_end == 30


def test_the_archive_draft_of_a_killed_jvm_is_not_used(cache):
    archive = ClassArchive(17)
    draft = archive.java_option().partition("ArchiveClassesAtExit=")[2].partition('"')[0]
    open(draft, "wb").close()
    archive.keep(whole=False)

    assert list(cache.iterdir()) == []
    assert "-XX:ArchiveClassesAtExit=" in archive.java_option()


@pytest.mark.parametrize("name", ["spark-4.2-java-17-ab.jsa", "spark-4.3-java-17-ab.jsa.123"])
def test_unused_archives_and_drafts_are_removed(cache, name):
    cache.mkdir()
    old = cache / name
    old.touch()
    os.utime(old, times=(time.time() - 40 * 86_400,) * 2)
    archive = ClassArchive(17)
    draft = archive.java_option().partition("ArchiveClassesAtExit=")[2].partition('"')[0]
    open(draft, "wb").close()
    archive.keep(whole=True)

    assert not old.exists()


def test_a_jvm_that_only_schedules_tasks_is_small_and_has_its_own_archive(cache, tmp_path):
    tasks = SessionPlan("plain", None, 3, tmp_path, schedules=True)
    tables = replace(tasks, schedules=False)

    assert tasks.settings()["spark.driver.memory"] == "131m"
    assert "-XX:ReservedCodeCacheSize=32m" in tasks.settings()["spark.driver.extraJavaOptions"]
    assert "spark.driver.memory" not in tables.settings()
    assert tasks.archive.java_option() != tables.archive.java_option()


@pytest.mark.parametrize(
    "changed", [{"conf": {"spark.driver.memory": "4g"}}, {"master": "spark://there:7077"}]
)
def test_memory_set_by_the_user_or_on_a_cluster_is_not_changed(cache, tmp_path, changed):
    plan = replace(SessionPlan("plain", None, 3, tmp_path, schedules=True), **changed)

    assert plan.settings().get("spark.driver.memory") == plan.conf.get("spark.driver.memory")
    assert "spark.testing.reservedMemory" not in plan.settings()


def test_the_driver_of_a_run_imports_neither_pandas_nor_parquet():
    code = "import sys, ebbflow.cli.main, ebbflow.spec.lint, ebbflow.spark.run; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout

    assert "ebbflow.spark.run" in loaded.split()
    assert not {"pandas", "pyarrow.parquet"} & set(loaded.split())
