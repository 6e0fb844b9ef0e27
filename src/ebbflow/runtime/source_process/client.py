"""The task's end of the line to its source's process: found if it runs, started if not."""

from __future__ import annotations

import contextlib
import hashlib
import os
import pickle
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from multiprocessing.connection import Client, Connection
from pathlib import Path
from typing import Any

from ebbflow.connectors.spark.pickling import pickle_by_value
from ebbflow.core.blame import Outage
from ebbflow.core.system_errors import LISTED, SystemErrors
from ebbflow.errors import SourceError
from ebbflow.runtime.source_process.protocol import Failed, Order
from ebbflow.schema.literals import Code

_START_WAIT = 30.0


@dataclass(frozen=True, slots=True)
class SourcePlan:
    """A source to be read from. ``limit`` and ``timeout`` (in seconds) are those of one read.

    ``run`` is different for each run of a pipeline: the process of an earlier one is left alone.
    """

    code: Code
    limit: int
    timeout: float
    run: str
    search: str | None = None
    systems: SystemErrors = LISTED


class SourceAway(Exception):
    """The system behind a source is away; the source can be asked again after a while."""

    def __init__(self, outage: Outage) -> None:
        super().__init__(outage)
        self.outage = outage


class Companion:
    """The process of one partition's source. Used by one thread at a time."""

    def __init__(self, plan: SourcePlan, vertex: str, partition: int) -> None:
        self._vertex = vertex
        self._process: subprocess.Popen[bytes] | None = None
        path = _socket_path(f"{plan.run}/{vertex}/{partition}")
        found = _connected(path)
        self._connection = found or self._started(plan, vertex, partition, path)

    def _started(
        self, plan: SourcePlan, vertex: str, partition: int, path: Path
    ) -> Connection[Any, Any]:
        # Spark's own process, which all workers come from: it is there as long as Spark is.
        order = Order(
            vertex,
            partition,
            _pickled(plan.code),
            plan.search,
            sys.path,
            str(path),
            plan.systems,
            os.getppid(),
        )
        self._process = subprocess.Popen(
            [sys.executable, "-m", "ebbflow.runtime.source_process.server"],
            stdin=subprocess.PIPE,
            start_new_session=True,
        )
        assert self._process.stdin is not None
        with self._process.stdin as stdin:
            stdin.write(pickle.dumps(order))
        deadline = time.monotonic() + _START_WAIT
        while time.monotonic() < deadline and self._process.poll() is None:
            if connection := _connected(path):
                return connection
            time.sleep(0.01)
        raise SourceError(vertex, f"its process did not start{self._ended()}")

    def ask(self, method: str, *arguments: Any) -> Any:
        """Call a method in the process and wait for what it returns.

        ``SourceError`` when user code raised there, or when the process has ended; ``SourceAway``
        when user code raised because a system is away.
        """
        try:
            self._connection.send((method, arguments))
            answer = self._connection.recv()
        except (EOFError, OSError) as error:
            raise SourceError(self._vertex, f"its process has ended{self._ended()}") from error
        if isinstance(answer, Failed) and answer.outage is not None:
            raise SourceAway(answer.outage)
        if isinstance(answer, Failed):
            raise SourceError(self._vertex, answer.what, answer.trace)
        return answer

    def _ended(self) -> str:
        if self._process is None:
            return ""
        with contextlib.suppress(subprocess.TimeoutExpired):
            code = self._process.wait(1)
            return f" with signal {-code}" if code < 0 else f" with exit code {code}"
        return ""

    def close(self, for_good: bool) -> None:
        """Leave the process to the next task, or end it."""
        with contextlib.suppress(SourceError):
            if for_good:
                self.ask("end")
        self._connection.close()
        if for_good and self._process is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(5)


def _connected(path: Path) -> Connection[Any, Any] | None:
    try:
        return Client(str(path), "AF_UNIX")
    except (FileNotFoundError, ConnectionRefusedError):
        return None


def _socket_path(name: str) -> Path:
    """A short path, for that of a socket may not be long, in a folder that is only ours."""
    folder = Path(tempfile.gettempdir()) / f"ebbflow-sources-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    if folder.stat().st_uid != os.getuid():
        raise SourceError(name, f"{folder} belongs to somebody else; remove it or set TMPDIR")
    return folder / hashlib.blake2b(name.encode(), digest_size=12).hexdigest()


def _pickled(code: Code) -> bytes:
    return pickle.dumps(code) if isinstance(code, str) else pickle_by_value(code)
