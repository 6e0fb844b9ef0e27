"""The JVM of a run: started, and ended, by the driver alone.

It has its own session and ignores termination signals. So if a signal goes to all processes
(Ctrl-C, a closed terminal, a service manager), only the driver reacts and stops gracefully. The JVM
ends with the driver, however that ends: its standard input is a pipe that the driver holds.
PySpark's own launcher can do neither, and waits forever if Java ends at once.

The classes that it has loaded are kept for the next start (``ClassArchive``). With them Spark
starts in a third of the time and with a third of the CPU work.

**Memory.** A JVM that only places tasks needs little: ``SMALL`` has the options for it.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import re
import shlex
import signal
import struct
import subprocess
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

import pyspark.version
from py4j import java_gateway
from pyspark import SparkContext
from pyspark.find_spark_home import _find_spark_home
from pyspark.java_gateway import launch_gateway

from ebbflow.domain.errors import SetupError

_LOOK_EVERY = 0.05
_PORT, _SECRET = "PYSPARK_GATEWAY_PORT", "PYSPARK_GATEWAY_SECRET"
_HEAD = struct.Struct(">ii")  # the port, and the length of the secret that follows
_IGNORED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_THROWN = re.compile(r'^Exception in thread "main" (?:[\w.$]+: )?(?:\[[\w.]+] )?(.+)$', re.M)
_NOISE = re.compile(r"\s|WARNING|Picked up |Using Spark's |Error: (?:Could not create|A fatal)|$")
_UNUSED = 30 * 86_400.0
# Writing the archive takes a JVM 15 seconds of work. If it is killed halfway, nothing is written,
# and the next one starts over: with a short limit, a busy machine might never get an archive.
_WRITTEN_WITHIN = 300.0
_ENDED_WITHIN = 30.0
_QUIET = "-Xlog:cds=off"
# By default, Java relocates an archive to a random address. That rewrites all of its pages at each
# start: half a second of work, and 85 MB that no other process can share.
_IN_PLACE = "-XX:+UnlockDiagnosticVMOptions -XX:ArchiveRelocationMode=0"

# Collects early and returns pages, compiles in one thread, and keeps stacks and code small.
SMALL = (
    "-Xms16m -Xmn12m -XX:MinHeapFreeRatio=10 -XX:MaxHeapFreeRatio=20 -Xss512k "
    "-XX:ReservedCodeCacheSize=32m -XX:CICompilerCount=1"
)


def has_jvm() -> bool:
    """Returns whether there already is a JVM, as in a program that ``spark-submit`` has started."""
    return SparkContext._gateway is not None or _PORT in os.environ


class StartingJvm:
    """A JVM that is starting, for Spark to use; its output goes to the log."""

    def __init__(self, settings: Mapping[str, str], log: Path) -> None:
        self._log = log
        self._folder = tempfile.TemporaryDirectory(prefix="ebbflow-jvm-")
        self._handshake = Path(self._folder.name) / "gateway"
        with open(log, "ab") as output:
            self._before = output.tell()
            self._process = _start_process(settings, output, self._handshake)

    def connect(self) -> None:
        """Waits until it is ready; ``SetupError`` with its own message if it ends before."""
        try:
            port, secret = _await_gateway(self._process, self._handshake)
            _connect(self._process, port, secret)
        except EOFError:
            raise _read_startup_error(self._process.wait(), self._log, self._before) from None
        except BaseException:
            self._process.kill()
            raise
        finally:
            self._folder.cleanup()

    def kill(self) -> None:
        """Kills a JVM that is not needed after all."""
        self._process.kill()
        self._process.wait()
        self._folder.cleanup()


def end(within: float = 30.0) -> int | None:
    """Ends the JVM that was launched, waits until it is gone and returns its exit code, if any.

    After ``within`` seconds it is killed.
    """
    gateway, SparkContext._gateway, SparkContext._jvm = SparkContext._gateway, None, None
    process: subprocess.Popen[bytes] | None = getattr(gateway, "proc", None)
    if gateway is None or process is None:
        return None
    with contextlib.suppress(Exception):  # it may be gone already
        gateway.shutdown()
    assert process.stdin is not None
    with contextlib.suppress(OSError):
        process.stdin.close()
    try:
        return process.wait(within)
    except subprocess.TimeoutExpired:
        process.kill()
        return process.wait()


def _start_process(
    settings: Mapping[str, str], output: IO[bytes], handshake: Path
) -> subprocess.Popen[bytes]:
    command = [os.path.join(_find_spark_home(), "bin", "spark-submit")]
    for key, value in settings.items():
        command += ["--conf", f"{key}={value}"]
    command += shlex.split(os.environ.get("PYSPARK_SUBMIT_ARGS", "pyspark-shell"))
    env = {"SPARK_CONNECT_MODE": "0", "_PYSPARK_DRIVER_CONN_INFO_PATH": str(handshake)}
    return subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=output,
        stderr=output,
        env={**os.environ, **env},
        start_new_session=True,
        preexec_fn=_ignore_signals,
    )


def _ignore_signals() -> None:
    for number in _IGNORED:
        signal.signal(number, signal.SIG_IGN)


def _await_gateway(process: subprocess.Popen[bytes], handshake: Path) -> tuple[int, str]:
    """Waits for the port and the secret of the JVM; ``EOFError`` if it has ended."""
    while not handshake.is_file():
        if process.poll() is not None:
            raise EOFError
        time.sleep(_LOOK_EVERY)
    port, length = _HEAD.unpack_from(info := handshake.read_bytes())
    return port, info[_HEAD.size : _HEAD.size + length].decode()


def is_not_of_py4j(record: logging.LogRecord) -> bool:
    """Returns whether a record is not Py4J's. Ebbflow itself reports a JVM that is gone.

    Py4J logs a traceback for each interrupted call to the root logger, which prints it.
    """
    return bool(record.pathname != java_gateway.__file__)


def _connect(process: subprocess.Popen[bytes], port: int, secret: str) -> None:
    os.environ[_PORT], os.environ[_SECRET] = str(port), secret
    try:
        gateway: Any = launch_gateway()  # type: ignore[no-untyped-call]
    finally:
        del os.environ[_PORT], os.environ[_SECRET]
    gateway.proc = process
    logging.getLogger().addFilter(is_not_of_py4j)
    _narrow_numpy_converters(gateway)
    SparkContext._ensure_initialized(gateway=gateway)


def _narrow_numpy_converters(gateway: Any) -> None:
    """Limits PySpark's converters of NumPy values to such values.

    For any value they import pandas first, which costs every start half a second while the JVM
    waits.
    """
    converters = gateway._gateway_client.converters
    converters[:] = [
        OnlyNumpy(converter) if type(converter).__name__.startswith("Numpy") else converter
        for converter in converters
    ]


class OnlyNumpy:
    """Wraps PySpark's converter of NumPy values so that it only sees such values."""

    def __init__(self, converter: Any) -> None:
        self._converter = converter

    def can_convert(self, value: object) -> bool:
        """Returns whether it converts the value."""
        kinds = type(value).__mro__
        return any(kind.__module__ == "numpy" for kind in kinds) and bool(
            self._converter.can_convert(value)
        )

    def convert(self, value: object, client: Any) -> Any:
        """Returns the value as a Java object."""
        return self._converter.convert(value, client)


def _read_startup_error(code: int, log: Path, before: int) -> SetupError:
    with open(log, "rb") as file:
        file.seek(before)
        text = file.read().decode(errors="replace")
    return startup_error(_find_reason(text) or f"Java ended with code {code} and said nothing", log)


def startup_error(why: str, log: Path) -> SetupError:
    """Returns the error for a Spark that did not start; ``why`` is Java's or Spark's message."""
    return SetupError(
        f"Spark did not start: {why.rstrip('.')}.",
        f"Correct --master, --conf or Java; Spark's output is in {log}.",
    )


def _find_reason(text: str) -> str | None:
    """Returns the line of the output that says what is wrong."""
    if thrown := _THROWN.search(text):
        return thrown[1]
    lines = (line.rstrip() for line in text.splitlines())
    return next((line for line in lines if not _NOISE.match(line)), None)


class ClassArchive:
    """The archive of this process's JVM, written by the first run and used by later ones.

    The user's cache folder has one file for each installed Spark and version of Java: the JVM only
    accepts an archive of the same jars at the same path. A JVM that only ``schedules`` has its own
    archive of half the size, because each page of it that is touched costs the run memory. The file
    is written under another name and moved into place when complete, so that a killed JVM leaves no
    broken archive. An archive that was not used for a month is removed.
    """

    def __init__(self, java: int, schedules: bool = False) -> None:
        cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
        self._folder = cache / "ebbflow"
        home = os.environ.get("SPARK_HOME") or str(pyspark.version.__file__)
        place = hashlib.sha256(home.encode()).hexdigest()[:8]
        version = pyspark.version.__version__
        kind = "-tasks" if schedules else ""
        self._file = self._folder / f"spark-{version}-java-{java}-{place}{kind}.jsa"
        self._draft = f"{self._file}.{os.getpid()}"

    def java_option(self) -> str:
        """Returns the options with which the JVM uses the archive, or writes a first one."""
        if self._file.exists():
            with contextlib.suppress(OSError):
                os.utime(self._file)  # in use
            # An archive is valid for one collector only; the serial one suits a small driver best.
            return f'-XX:+UseSerialGC {_IN_PLACE} "-XX:SharedArchiveFile={self._file}" {_QUIET}'
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
        except OSError:
            return "-XX:+UseSerialGC"
        return f'-XX:+UseSerialGC "-XX:ArchiveClassesAtExit={self._draft}" {_QUIET}'

    @property
    def seconds_to_end(self) -> float:
        """The seconds that a JVM may take to end: more if it writes the archive."""
        return _ENDED_WITHIN if self._file.exists() else _WRITTEN_WITHIN

    def keep(self, whole: bool) -> None:
        """Moves the archive of this process's JVM into place once it has ended, or deletes it."""
        with contextlib.suppress(OSError):
            os.replace(self._draft, self._file) if whole else os.unlink(self._draft)
            self._remove_unused()

    def _remove_unused(self) -> None:
        for archive in self._folder.glob("spark-*.jsa*"):
            if time.time() - archive.stat().st_mtime > _UNUSED:
                archive.unlink(missing_ok=True)
