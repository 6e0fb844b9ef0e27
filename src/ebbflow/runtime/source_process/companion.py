"""Connects a task to its source's process, and starts the process if it is not running."""

from __future__ import annotations

import contextlib
import hashlib
import os
import pickle
import socket
import stat
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

from ebbflow.domain.code import CONTAINER_TYPE, Code, Variables, expand_all
from ebbflow.domain.errors import SourceError
from ebbflow.engine.system_errors import LISTED, SystemErrors
from ebbflow.runtime.source_process.protocol import FromSource, Line, Order, ToSource
from ebbflow.usercode.poison import pickle_by_value

COLUMNS_LIMIT = 8_000
"""The default for the most rows of one read from a source that returns columns.

More than for other sources: a read costs the same for any number of rows.
"""

_START_WAIT = 30.0


@dataclass(frozen=True, slots=True)
class SourcePlan:
    """A source to read from. ``limit`` and ``timeout`` (in seconds) are those of one read.

    ``columns_limit`` is the limit of a source that returns columns. ``run`` is different for each
    run of a pipeline: the process of an earlier run is left alone. ``env`` are the variables of the
    source's container, which its process gets.
    """

    code: Code
    limit: int
    timeout: float
    run: str
    columns_limit: int = COLUMNS_LIMIT
    search: str | None = None
    systems: SystemErrors = LISTED
    env: Variables = field(default=(), repr=False)


class Companion:
    """The process of one partition's source. One thread may send while another receives."""

    def __init__(self, plan: SourcePlan, vertex: str, partition: int) -> None:
        self._vertex = vertex
        self._process: subprocess.Popen[bytes] | None = None
        path = _socket_path(f"{plan.run}/{vertex}/{partition}")
        self._line = _connect(path) or self._start(plan, vertex, partition, path)

    def _start(self, plan: SourcePlan, vertex: str, partition: int, path: Path) -> Line:
        order = Order(
            vertex,
            partition,
            _pickle_code(plan.code),
            plan.search,
            sys.path,
            str(path),
            plan.systems,
            # Spark's own process, the parent of all workers: it lives as long as Spark.
            os.getppid(),
            plan.limit,
            plan.columns_limit,
            plan.timeout,
        )
        self._process = subprocess.Popen(
            [sys.executable, "-m", "ebbflow.runtime.source_process.program"],
            stdin=subprocess.PIPE,
            start_new_session=True,
            env=_environment(plan),
        )
        assert self._process.stdin is not None
        with self._process.stdin as stdin:
            stdin.write(pickle.dumps(order))
        deadline = time.monotonic() + _START_WAIT
        while time.monotonic() < deadline and self._process.poll() is None:
            if line := _connect(path):
                return line
            time.sleep(0.01)
        raise SourceError(vertex, f"its process did not start{self._ended()}")

    def send(self, request: ToSource) -> None:
        """Returns when the request is in flight; ``SourceError`` if the process has ended."""
        try:
            self._line.send(request)
        except OSError as error:
            raise SourceError(self._vertex, f"its process has ended{self._ended()}") from error

    def receive(self) -> FromSource:
        """Waits for the next answer; ``SourceError`` if the process has ended."""
        try:
            answer: FromSource = self._line.receive()
        except (EOFError, OSError) as error:
            raise SourceError(self._vertex, f"its process has ended{self._ended()}") from error
        return answer

    def _ended(self) -> str:
        if self._process is None:
            return ""
        with contextlib.suppress(subprocess.TimeoutExpired):
            code = self._process.wait(1)
            return f" with signal {-code}" if code < 0 else f" with exit code {code}"
        return ""

    def hang_up(self) -> None:
        """Leaves the process to the next task, unless it has been asked to end."""
        self._process = None
        self._line.close()

    def wait(self) -> None:
        """Waits up to five seconds for the process to end, if this task has started it."""
        if self._process is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(5)


def _environment(plan: SourcePlan) -> dict[str, str]:
    """Returns the variables of the process, including Numaflow's for the limits of reads."""
    described = os.environ | {
        CONTAINER_TYPE: "udsource",
        "NUMAFLOW_READ_BATCH_SIZE": str(plan.limit),
        "NUMAFLOW_READ_TIMEOUT_MS": str(round(plan.timeout * 1000)),
    }
    return described | expand_all(plan.env, described)


def _connect(path: Path) -> Line | None:
    end = socket.socket(socket.AF_UNIX)
    try:
        end.connect(str(path))
    except (FileNotFoundError, ConnectionRefusedError):
        end.close()
        return None
    return Line(end)


def _socket_path(name: str) -> Path:
    """Returns a short path, as a socket requires, in a private folder of this user."""
    folder = Path(tempfile.gettempdir()) / f"ebbflow-sources-{os.getuid()}"
    with contextlib.suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    # Another user may have created it first, for example as a link to another folder of this user.
    facts = folder.lstat()
    if not stat.S_ISDIR(facts.st_mode) or facts.st_uid != os.getuid():
        raise SourceError(name, f"{folder} is not a folder of this user; remove it or set TMPDIR")
    return folder / hashlib.blake2b(name.encode(), digest_size=12).hexdigest()


def _pickle_code(code: Code) -> bytes:
    return pickle.dumps(code) if isinstance(code, str) else pickle_by_value(code)
