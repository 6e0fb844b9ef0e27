"""The Spark session of a run: measured settings, and a JVM that prints nothing to the terminal.

Spark logs to ``spark.log`` in the state folder, and its JVM prints to ``jvm.log``. In local mode
everything binds to the loopback interface. User settings (``--conf``) take precedence over ours.

**Ahead of time.** ``start_ahead`` starts the JVM, and the process that workers are forked from,
before the session is opened, so that a run can prepare its streams meanwhile.
"""

from __future__ import annotations

import atexit
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
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from ebbflow.domain.errors import SetupError
from ebbflow.spark.daemon import preload
from ebbflow.spark.jvm import SMALL, ClassArchive, StartingJvm, has_jvm

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

OLDEST_JAVA = 17
# Slots beyond the tasks, so that a vertex that restarts never waits for another task to end.
_SPARE_SLOTS = 2
# A session that later runs reuse has slots for larger pipelines. A free slot costs nothing.
WARM_TASKS = 16
_ASKING = 30.0
_PYTHON_PATH = "PYTHONPATH"
# Megabytes for a JVM that only places tasks, and for each task. About 30 MB remain in use.
_SCHEDULING, _FOR_A_TASK = 128, 1
_RESERVED = 32 * 1024 * 1024
_MEMORY = {"spark.driver.memory", "spark.driver.extraJavaOptions"}

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
    version = _read_version(java) or _ask_version(java)
    if version is None:
        raise SetupError(f"{java} does not say which version of Java it is.", f"{advice}.")
    if version < OLDEST_JAVA:
        raise SetupError(f"Spark needs Java {OLDEST_JAVA}, and {java} is {version}.", f"{advice}.")
    return version


def _read_version(java: str) -> int | None:
    """Returns the version from a file next to Java, as starting Java takes 100 ms."""
    try:
        written = (Path(java).resolve().parents[1] / "release").read_text(errors="replace")
    except OSError:
        return None
    match = re.search(r'^JAVA_VERSION="(?:1\.)?(\d+)', written, re.M)
    return int(match[1]) if match else None


def _ask_version(java: str) -> int | None:
    try:
        answer = subprocess.run(
            [java, "-version"],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_ASKING,
            start_new_session=True,  # so that Ctrl-C does not make Java seem broken
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    match = re.search(r'version "(?:1\.)?(\d+)', answer.stderr)
    return int(match[1]) if match else None


def active_session() -> SparkSession | None:
    """Returns the active session of this process, if there is one."""
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    if SparkContext._active_spark_context is None:
        return None
    # It may exist, but be active in another thread.
    return SparkSession.getActiveSession() or SparkSession.builder.getOrCreate()


@dataclass(frozen=True, slots=True)
class SessionPlan:
    """What a pipeline needs from Spark. ``tasks`` run at once.

    ``schedules`` if the JVM only places tasks: no SQL, no DataFrame, no table to read or write. In
    local mode it then has little memory, unless ``conf`` says otherwise.
    """

    name: str
    master: str | None
    tasks: int
    logs: Path
    conf: Mapping[str, str] = field(default_factory=dict)
    schedules: bool = False

    @property
    def is_local(self) -> bool:
        """True if everything runs on this machine, in one JVM."""
        return self.master is None or self.master.startswith("local")

    @property
    def is_small(self) -> bool:
        """True if its JVM has little memory."""
        return self.schedules and self.is_local and not _MEMORY & self.conf.keys()

    @property
    def archive(self) -> ClassArchive:
        """The classes that its JVM loads."""
        return ClassArchive(java_version(), self.schedules and self.is_local)

    def suits(self, other: SessionPlan) -> bool:
        """Returns whether a session that was started for this plan also fits another one."""
        alike = self.master == other.master and self.conf == other.conf
        has_memory = other.schedules or not self.schedules
        return alike and has_memory and self.tasks >= other.tasks

    def settings(self) -> dict[str, str]:
        """Returns all of Spark's settings for the plan, including the user's."""
        return {
            "spark.app.name": f"ebbflow {self.name}",
            "spark.master": self.master or f"local[{self.tasks + _SPARE_SLOTS}]",
            **_settings(self),
            **self.conf,
        }


class SessionAhead:
    """A JVM that is starting for a plan, and the process that its workers are forked from."""

    def __init__(self, plan: SessionPlan, preloads: bool = True) -> None:
        self._stack = contextlib.ExitStack()
        self.settings = _prepare(plan)
        with _driver_modules() if plan.is_local else contextlib.nullcontext():
            self._jvm = self._start(plan, preloads)

    def _start(self, plan: SessionPlan, preloads: bool) -> StartingJvm | None:
        if preloads and plan.is_local:
            self._stack.enter_context(preload())
        try:
            return None if has_jvm() else StartingJvm(self.settings, _jvm_log(plan))
        except BaseException:
            self._stack.close()
            raise

    def connect(self) -> contextlib.ExitStack:
        """Waits for the JVM; returns the resources to close after it."""
        jvm, self._jvm = self._jvm, None
        stack = self._stack.pop_all()
        try:
            if jvm is not None:
                jvm.connect()
        except BaseException:
            stack.close()
            raise
        return stack

    def close(self) -> None:
        """Ends the JVM and its worker process if no session was opened on them."""
        if self._jvm is not None:
            self._jvm.kill()
        self._stack.close()


def start_ahead(plan: SessionPlan) -> SessionAhead | None:
    """Starts the JVM for ``open_session``; ``None`` if the program has its own session."""
    return None if active_session() is not None else SessionAhead(plan)


def is_users_session() -> bool:
    """Returns whether the current session was started by the user's program and not by a run."""
    return active_session() is not None and _KEPT.session is None


@contextlib.contextmanager
def open_session(
    plan: SessionPlan,
    modules: Path | None = None,
    ahead: SessionAhead | None = None,
    keep: bool = False,
) -> Iterator[SparkSession]:
    """Opens Spark for a pipeline: the active session, or a new one.

    ``modules`` is the folder of the user's code, which is sent to workers on other machines.
    ``ahead`` is what ``start_ahead`` has started, if anything. ``keep`` leaves a local session to
    the next run, which then starts within a second.
    """
    quieten_py4j()
    _KEPT.stop_unless_suitable(plan)
    if (active := active_session()) is not None:
        with _KEPT.dropped_on_error():
            yield active
        return
    spark, stack = _start(ahead or SessionAhead(plan), plan)
    with stack:
        stack.callback(stop_session, spark, plan)
        if modules is not None and not plan.is_local:
            spark.sparkContext.addPyFile(_zip_modules(modules, plan.logs))
        yield spark
        if keep and plan.master is None:
            _KEPT.keep(spark, plan, stack.pop_all())


class _KeptSession:
    """The session that a run has left to the next run of this process; stopped at its exit."""

    def __init__(self) -> None:
        self.session: SparkSession | None = None
        self._plan: SessionPlan | None = None
        self._opened: contextlib.ExitStack | None = None

    def keep(self, session: SparkSession, plan: SessionPlan, opened: contextlib.ExitStack) -> None:
        """Keeps a session and the resources that were opened for it."""
        self.session, self._plan, self._opened = session, plan, opened
        atexit.register(self.stop)

    def stop_unless_suitable(self, plan: SessionPlan) -> None:
        """Stops the session if it does not suit the next run, or is no longer active."""
        if self._plan is None:
            return
        if not self._plan.suits(plan) or active_session() is not self.session:
            self.stop()

    @contextlib.contextmanager
    def dropped_on_error(self) -> Iterator[None]:
        """Stops the session if a run ends with an error, because its JVM may have died."""
        try:
            yield
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """Stops the session, if there is one."""
        opened, self._opened, self.session, self._plan = self._opened, None, None, None
        if opened is not None:
            atexit.unregister(self.stop)
            opened.close()


_KEPT = _KeptSession()


@contextlib.contextmanager
def open_local_session(name: str, threads: int = 2) -> Iterator[SparkSession]:
    """Opens Spark here for a command that reads a table: the active session, or a new one.

    The logs of a new session are discarded.
    """
    active = active_session()
    if active is not None:
        yield active
        return
    with tempfile.TemporaryDirectory(prefix="ebbflow-") as logs:
        plan = SessionPlan(name, f"local[{threads}]", 0, Path(logs))
        spark = start_session(plan)
        try:
            yield spark
        finally:
            stop_session(spark, plan)


def start_session(plan: SessionPlan) -> SparkSession:
    """Starts Spark with settings that suit resident tasks; ``SetupError`` if it does not start."""
    spark, _ = _start(SessionAhead(plan, preloads=False), plan)
    return spark


def _prepare(plan: SessionPlan) -> dict[str, str]:
    """Prepares this process for Spark and returns all settings."""
    java_version()
    plan.logs.mkdir(parents=True, exist_ok=True)
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    if plan.is_local:
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    return plan.settings()


@contextlib.contextmanager
def _driver_modules() -> Iterator[None]:
    """Lets workers of a JVM that starts here import the driver's modules, such as a script's.

    The path applies only to them and not to other Python processes that are started later.
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


def _jvm_log(plan: SessionPlan) -> Path:
    return plan.logs / "jvm.log"


def _start(ahead: SessionAhead, plan: SessionPlan) -> tuple[SparkSession, contextlib.ExitStack]:
    """Opens a session on the JVM that was started ahead; also returns the resources to close."""
    from py4j.protocol import Py4JError
    from pyspark import SparkConf, SparkContext
    from pyspark.errors import PySparkException
    from pyspark.sql import SparkSession

    from ebbflow.connectors.spark.vertex_session import root_cause
    from ebbflow.spark import jvm

    stack = ahead.connect()
    try:
        conf = SparkConf().setAll(list(ahead.settings.items()))
        with _keeping_signals():
            context = SparkContext.getOrCreate(conf)
        quieten_accumulators(context)
        # The builder would make the JVM load all of SQL to apply settings that are already set.
        return SparkSession(context), stack
    except (Py4JError, PySparkException, ValueError) as error:
        why = root_cause(error).text  # this asks the JVM, so it comes before the JVM ends
        jvm.end()
        stack.close()
        raise jvm.startup_error(why, _jvm_log(plan)) from error
    except BaseException:
        jvm.end()
        stack.close()
        raise


def quieten_py4j() -> None:
    """Keeps py4j from logging each call to the JVM, which it would do if user code enables DEBUG.

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


def _zip_modules(folder: Path, logs: Path) -> str:
    """Packs the Python modules of a folder into one file for Spark to ship."""
    target = logs / "modules.zip"
    with zipfile.ZipFile(target, "w") as archive:
        for path in sorted(folder.rglob("*.py")):
            inside = path.relative_to(folder)
            if not any(part.startswith(".") for part in inside.parts):
                archive.write(path, inside)
    return str(target)


def stop_session(spark: SparkSession, plan: SessionPlan) -> None:
    """Stops Spark and waits until its JVM is gone, so that no process is left running.

    References to a JVM that has died are cleared, so that another session can be started.
    """
    from pyspark import SparkContext

    from ebbflow.spark import jvm

    if SparkContext._gateway is None:
        return  # it was stopped before
    _stop_spark(spark)
    archive = plan.archive
    archive.keep(whole=jvm.end(archive.seconds_to_end) == 0)


def _stop_spark(spark: SparkSession) -> None:
    """Stops Spark; if its JVM is gone, clears PySpark's state in this process as well."""
    from pyspark.sql import SparkSession

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)  # says that the JVM is gone
            spark.stop()
    except Exception:  # the JVM is already dead
        spark.sparkContext.stop()  # finds no JVM now, and clears the rest
        SparkSession._instantiatedSession = SparkSession._activeSession = None


def _settings(plan: SessionPlan) -> dict[str, str]:
    log4j = plan.logs / "log4j2.properties"
    log4j.write_text(_LOG4J.format(log=plan.logs / "spark.log"), encoding="utf-8")
    # The JVM only places tasks, so fully optimised code would cost start-up time for nothing.
    # A JVM that is out of memory hardly works, so it exits and a new one is started.
    java = "-XX:TieredStopAtLevel=1 -XX:+ExitOnOutOfMemoryError "
    java += f'"-Dlog4j2.configurationFile={log4j.as_uri()}" {plan.archive.java_option()}'
    settings = {
        "spark.driver.extraJavaOptions": java,
        "spark.scheduler.mode": "FAIR",
        "spark.speculation": "false",
        "spark.python.daemon.module": "ebbflow.spark.daemon",
        # The same as for workers of SQL, since Spark starts another daemon if environments differ.
        "spark.executorEnv.SPARK_SIMPLIFIED_TRACEBACK": "1",
        "spark.python.unix.domain.socket.enabled": "true",
        "spark.sql.catalogImplementation": "in-memory",
        "spark.sql.warehouse.dir": str(plan.logs / "warehouse"),
        "spark.sql.ui.retainedExecutions": "20",
        "spark.ui.retainedJobs": "100",
        "spark.ui.retainedStages": "100",
        "spark.ui.retainedTasks": "1000",
        "spark.ui.showConsoleProgress": "false",
        "spark.ui.enabled": "false",
    }
    if plan.is_local:
        settings |= {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
    return _shrink(settings, plan.tasks) if plan.is_small else settings


def _shrink(settings: dict[str, str], tasks: int) -> dict[str, str]:
    """Returns the settings for a JVM with little memory, which Spark would refuse by default."""
    return settings | {
        "spark.driver.memory": f"{_SCHEDULING + _FOR_A_TASK * tasks}m",
        "spark.driver.extraJavaOptions": f"{settings['spark.driver.extraJavaOptions']} {SMALL}",
        # Spark reserves 300 MB by default, and refuses to start with less than 1.5 times as much.
        # This JVM holds no data.
        "spark.testing.reservedMemory": str(_RESERVED),
        "spark.rpc.netty.dispatcher.numThreads": "2",
        "spark.rpc.io.threads": "2",
    }


@contextlib.contextmanager
def _keeping_signals() -> Iterator[None]:
    """Keeps our handler of Ctrl-C, as Spark's would raise ``KeyboardInterrupt`` anywhere."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.getsignal(signal.SIGINT)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
