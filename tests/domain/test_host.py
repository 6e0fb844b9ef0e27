"""Both variants of the calls that differ between systems: Linux's own, and the portable one."""

from __future__ import annotations

import os
import re
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import ebbflow
from ebbflow.domain import host
from tests.waiting import until

ROOT = Path(ebbflow.__file__).parent
LINUX_ONLY = re.compile(
    r"memfd_create|pidfd_open|prctl|/proc\b(?!ess)|sys\.platform|sched_getaffinity|epoll|/dev/shm"
    r"|SEQPACKET|unshare"
)
ALLOWED = {
    "domain/host.py",
    "spark/daemon.py",  # SEQPACKET, and only after host.is_linux()
    "numaflow/launcher.py",  # runs without any package; is passed whether this is Linux
}
PATIENCE = 20


@pytest.fixture(params=["linux", "portable"], autouse=True)
def variant(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """The variant under test."""
    if request.param == "portable":
        monkeypatch.setenv(host.PORTABLE, "1")
    else:
        monkeypatch.delenv(host.PORTABLE, raising=False)
        if sys.platform != "linux":
            pytest.skip("needs Linux")
    return str(request.param)


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    """A process that runs until it is killed."""
    with subprocess.Popen(["sleep", "600"]) as process:
        yield process
        process.kill()


def is_readable(descriptor: int, within: float) -> bool:
    return bool(select.select([descriptor], [], [], within)[0])


def test_the_end_of_a_process_is_detected_before_wait_is_called(
    sleeper: subprocess.Popen[bytes],
) -> None:
    ended = host.watch_end(sleeper.pid)
    assert not is_readable(ended, 0.2)
    assert not host.has_ended(sleeper.pid)
    sleeper.kill()
    assert is_readable(ended, PATIENCE)
    os.close(ended)
    assert host.has_ended(sleeper.pid)
    assert sleeper.wait() == -signal.SIGKILL
    assert host.has_ended(sleeper.pid)


def test_a_process_forked_in_the_meantime_does_not_hide_the_end(
    sleeper: subprocess.Popen[bytes],
) -> None:
    ended = host.watch_end(sleeper.pid)
    holder = os.fork()
    if holder == 0:
        signal.pause()
    try:
        sleeper.kill()
        assert is_readable(ended, PATIENCE)
    finally:
        os.close(ended)
        os.kill(holder, signal.SIGKILL)
        os.waitpid(holder, 0)


FORKS_A_CHILD = """
import os, signal, sys
from ebbflow.domain import host
parent = os.getpid()
if os.fork() == 0:
    print(os.getpid(), flush=True)
    if "late" in sys.argv:
        while os.getppid() == parent:
            pass
    host.end_with_parent(parent)
    signal.pause()
signal.pause()
"""


@pytest.mark.parametrize("asks", ["early", "late"])
def test_a_child_ends_with_its_parent_even_if_it_asks_after_the_parents_end(asks: str) -> None:
    command = [sys.executable, "-c", FORKS_A_CHILD, asks]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        ended = host.watch_end(child)
        parent.kill()
        assert is_readable(ended, PATIENCE)
        os.close(ended)


def test_a_file_in_memory_is_shared_with_a_forked_process() -> None:
    with host.open_memory_file("notes") as file:
        child = os.fork()
        if child == 0:
            os.write(file.fileno(), b"written by the child")
            os._exit(0)
        os.waitpid(child, 0)
        file.seek(0)
        assert file.read() == b"written by the child"


def test_open_descriptors_are_listed() -> None:
    readable, writable = os.pipe()
    assert {readable, writable} <= {*host.open_descriptors()}
    os.close(readable)
    os.close(writable)


def test_the_command_of_a_process_is_returned_while_it_runs(
    sleeper: subprocess.Popen[bytes],
) -> None:
    # Between fork and exec there is none.
    assert until(lambda: host.command_of(sleeper.pid)) == ["sleep", "600"]
    sleeper.kill()
    sleeper.wait()
    assert host.command_of(sleeper.pid) == []


def test_available_memory_is_reported() -> None:
    assert host.available_memory() > 2**20


def test_only_this_module_makes_calls_that_only_linux_has() -> None:
    using = {
        str(path.relative_to(ROOT)): LINUX_ONLY.findall(path.read_text("utf-8"))
        for path in ROOT.rglob("*.py")
    }
    assert {name: found for name, found in using.items() if found and name not in ALLOWED} == {}
