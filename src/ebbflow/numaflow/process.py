"""Function processes: started next to the task that calls them, supervised and stopped.

A ``FunctionPlan`` says what to start, or where a function is running already. A ``FunctionProcess``
starts it on a worker with its own folder of sockets, so that any number of vertices and partitions
share a machine without conflict. It does so through a launcher (see ``launcher``), which ends the
function with its worker even if the worker is killed. The function's output is shown like that of
user code; its last lines are part of the error if the function does not start.

The function gets the environment of the worker, in which Numaflow's variables name its vertex, and
the variables of its container. It does not get the variables of Spark and Ebbflow, which include
secrets. In a Docker container, the folder of the sockets is mounted where SDKs listen. The values
of variables are passed in the environment of Docker's client and not on its command line, which
every user of the machine can read.
"""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from functools import cache
from pathlib import Path
from typing import IO, Any, TypeVar

from ebbflow.domain.code import CONTAINER_TYPE, Variables, expand, expand_all
from ebbflow.domain.errors import SetupError, Unavailable
from ebbflow.domain.host import is_linux, keep_private
from ebbflow.numaflow import launcher
from ebbflow.numaflow.launcher import PLACE
from ebbflow.numaflow.server_info import (
    ServerInfo,
    check_server_info,
    lock_folder,
    make_folder,
    read_server_info,
    remove_folder,
    socket_path,
)
from ebbflow.numaflow.services import ContainerType
from ebbflow.usercode.printing import LONGEST, cut

BATCH_ROWS = 500
"""The default for the most messages that a sink receives or a source is asked for at a time.

The same as in Numaflow, since functions are written for that.
"""

START_LIMIT = 60.0
"""The seconds that a function may take to become ready."""

SOCKETS = "EBBFLOW_SOCKETS"
"""The variable with the folder of the sockets, for functions that can listen anywhere."""

_RUNNING_LIMIT = 5.0
_STOP_GRACE, _RESTART_GRACE = 5.0, 1.0
_SOON, _LATER = 0.01, 0.1
_LONGEST_WAIT = 30
_LONGEST_SHOWN = 80
_KEPT, _SHOWN, _LONGEST = 200, 10, 2_000
_PATIENCE = 20.0
_OURS = ("EBBFLOW_", "SPARK_", "PYSPARK_", "_PYSPARK_", "PYTHON_")
_SET_BY_SPARK = ("OMP_NUM_THREADS", "PYTHONHASHSEED")
_PYTHON_PATH = "PYTHONPATH"
T = TypeVar("T")
_failures: dict[FunctionPlan, int] = {}
"""How often in a row a function has failed to start. Kept here, as each try has a new process."""


@dataclass(frozen=True, slots=True)
class FunctionPlan:
    """A function that is called over Numaflow's protocol. Plain data, shipped to workers.

    ``command`` with ``args`` is started next to the task, or ``folder`` has the sockets of a
    function that is running already; with ``docker`` the ``image`` itself runs. All of these and
    ``env`` may refer to variables as in Kubernetes, ``$(NAME)``; they are expanded when the
    function starts. Facts about the vertex are not here but in Numaflow's variables in the worker's
    environment.
    """

    container: ContainerType
    image: str | None = None
    command: tuple[str, ...] | None = None
    args: tuple[str, ...] = ()
    folder: str | None = None
    env: Variables = field(default=(), repr=False)
    cwd: str | None = None
    docker: bool = False

    @property
    def name(self) -> str:
        """Its name in texts for people: its image, its command or its folder."""
        name = self.image or self.folder or shlex.join((self.command or ()) + self.args)
        return name if len(name) <= _LONGEST_SHOWN else f"{name[:_LONGEST_SHOWN]}…"


class FunctionProcess:
    """The process of one function, for one owner. All methods are for the owner's thread.

    ``start`` and ``restart`` return the folder with its sockets once it is ready. They raise
    ``Unavailable`` if it does not start, since that may resolve itself, and ``SetupError`` if it
    has started and can never be called.
    """

    def __init__(self, plan: FunctionPlan, limit: float = START_LIMIT) -> None:
        self._plan = plan
        self._limit = limit if plan.folder is None else min(limit, _RUNNING_LIMIT)
        self._folder: Path | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._output = FunctionOutput()
        self.server_info = ServerInfo()

    def start(self) -> Path:
        """Starts the function and waits until it is ready; returns the folder of its sockets.

        If the function is started elsewhere, this only waits for it.
        """
        plan = self._plan
        if plan.folder is not None:
            self._folder = folder = Path(expand(plan.folder, os.environ))
        else:
            self._folder = folder = make_folder()
            self._launch(folder)
        try:
            info = self._await(lambda: read_server_info(folder, plan.container))
            check_server_info(info, plan.container)
            self.server_info = info
            self._await(lambda: _listens(self.socket) or None)
        except BaseException:
            self.stop(_RESTART_GRACE)
            raise
        _failures.pop(plan, None)
        return folder

    def restart(self) -> Path:
        """Stops the function, by force if need be, and starts it again."""
        self.stop(_RESTART_GRACE)
        return self.start()

    @property
    def socket(self) -> Path:
        """The socket that the function listens on; after ``start``."""
        assert self._folder is not None, "start() comes first"
        return socket_path(self._folder, self._plan.container, self.server_info)

    @property
    def alive(self) -> bool:
        """Whether it is running; true if it was started elsewhere, as that is not known."""
        return self._process is None or self._process.poll() is None

    def explain_end(self, patience: float = 1.0) -> str | None:
        """Returns how it ended, with its last lines; ``None`` if it still runs after that time."""
        if self._process is None:
            return None
        with contextlib.suppress(subprocess.TimeoutExpired):
            return f"{_describe(self._process.wait(patience))}{self._output.last_lines()}"
        return None

    def stop(self, grace: float = _STOP_GRACE) -> None:
        """Terminates it, and kills it after ``grace`` seconds, unless it was started elsewhere.

        No process that the function has started is left when this returns.
        """
        process, self._process, folder = self._process, None, self._folder
        if process is None or folder is None:
            return
        assert process.stdin is not None
        with contextlib.suppress(OSError):  # it has ended by itself
            process.stdin.write(f"{grace}\n".encode())
        with contextlib.suppress(OSError):
            process.stdin.close()
        process.wait()
        self._output.finish()
        remove_folder(folder)

    def _launch(self, folder: Path) -> None:
        lock = lock_folder(folder)
        try:
            self._process = process = subprocess.Popen(
                [sys.executable, "-I", "-S", launcher.__file__],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                pass_fds=(lock,),
            )
        finally:
            os.close(lock)  # the launcher has it
        assert process.stdin is not None
        assert process.stdout is not None
        # A process that is forked from this one must not keep the function alive.
        keep_private(process.stdin.fileno())
        order = self._order(folder) | {"lock": lock}
        process.stdin.write(json.dumps(order).encode() + b"\n")
        process.stdin.flush()
        self._output.follow(process.stdout)

    def _order(self, folder: Path) -> dict[str, Any]:
        """Returns the launcher's instructions."""
        plan = self._plan
        environment = function_environment(
            plan.container, plan.env, launcher.PLACE if plan.docker else folder
        )
        command = [expand(part, environment) for part in plan.command or ()]
        args = [expand(part, environment) for part in plan.args]
        order: dict[str, Any] = {
            "command": command + args,
            "env": environment,
            "cwd": plan.cwd,
            "folder": str(folder),
            "mount": True,
            "linux": is_linux(),
            "grace": _STOP_GRACE,
            "after": [],
        }
        return order | self._docker_order(folder, environment, command, args)

    def _docker_order(
        self, folder: Path, environment: dict[str, str], command: list[str], args: list[str]
    ) -> dict[str, Any]:
        """Returns the instructions that differ if Docker runs the function's image, else none."""
        plan = self._plan
        if not plan.docker:
            return {}
        assert plan.image is not None, "Docker runs images"
        name = f"ebbflow-{environment.get('NUMAFLOW_POD', plan.container)}-{folder.parent.name[4:]}"
        own = [name for name, _ in plan.env]
        names = [*(name for name in environment if name.startswith("NUMAFLOW_")), SOCKETS, *own]
        run = docker_run(plan.image, name, folder, names, command, args, plan.cwd)
        # A container outlives its client if that is killed, so it is removed explicitly.
        remove = ["docker", "rm", "--force", name]
        return {"command": run, "cwd": None, "mount": False, "after": remove}

    def _await(self, look: Callable[[], T | None]) -> T:
        """Returns the result of ``look`` once there is one; ``Unavailable`` after the limit."""
        deadline, pause = time.monotonic() + self._limit, _SOON
        while (found := look()) is None:
            ended = self._process is not None and self._process.poll() is not None
            if ended or time.monotonic() > deadline:
                raise Unavailable(self._complaint(), self._next_try())
            time.sleep(pause)
            pause = min(_LATER, pause * 1.5)
        return found

    def _complaint(self) -> str:
        """Returns why the function cannot be called, and the remedy if it is known."""
        name = f"the function {self._plan.name}"
        if self._process is None:
            return f"{name}: nothing listens in {self._folder}"
        ended = self.explain_end(0)
        state = ended or f"it was not ready after {self._limit:g} s{self._output.last_lines()}"
        assert self._folder is not None
        if launcher.REFUSED in state or (self._folder.parent / launcher.NOTE).exists():
            state += (
                f"; allow mount namespaces here, or make the function listen in ${SOCKETS}, "
                f"the folder of its sockets; its arguments may name it: $({SOCKETS})"
            )
        return f"{name}: {state}"

    def _next_try(self) -> timedelta | None:
        """Returns how long to wait before the next start: longer after each failure in a row.

        There is no wait for a function that is started elsewhere: looking for it costs nothing.
        """
        if self._plan.folder is not None:
            return None
        times = _failures[self._plan] = _failures.get(self._plan, 0) + 1
        return timedelta(seconds=min(_LONGEST_WAIT, 2 ** (times - 1)))


def _listens(path: Path) -> bool:
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX) as end:
        end.connect(str(path))
        return True
    return False


def _describe(code: int) -> str:
    return f"it was killed by signal {code - 128}" if code > 128 else f"it ended with code {code}"


# --- what the function prints ---------------------------------------------------------------------


class FunctionOutput:
    """The output of one function, read by its own thread."""

    def __init__(self) -> None:
        self._lines: deque[str] = deque(maxlen=_KEPT)
        self._unshown: deque[str] = deque(maxlen=_KEPT)
        self._thread: threading.Thread | None = None

    def follow(self, pipe: IO[bytes]) -> None:
        """Reads the pipe to its end, in its own thread; forgets the output of earlier processes."""
        self._lines.clear()
        self._thread = threading.Thread(target=self._read, args=(pipe,), daemon=True)
        self._thread.start()

    def _read(self, pipe: IO[bytes]) -> None:
        with pipe:
            for raw in iter(lambda: pipe.readline(LONGEST), b""):
                line = cut(raw.decode("utf-8", "backslashreplace").rstrip("\r\n"))
                self._lines.append(line)
                self._unshown.append(f"{line}\n")
                self._show()

    def _show(self) -> None:
        if sys.stdout is sys.__stdout__:  # output is not being captured now
            return
        while self._unshown:
            sys.stdout.write(self._unshown.popleft())

    def finish(self) -> None:
        """Waits until all output is read; the process must have ended."""
        if self._thread is not None:
            self._thread.join(timeout=5)
            self._thread = None
        self._show()

    def last_lines(self) -> str:
        """Returns the last lines as one line, to be appended to an error."""
        lines = [text for line in list(self._lines)[-_SHOWN:] if (text := line.strip())]
        return f": {' | '.join(lines)[-_LONGEST:]}" if lines else ""


# --- its environment ------------------------------------------------------------------------------


def function_environment(container: str, own: Variables, folder: Path) -> dict[str, str]:
    """Returns the variables for a function; those of its container take precedence."""
    environment = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(_OURS) and name not in _SET_BY_SPARK
    }
    if _PYTHON_PATH in environment:
        environment[_PYTHON_PATH] = _without_spark(environment[_PYTHON_PATH])
    environment |= {CONTAINER_TYPE: container, SOCKETS: str(folder)}
    return environment | expand_all(own, environment)


def _without_spark(path: str) -> str:
    """Returns a Python path without the entries that Spark gives its workers."""
    entries = path.split(os.pathsep)
    return os.pathsep.join(
        entry
        for entry in entries
        if "pyspark" not in Path(entry).parts
        and not Path(entry).name.startswith(("pyspark", "py4j"))
    )


# --- Docker ---------------------------------------------------------------------------------------


def docker_run(
    image: str,
    name: str,
    folder: Path,
    variables: Iterable[str],
    command: Sequence[str],
    args: Sequence[str],
    workdir: str | None,
) -> list[str]:
    """Returns the command that runs an image with the folder of its sockets.

    ``variables`` are the names of the only variables that the container gets; their values are in
    the environment of Docker's client. ``command`` replaces the image's entry point and ``args``
    its arguments, as in Kubernetes.
    """
    run = ["docker", "run", "--rm", "--name", name, "--volume", f"{folder}:{PLACE}"]
    if os.getuid() != 0:  # a socket can only be connected to with permission to write to it
        run += ["--user", f"{os.getuid()}:{os.getgid()}"]
    for variable in dict.fromkeys(variables):
        run += ["--env", variable]
    if workdir is not None:
        run += ["--workdir", workdir]
    if command:
        run += ["--entrypoint", command[0]]
    return [*run, image, *command[1:], *args]


@cache
def check_docker() -> None:
    """Raises ``SetupError`` if Docker's client is missing or its engine does not answer."""
    if shutil.which("docker") is None:
        raise SetupError(
            "Docker is not installed, and --containers docker needs it.",
            "Install it, or bind the images to commands: see docs/guides/numaflow.md#bindings",
        )
    question = ["docker", "version", "--format", "{{.Server.Version}}"]
    try:
        answer = subprocess.run(question, capture_output=True, text=True, timeout=_PATIENCE)
    except subprocess.TimeoutExpired:
        why = f"it did not answer within {_PATIENCE:g} s"
    else:
        if answer.returncode == 0:
            return
        why = " ".join(answer.stderr.split()) or f"its client ended with code {answer.returncode}"
    raise SetupError(
        f"Docker's engine is down, and --containers docker needs it: {why.rstrip('.?! ')}.",
        "Start it, or bind the images to commands: see docs/guides/numaflow.md#bindings",
    )
