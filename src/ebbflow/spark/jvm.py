"""The JVM of a run: started, and ended, by the driver alone.

It has a session of its own and ignores what asks a process to end, so that of a signal to everybody
(Ctrl-C, a closed terminal, a service manager) only the driver hears, which then stops in order.
It ends with the driver, however that ends: its standard input is a pipe that the driver holds.
PySpark's own way to start it can do neither, and waits for ever for a Java that ends at once.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import shlex
import signal
import struct
import subprocess
import tempfile
import time
from pathlib import Path
from typing import IO, Any

from py4j import java_gateway
from pyspark import SparkConf, SparkContext
from pyspark.find_spark_home import _find_spark_home
from pyspark.java_gateway import launch_gateway

from ebbflow.domain.errors import SetupError

_LOOK_EVERY = 0.05
_PORT, _SECRET = "PYSPARK_GATEWAY_PORT", "PYSPARK_GATEWAY_SECRET"
_HEAD = struct.Struct(">ii")  # the port, and how long the secret is that follows
_IGNORED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_THROWN = re.compile(r'^Exception in thread "main" (?:[\w.$]+: )?(?:\[[\w.]+] )?(.+)$', re.M)
_NOISE = re.compile(r"\s|WARNING|Picked up |Using Spark's |Error: (?:Could not create|A fatal)|$")


def launch(conf: SparkConf, log: Path) -> None:
    """Starts a JVM for Spark to use; what it prints goes to the log.

    Does nothing if there is one, as in a program that ``spark-submit`` has started. ``SetupError``
    with its own words if it ends before it is ready.
    """
    if SparkContext._gateway is not None or _PORT in os.environ:
        return
    with open(log, "ab") as output, tempfile.TemporaryDirectory(prefix="ebbflow-jvm-") as folder:
        handshake = Path(folder) / "gateway"
        before = output.tell()
        process = _start_process(conf, output, handshake)
        try:
            port, secret = _await_gateway(process, handshake)
            _connect(process, port, secret)
        except EOFError:
            raise _read_startup_error(process.wait(), log, before) from None
        except BaseException:
            process.kill()
            raise


def end(within: float = 30.0) -> int | None:
    """Ends the JVM that was launched, waits until it is gone and returns its exit code, if any.

    One that takes more seconds than ``within`` is killed.
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


def _start_process(conf: SparkConf, output: IO[bytes], handshake: Path) -> subprocess.Popen[bytes]:
    command = [os.path.join(_find_spark_home(), "bin", "spark-submit")]
    for key, value in conf.getAll():
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
    """Waits for the port of the JVM and the secret for it; ``EOFError`` if it has ended."""
    while not handshake.is_file():
        if process.poll() is not None:
            raise EOFError
        time.sleep(_LOOK_EVERY)
    port, length = _HEAD.unpack_from(info := handshake.read_bytes())
    return port, info[_HEAD.size : _HEAD.size + length].decode()


def is_not_of_py4j(record: logging.LogRecord) -> bool:
    """Whether Py4J has not logged it: a JVM that is gone is reported in a sentence of ours.

    Py4J logs a traceback for each call that it interrupts, and to the root logger, which prints it.
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
    """Has PySpark's converters of NumPy values asked about such values alone.

    Asked about anything, they import pandas first: half a second of every start, in which the JVM
    waits.
    """
    converters = gateway._gateway_client.converters
    converters[:] = [
        OnlyNumpy(converter) if type(converter).__name__.startswith("Numpy") else converter
        for converter in converters
    ]


class OnlyNumpy:
    """A converter of PySpark's for NumPy values, which is asked about no other values."""

    def __init__(self, converter: Any) -> None:
        self._converter = converter

    def can_convert(self, value: object) -> bool:
        """Returns whether it converts the value."""
        kinds = type(value).__mro__
        return any(kind.__module__ == "numpy" for kind in kinds) and bool(
            self._converter.can_convert(value)
        )

    def convert(self, value: object, client: Any) -> Any:
        """Returns the value as the JVM knows it."""
        return self._converter.convert(value, client)


def _read_startup_error(code: int, log: Path, before: int) -> SetupError:
    with open(log, "rb") as file:
        file.seek(before)
        said = file.read().decode(errors="replace")
    return startup_error(_find_reason(said) or f"Java ended with code {code} and said nothing", log)


def startup_error(why: str, log: Path) -> SetupError:
    """Returns the error for a Spark that did not start; ``why`` is in Java's words or Spark's."""
    return SetupError(
        f"Spark did not start: {why.rstrip('.')}.",
        f"Correct --master, --conf or Java; all that Spark said is in {log}.",
    )


def _find_reason(said: str) -> str | None:
    """Returns the line that says what is wrong, of all that was printed."""
    if thrown := _THROWN.search(said):
        return thrown[1]
    lines = (line.rstrip() for line in said.splitlines())
    return next((line for line in lines if not _NOISE.match(line)), None)
