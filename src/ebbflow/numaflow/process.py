"""Functions in their own processes: started next to the task that calls them, watched, ended.

A ``FunctionPlan`` says what to start, or where a function is running already. A ``FunctionProcess``
starts it on a worker with a folder of sockets that is its own, so that any number of vertices and
partitions get along on one machine. A launcher stands between them (see ``launcher``): the function
ends with its worker, also when that is killed. What the function prints is shown as what user code
prints; the last lines are part of the error when it does not come up.

Its environment is the worker's, which says in Numaflow's variables which vertex it serves, and the
container's own. What Spark and Ebbflow have put there for themselves, secrets among it, is not for
functions. In a container of Docker's the folder of the sockets is mounted where SDKs listen. Values
of variables are handed over in the environment of Docker's client and not on its command line,
where everybody could read them.
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
"""The most messages that a sink gets at a time or a source is asked for, unless a spec says it.

Numaflow's own number, which functions are written for.
"""

START_LIMIT = 60.0
"""The seconds that a function may take until it can be called."""

SOCKETS = "EBBFLOW_SOCKETS"
"""The variable with the folder of the sockets, for functions that can be told where to listen."""

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
"""How often in a row a function has not come up; whoever starts it is made again each time."""


@dataclass(frozen=True, slots=True)
class FunctionPlan:
    """A function that is called over Numaflow's protocol. Plain data, shipped to workers.

    ``command`` with ``args`` is started next to the task, or ``folder`` has the sockets of a
    function that is running already; with ``docker`` the ``image`` itself runs. All of these and
    ``env`` may name variables as Kubernetes writes them, ``$(NAME)``; they are put in when the
    function starts. The facts of the vertex are not here: Numaflow's variables in the worker's own
    environment have them.
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
        """What people call it: its image, its command or its folder."""
        name = self.image or self.folder or shlex.join((self.command or ()) + self.args)
        return name if len(name) <= _LONGEST_SHOWN else f"{name[:_LONGEST_SHOWN]}…"


class FunctionProcess:
    """The process of one function, for one owner. All methods are for the owner's thread.

    ``start`` and ``restart`` return the folder with its sockets once it can be called. They raise
    ``Unavailable`` if it does not come up, for that may change by itself, and ``SetupError`` if it
    has come up and can never be called.
    """

    def __init__(self, plan: FunctionPlan, limit: float = START_LIMIT) -> None:
        self._plan = plan
        self._limit = limit if plan.folder is None else min(limit, _RUNNING_LIMIT)
        self._folder: Path | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._output = FunctionOutput()
        self.server_info = ServerInfo()

    def start(self) -> Path:
        """Starts the function and waits until it can be called; returns the folder of its sockets.

        One that is running already is only waited for.
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
        """Ends what there is of the function, at once if need be, and starts it again."""
        self.stop(_RESTART_GRACE)
        return self.start()

    @property
    def socket(self) -> Path:
        """The socket that the function listens on; after ``start``."""
        assert self._folder is not None, "start() comes first"
        return socket_path(self._folder, self._plan.container, self.server_info)

    @property
    def alive(self) -> bool:
        """Whether it is running; of one that others have started that is not known, so yes."""
        return self._process is None or self._process.poll() is None

    def explain_end(self, patience: float = 1.0) -> str | None:
        """Returns how it ended, with its last lines; ``None`` if it still runs after that time."""
        if self._process is None:
            return None
        with contextlib.suppress(subprocess.TimeoutExpired):
            return f"{_describe(self._process.wait(patience))}{self._output.last_lines()}"
        return None

    def stop(self, grace: float = _STOP_GRACE) -> None:
        """Asks it to end, and makes it after ``grace`` seconds; not one that others have started.

        Nothing that the function has started is left when this returns.
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
        """Returns what the launcher is to do."""
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
        """Returns what is different if Docker runs the function's image; nothing if it does not."""
        plan = self._plan
        if not plan.docker:
            return {}
        assert plan.image is not None, "Docker runs images"
        name = f"ebbflow-{environment.get('NUMAFLOW_POD', plan.container)}-{folder.parent.name[4:]}"
        own = [name for name, _ in plan.env]
        names = [*(name for name in environment if name.startswith("NUMAFLOW_")), SOCKETS, *own]
        run = docker_run(plan.image, name, folder, names, command, args, plan.cwd)
        # Ends the container also when the client that ran it was killed.
        remove = ["docker", "rm", "--force", name]
        return {"command": run, "cwd": None, "mount": False, "after": remove}

    def _await(self, look: Callable[[], T | None]) -> T:
        """Returns what is looked for once it is there; ``Unavailable`` if it does not come."""
        deadline, pause = time.monotonic() + self._limit, _SOON
        while (sight := look()) is None:
            ended = self._process is not None and self._process.poll() is not None
            if ended or time.monotonic() > deadline:
                raise Unavailable(self._complaint(), self._next_try())
            time.sleep(pause)
            pause = min(_LATER, pause * 1.5)
        return sight

    def _complaint(self) -> str:
        """Returns why the function cannot be called, and what to do where that is known."""
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
        """Returns how long to wait before it is started again: longer each time in a row.

        Looking for one that others have started costs nothing, and does not wait.
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
        if sys.stdout is sys.__stdout__:  # no one reads it here now
            return
        while self._unshown:
            sys.stdout.write(self._unshown.popleft())

    def finish(self) -> None:
        """Waits until all is read; the process must have ended."""
        if self._thread is not None:
            self._thread.join(timeout=5)
            self._thread = None
        self._show()

    def last_lines(self) -> str:
        """Returns the last lines as the end of an error's text, on one line; all were shown."""
        lines = [text for line in list(self._lines)[-_SHOWN:] if (text := line.strip())]
        return f": {' | '.join(lines)[-_LONGEST:]}" if lines else ""


# --- its environment ------------------------------------------------------------------------------


def function_environment(container: str, own: Variables, folder: Path) -> dict[str, str]:
    """Returns the variables for a function; those of its container go before all others."""
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

    ``variables`` are the names of those that the container gets, and none of the machine's others;
    Docker's client has them in its own environment. ``command`` replaces the image's entry point
    and ``args`` what it is given, as in Kubernetes.
    """
    run = ["docker", "run", "--rm", "--name", name, "--volume", f"{folder}:{PLACE}"]
    if os.getuid() != 0:  # whoever connects to a socket must be allowed to write to it
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
    """Raises ``SetupError`` if there is no client of Docker's, or no engine behind it."""
    if shutil.which("docker") is None:
        raise SetupError(
            "Docker is not installed, and --containers docker needs it.",
            "Install it, or bind the images to commands: see docs/guides/numaflow.md#bindings",
        )
    question = ["docker", "version", "--format", "{{.Server.Version}}"]
    try:
        asked = subprocess.run(question, capture_output=True, text=True, timeout=_PATIENCE)
    except subprocess.TimeoutExpired:
        said = f"it did not answer within {_PATIENCE:g} s"
    else:
        if asked.returncode == 0:
            return
        said = " ".join(asked.stderr.split()) or f"its client ended with code {asked.returncode}"
    raise SetupError(
        f"Docker's engine is not there, and --containers docker needs it: {said.rstrip('.?! ')}.",
        "Start it, or bind the images to commands: see docs/guides/numaflow.md#bindings",
    )
