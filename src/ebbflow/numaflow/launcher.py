"""Starts a function and stays next to it: when its owner is gone, the function ends.

A separate program that needs nothing but Python. The owner holds its standard input: the first
line has the instructions, a second line stops the function gracefully, and so does the end of the
pipe, which comes when the owner closes it or is killed. Every process that the function has started
ends with it.

SDKs of Numaflow listen in ``/var/run/numaflow``, and none of them reads another folder from its
environment. So the function gets its own view of the file system, in which that path is the folder
of its sockets; the machine's file system is unchanged. Where the system does not allow that, the
function is started anyway, because it may be configured to use its folder. The launcher mentions
the refusal only if the function fails.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

PLACE = Path("/var/run/numaflow")
"""The folder in which functions listen by default."""

REFUSED = f"the function cannot get its own {PLACE} here"
"""The beginning of the line that reports that the system does not allow it."""

NOTE = "refused"
"""The file with the reason, next to the folder of the sockets, while the function runs."""

_NEW_MOUNTS, _NEW_USER = 0x0002_0000, 0x1000_0000
_BIND, _MOVE, _RECURSIVE, _PRIVATE = 0x1000, 0x2000, 0x4000, 0x4_0000
_DEATH_SIGNAL, _ADOPT_ORPHANS = 1, 36
_CANNOT_START = 127
_AGAIN = 1.0


def main() -> int:
    """Runs the function until it ends or is stopped; returns its exit code."""
    order = json.loads(_read_line())
    os.set_inheritable(order["lock"], False)  # held here, and not by the function
    woken, wake = os.pipe()
    os.set_blocking(wake, False)
    signal.set_wakeup_fd(wake)
    for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda *_: None)
    if order["linux"]:
        _call("prctl", _ADOPT_ORPHANS, 1)
    child = os.fork()
    if child == 0:
        _become_function(order)
    if not order["linux"]:
        _end_with_launcher(child)
    code, asked = _wait(child, woken, float(order["grace"]))
    _kill_descendants(child, order["linux"])
    note = Path(order["folder"]).parent / NOTE
    if code and not asked and note.exists():
        print(f"{REFUSED}: {note.read_text()}", file=sys.stderr, flush=True)
    if order["after"]:
        subprocess.run(order["after"], capture_output=True, check=False)
    shutil.rmtree(Path(order["folder"]).parent, ignore_errors=True)
    return code


def _read_line() -> bytes:
    """Returns the owner's next line, read byte by byte so that later lines stay in the pipe."""
    line = bytearray()
    while (byte := os.read(0, 1)) not in (b"", b"\n"):
        line += byte
    return bytes(line)


def _wait(child: int, woken: int, grace: float) -> tuple[int, bool]:
    """Waits for the function; on request terminates it, then kills it after the grace period.

    Returns its exit code, and whether it was terminated on request.
    """
    deadline: float | None = None
    while (code := _reap(child)) is None:
        left = None if deadline is None else max(0.0, deadline - time.monotonic())
        ready, _, _ = select.select([woken] if deadline else [woken, 0], [], [], left)
        asked = woken in ready and set(os.read(woken, 64)) != {signal.SIGCHLD}
        if not ready:
            _signal(child, signal.SIGKILL)
            deadline = time.monotonic() + _AGAIN
        elif deadline is None and (asked or 0 in ready):
            line = _read_line() if 0 in ready else b""
            deadline = time.monotonic() + float(line or grace)
            _signal(child, signal.SIGTERM)
    return code, deadline is not None


def _reap(child: int) -> int | None:
    """Returns the function's exit code if it has ended; reaps orphans as well."""
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return None
        if pid == 0:
            return None
        if pid == child:
            code = os.waitstatus_to_exitcode(status)
            return code if code >= 0 else 128 - code


def _signal(child: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child, number)


def _kill_descendants(child: int, linux: bool) -> None:
    """Ends the processes that the function has left behind.

    On Linux, this process adopts orphans of any session; elsewhere, those of other sessions remain.
    """
    _signal(child, signal.SIGKILL)
    while children := list(_children() if linux else _list_children()):
        for pid in children:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for pid in children:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, 0)


def _children() -> Iterator[int]:
    own = str(os.getpid())
    for entry in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError, ValueError):
            # The state and the parent follow the name, which may contain spaces and brackets.
            if entry.read_text().rpartition(")")[2].split()[1] == own:
                yield int(entry.parent.name)


def _list_children() -> list[int]:
    with subprocess.Popen(["ps", "-A", "-o", "pid=,ppid="], stdout=subprocess.PIPE) as listing:
        assert listing.stdout is not None
        pairs = [tuple(map(int, line.split())) for line in listing.stdout]
    return [pid for pid, parent in pairs if parent == os.getpid() and pid != listing.pid]


def _end_with_launcher(child: int) -> None:
    """Starts a process that kills the function when this process is gone."""
    reader, writer = os.pipe()
    if os.fork() != 0:
        os.close(reader)
        return
    os.setsid()
    os.close(writer)
    with contextlib.suppress(OSError):
        os.read(reader, 1)
        _signal(child, signal.SIGKILL)
    os._exit(0)


# --- in the function's own process ----------------------------------------------------------------


def _become_function(order: dict[str, Any]) -> None:
    """Becomes the function; errors are printed to the function's output."""
    owner = os.getppid()
    os.setpgid(0, 0)
    signal.set_wakeup_fd(-1)
    for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)
    try:
        if order["mount"]:
            _mount_sockets(Path(order["folder"]), order["linux"])
        if order["linux"]:
            _call("prctl", _DEATH_SIGNAL, signal.SIGKILL)  # not sooner: new rights reset it
            if os.getppid() != owner:
                os._exit(_CANNOT_START)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        if order["cwd"]:
            os.chdir(order["cwd"])
        command = order["command"]
        os.execvpe(command[0], command, order["env"])  # noqa: S606 - no shell is wanted
    except OSError as error:
        where = order["cwd"] if error.filename == order["cwd"] else order["command"][0]
        print(f"cannot start {where}: {error.strerror}", file=sys.stderr, flush=True)
    finally:
        os._exit(_CANNOT_START)


def _mount_sockets(folder: Path, linux: bool) -> None:
    """Mounts the folder where SDKs listen, for this process and the function it becomes."""
    try:
        if not linux:
            raise OSError(errno.ENOSYS, "only Linux can give a process its own view of files")
        _unshare_mounts()
        if not PLACE.exists():
            _replace_with_copy(PLACE.parent.resolve(), folder)
        _mount(folder, PLACE, _BIND)
    except OSError as error:
        with contextlib.suppress(OSError):
            (folder.parent / NOTE).write_text(error.strerror or "")


def _unshare_mounts() -> None:
    user, group = os.getuid(), os.getgid()
    try:
        _call("unshare", _NEW_MOUNTS)
    except PermissionError:
        _call("unshare", _NEW_MOUNTS | _NEW_USER)
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"{user} {user} 1")
        Path("/proc/self/gid_map").write_text(f"{group} {group} 1")
    _mount("none", "/", _RECURSIVE | _PRIVATE)


def _replace_with_copy(parent: Path, folder: Path) -> None:
    """Mounts a folder over ``parent`` that has the same entries and the folder of the sockets.

    Making that folder on the machine itself would need rights, and it would be left behind.
    """
    stage = folder.parent / "view"
    stage.mkdir(exist_ok=True)
    _mount("tmpfs", stage, 0, "tmpfs")
    for entry in parent.iterdir():
        copy = stage / entry.name
        with contextlib.suppress(OSError):
            if entry.is_symlink():
                copy.symlink_to(os.readlink(entry))
                continue
            copy.mkdir() if entry.is_dir() else copy.touch()
            _mount(entry, copy, _BIND | _RECURSIVE)
    (stage / PLACE.name).mkdir()
    _mount(stage, parent, _MOVE)


def _mount(source: Path | str, target: Path | str, flags: int, kind: str | None = None) -> None:
    texts = [os.fsencode(source), os.fsencode(target), kind.encode() if kind else None]
    _call("mount", *texts, ctypes.c_ulong(flags), None)


def _call(name: str, *arguments: Any) -> None:
    """Calls a function of the C library; raises ``OSError`` if it fails."""
    library = ctypes.CDLL(None, use_errno=True)
    if getattr(library, name)(*arguments) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


if __name__ == "__main__":
    sys.exit(main())
