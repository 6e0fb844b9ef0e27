"""Nothing that tests start outlives them: no process, zombie, thread, port or signal handler.

Every process that tests start inherits a mark in its environment, and with it pytest's note of
the test that was running. After each module this plugin looks for what did not exist before. It
waits a while for things that are just ending, then fails the module, and the failure names them.
What fixtures of a wider scope start is shared by modules: it is allowed until they end.

A reaper waits next to pytest for its end, whatever the cause, and kills what has the mark:
after Ctrl-C, or when a worker was killed, no server is left running.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import psutil
import pytest

from tests import reaper
from tests.reaper import MARK, marked

# Python's own helpers, started once for all later uses.
_OF_PYTHON = ("multiprocessing.resource_tracker", "multiprocessing.forkserver")
_OURS = ("ebbflow.", "tests.", "pyspark.util")
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_PATIENCE = 30.0


@dataclass
class Things:
    """What tests have started and still exists."""

    processes: dict[int, str] = field(default_factory=dict)
    threads: dict[threading.Thread, str] = field(default_factory=dict)
    ports: set[int] = field(default_factory=set)
    handlers: dict[Any, str] = field(default_factory=dict)

    @classmethod
    def now(cls) -> Things:
        threads = {thread: thread.name for thread in threading.enumerate() if _counts(thread)}
        return cls(_processes(), threads, _ports(), _handlers())

    def added_to(self, before: Things) -> Things:
        return Things(
            {pid: text for pid, text in self.processes.items() if pid not in before.processes},
            {thread: name for thread, name in self.threads.items() if thread not in before.threads},
            self.ports - before.ports,
            {key: text for key, text in self.handlers.items() if key not in before.handlers},
        )

    def add(self, others: Things) -> None:
        self.processes |= others.processes
        self.threads |= others.threads
        self.ports |= others.ports

    def described(self) -> list[str]:
        return [
            *(f"process {pid}: {text}" for pid, text in self.processes.items()),
            *(f"thread {name}" for name in self.threads.values()),
            *(f"a socket that listens on port {port}" for port in sorted(self.ports)),
            *self.handlers.values(),
        ]


_shared = Things()
_unmarked: set[psutil.Process] = set()


def _counts(thread: threading.Thread) -> bool:
    """Daemon threads of libraries do not count: they end with the process."""
    target = getattr(thread, "_target", None)
    modules = (type(thread).__module__, getattr(target, "__module__", None) or "")
    is_ours = any(f"{module}.".startswith(_OURS) for module in modules)
    return thread is not threading.main_thread() and (is_ours or not thread.daemon)


def _ports() -> set[int]:
    """Ports that this process listens on, except Spark's callback port, open until Spark stops."""
    found = psutil.Process().net_connections(kind="tcp")
    listening = {one.laddr.port for one in found if one.status == psutil.CONN_LISTEN}
    return listening - {_callback_port()}


def _handlers() -> dict[Any, str]:
    """Handlers of the signals that tests send: one that stays would swallow the next signal."""
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, [])
    handlers = {(number, signal.getsignal(number), number in blocked) for number in _SIGNALS}
    return {one: f"{one[0].name}: handler {one[1]}, blocked: {one[2]}" for one in handlers}


def _callback_port() -> int | None:
    """The port that PySpark opens when the session is first given a function to call back."""
    context = getattr(sys.modules.get("pyspark"), "SparkContext", None)
    server = getattr(getattr(context, "_gateway", None), "_callback_server", None)
    return server.get_listening_port() if server is not None else None


def _processes() -> dict[int, str]:
    """The processes that tests have started, and our children that were not waited for."""
    found = {}
    for process in marked(os.environ[MARK], _unmarked):
        with contextlib.suppress(psutil.Error):
            if not _is_shared(process):
                found[process.pid] = _describe(process)
    for child in psutil.Process().children():
        with contextlib.suppress(psutil.Error):
            if child.status() == psutil.STATUS_ZOMBIE and child.pid != _reaper_pid():
                found[child.pid] = f"{child.name()}, which has ended and was not waited for"
    return found


def _describe(process: psutil.Process) -> str:
    test = process.environ().get("PYTEST_CURRENT_TEST", "no test")
    return f"{' '.join(process.cmdline())[:300]} (started by {test})"


def _is_shared(process: psutil.Process) -> bool:
    """Whether fixtures of a wider scope started it, a parent, or another of the same command."""
    if any(name in " ".join(process.cmdline()) for name in _OF_PYTHON):
        return True
    family = [process, *process.parents()]
    if any(one.pid in _shared.processes for one in family):
        return True
    words = " ".join(process.cmdline())[:300]
    return any(text.startswith(f"{words} (") for text in _shared.processes.values())


# --- after each module --------------------------------------------------------------------------


@pytest.hookimpl(wrapper=True)
def pytest_fixture_setup(fixturedef: Any) -> Any:
    """Notes what a fixture for several modules starts."""
    if fixturedef.scope not in ("session", "package"):
        return (yield)
    before = Things.now()
    try:
        return (yield)
    finally:
        _shared.add(Things.now().added_to(before))


@pytest.fixture(scope="module", autouse=True)
def nothing_is_left_behind(request: pytest.FixtureRequest) -> Iterator[None]:
    """Fails the module that leaves something behind, and ends the processes among it."""
    before = Things.now()
    yield
    left = _left_after(before)
    for pid in left.processes:
        with contextlib.suppress(psutil.Error):
            psutil.Process(pid).kill()
    if described := left.described():
        what = "\n  ".join(described)
        pytest.fail(f"{request.node.nodeid} left behind:\n  {what}", pytrace=False)


def _left_after(before: Things) -> Things:
    deadline = time.monotonic() + _PATIENCE
    while True:
        left = Things.now().added_to(before).added_to(_shared)
        if not left.described() or time.monotonic() > deadline:
            return left
        time.sleep(0.05)


# --- when pytest itself ends --------------------------------------------------------------------

_reaper: list[subprocess.Popen[bytes]] = []
_lifeline: list[socket.socket] = []


def _reaper_pid() -> int:
    return _reaper[0].pid if _reaper else 0


def pytest_configure() -> None:
    """Starts the reaper. It has no mark, and does not receive signals from the terminal."""
    os.environ.pop(MARK, None)
    mark = uuid.uuid4().hex
    mine, its = socket.socketpair()
    with its:
        command = [sys.executable, reaper.__file__, mark]
        _reaper.append(
            subprocess.Popen(command, stdin=its, stdout=subprocess.DEVNULL, start_new_session=True)
        )
    os.environ[MARK] = mark
    _lifeline.append(mine)
    os.register_at_fork(after_in_child=_forget)


def _forget() -> None:
    """A forked process that outlives pytest must not look like pytest to the reaper."""
    for line in _lifeline:
        line.close()


def pytest_unconfigure() -> None:
    """Lets the reaper do its work, and waits for it."""
    while _lifeline:
        _lifeline.pop().close()
    while _reaper:
        _reaper.pop().wait()
