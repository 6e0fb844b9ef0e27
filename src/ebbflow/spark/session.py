"""The Spark session of a run: settings that were measured, and a JVM that keeps quiet.

What Spark has to say goes to ``spark.log`` in the state folder, what its JVM prints to ``jvm.log``.
In local mode everything binds to the loopback interface. User settings (``--conf``) win over ours.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import warnings
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from ebbflow.domain.errors import SetupError
from ebbflow.spark.daemon import preload
from ebbflow.spark.jvm import ClassArchive

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

OLDEST_JAVA = 17
# Slots beyond the tasks, so that a vertex starting again never waits for one that ends.
_SPARE_SLOTS = 2
_ASKING = 30.0
_PYTHON_PATH = "PYTHONPATH"

_LOG4J = """
rootLogger.level = warn
rootLogger.appenderRef.file.ref = file
appender.file.type = File
appender.file.name = file
appender.file.fileName = {log}
appender.file.layout.type = PatternLayout
appender.file.layout.pattern = %d{{HH:mm:ss.SSS}} %p %c{{1}}: %m%n%ex
"""


@functools.cache
def java_version() -> int:
    """Returns the major version of the Java that Spark will use; ``SetupError`` if too old."""
    home = os.environ.get("JAVA_HOME")
    java = shutil.which("java", path=f"{home}/bin") if home else shutil.which("java")
    advice = "Install it, on Debian and Ubuntu with: apt-get install openjdk-17-jre-headless"
    if java is None:
        where = f"in JAVA_HOME ({home})" if home else "on the path"
        raise SetupError(f"Spark needs Java 17 or newer, and there is none {where}.", f"{advice}.")
    version = _ask_version(java)
    if version is None:
        raise SetupError(f"{java} does not say which version of Java it is.", f"{advice}.")
    if version < OLDEST_JAVA:
        raise SetupError(f"Spark needs Java {OLDEST_JAVA}, and {java} is {version}.", f"{advice}.")
    return version


def _ask_version(java: str) -> int | None:
    try:
        answer = subprocess.run(
            [java, "-version"],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_ASKING,
            start_new_session=True,  # Ctrl-C must not look like a Java that does not work
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    match = re.search(r'version "(?:1\.)?(\d+)', answer.stderr)
    return int(match[1]) if match else None


def active_session() -> SparkSession | None:
    """Returns the session that the user's program has started itself, if it has."""
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    if SparkContext._active_spark_context is None:
        return None
    # It may be there, but active in another thread.
    return SparkSession.getActiveSession() or SparkSession.builder.getOrCreate()


@contextlib.contextmanager
def open_session(
    name: str,
    master: str | None,
    tasks: int,
    logs: Path,
    conf: Mapping[str, str],
    modules: Path | None,
) -> Iterator[SparkSession]:
    """Opens Spark for a pipeline of this many tasks: the session there is, or one of its own.

    ``modules`` is the folder of the user's code; it is sent along to workers on other machines.
    """
    quieten_py4j()
    active = active_session()
    if active is not None:
        yield active
        return
    with preload() if _is_local(master) else contextlib.nullcontext():
        spark = start_session(name, master, tasks, logs, conf)
        try:
            if modules is not None and not _is_local(master):
                spark.sparkContext.addPyFile(_zip_modules(modules, logs))
            yield spark
        finally:
            stop_session(spark)


@contextlib.contextmanager
def open_local_session(name: str, threads: int = 2) -> Iterator[SparkSession]:
    """Opens Spark here for a command that reads a table: the session there is, or one of its own.

    What its own one logs is thrown away.
    """
    active = active_session()
    if active is not None:
        yield active
        return
    with tempfile.TemporaryDirectory(prefix="ebbflow-") as logs:
        spark = start_session(name, f"local[{threads}]", 0, Path(logs), {})
        try:
            yield spark
        finally:
            stop_session(spark)


def start_session(
    name: str, master: str | None, tasks: int, logs: Path, conf: Mapping[str, str]
) -> SparkSession:
    """Starts Spark with settings that suit resident tasks; ``SetupError`` if it does not start."""
    java_version()
    logs.mkdir(parents=True, exist_ok=True)
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    local = _is_local(master)
    if local:
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    settings = {
        "spark.app.name": f"ebbflow {name}",
        "spark.master": master or f"local[{tasks + _SPARE_SLOTS}]",
        **_settings(logs, local),
        **conf,
    }
    with _own_modules() if local else contextlib.nullcontext():
        return _start(settings, logs / "jvm.log")


@contextlib.contextmanager
def _own_modules() -> Iterator[None]:
    """Lets the workers of a JVM that starts here import what the driver can: a script's modules.

    The path is for them alone. Another Python that this process starts later has its own modules.
    """
    before = os.environ.get(_PYTHON_PATH)
    os.environ[_PYTHON_PATH] = os.pathsep.join(filter(None, map(os.path.abspath, sys.path)))
    try:
        yield
    finally:
        if before is None:
            del os.environ[_PYTHON_PATH]
        else:
            os.environ[_PYTHON_PATH] = before


def _start(settings: Mapping[str, str], log: Path) -> SparkSession:
    from py4j.protocol import Py4JError
    from pyspark import SparkConf, SparkContext
    from pyspark.errors import PySparkException
    from pyspark.sql import SparkSession

    from ebbflow.connectors.spark.vertex_session import root_cause
    from ebbflow.spark import jvm

    conf = SparkConf().setAll(list(settings.items()))
    try:
        jvm.launch(conf, log)
        with _own_signals():
            quieten_accumulators(SparkContext.getOrCreate(conf))
        return SparkSession.builder.config(conf=conf).getOrCreate()
    except (Py4JError, PySparkException, ValueError) as error:
        why = root_cause(error).text
        jvm.end()
        raise jvm.startup_error(why, log) from error
    except BaseException:
        jvm.end()
        raise


def quieten_py4j() -> None:
    """Keeps py4j from logging each call to the JVM, as it does once user code asks for DEBUG.

    A level that the program has set for py4j itself remains.
    """
    logger = logging.getLogger("py4j")
    if logger.level == logging.NOTSET:
        logger.setLevel(logging.WARNING)


def quieten_accumulators(context: SparkContext) -> None:
    """Keeps the server for Spark's accumulators from printing a traceback when its JVM dies."""
    server = getattr(context, "_accumulatorServer", None)
    if server is not None:
        server.handle_error = lambda request, address: None


def _is_local(master: str | None) -> bool:
    return master is None or master.startswith("local")


def _zip_modules(folder: Path, logs: Path) -> str:
    """Packs the Python modules of a folder into one file that Spark can ship."""
    target = logs / "modules.zip"
    with zipfile.ZipFile(target, "w") as archive:
        for path in sorted(folder.rglob("*.py")):
            inside = path.relative_to(folder)
            if not any(part.startswith(".") for part in inside.parts):
                archive.write(path, inside)
    return str(target)


def stop_session(spark: SparkSession) -> None:
    """Stops Spark and waits until its JVM is gone, so that nothing is left running.

    A JVM that has died before is forgotten, so that another session can be started.
    """
    from pyspark import SparkContext

    from ebbflow.spark import jvm

    if SparkContext._gateway is None:
        return  # it was stopped before
    _stop_spark(spark)
    archive = _archive()
    archive.keep(whole=jvm.end(archive.seconds_to_end) == 0)


def _stop_spark(spark: SparkSession) -> None:
    """Stops Spark; if its JVM is gone, clears what PySpark keeps in this process as well."""
    from pyspark.sql import SparkSession

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)  # says that the JVM is gone
            spark.stop()
    except Exception:  # a JVM that is dead cannot stop, and need not
        spark.sparkContext.stop()  # knows now that there is no JVM to tell, and forgets the rest
        SparkSession._instantiatedSession = SparkSession._activeSession = None


def _settings(logs: Path, local: bool) -> dict[str, str]:
    log4j = logs / "log4j2.properties"
    log4j.write_text(_LOG4J.format(log=logs / "spark.log"), encoding="utf-8")
    # The JVM only places tasks; compiling it to the last bit costs start-up time for nothing.
    # One that is out of memory hardly works on; it ends instead, and a new one is started.
    java = "-XX:TieredStopAtLevel=1 -XX:+ExitOnOutOfMemoryError "
    java += f'"-Dlog4j2.configurationFile={log4j.as_uri()}"'
    settings = {
        "spark.driver.extraJavaOptions": java,
        "spark.scheduler.mode": "FAIR",
        "spark.speculation": "false",
        "spark.python.daemon.module": "ebbflow.spark.daemon",
        # As in workers of SQL: for those with another environment Spark starts another daemon.
        "spark.executorEnv.SPARK_SIMPLIFIED_TRACEBACK": "1",
        "spark.python.unix.domain.socket.enabled": "true",
        "spark.sql.catalogImplementation": "in-memory",
        "spark.sql.warehouse.dir": str(logs / "warehouse"),
        "spark.sql.ui.retainedExecutions": "20",
        "spark.ui.retainedJobs": "100",
        "spark.ui.retainedStages": "100",
        "spark.ui.retainedTasks": "1000",
        "spark.ui.showConsoleProgress": "false",
        "spark.ui.enabled": "false",
    }
    settings["spark.driver.extraJavaOptions"] += f" {_archive().java_option()}"
    if local:
        settings |= {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
    return settings


def _archive() -> ClassArchive:
    return ClassArchive(java_version())


@contextlib.contextmanager
def _own_signals() -> Iterator[None]:
    """Keeps our handler of Ctrl-C: Spark's would raise ``KeyboardInterrupt`` wherever we are."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.getsignal(signal.SIGINT)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
