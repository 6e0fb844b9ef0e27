"""Folders for the sockets of functions: new for each process, short, private; none stays behind.

A launcher takes its function's folder away in the end. One whose launcher was killed is taken away
when the next function starts: a lock shows that nobody uses it any more.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from ebbflow.domain.host import LONGEST_SOCKET_PATH

_PREFIX = "ebf-"
_LONGEST_NAME = len("/sourcetransform.sock")
# A younger folder may belong to somebody who is about to lock it.
_OLD = 60.0


def make_folder() -> Path:
    """Makes a folder for sockets, whose paths may not be long; takes away those left behind.

    It lies in a folder that only this user can enter, and is itself open to whatever user a
    container runs as.
    """
    parent = _parent()
    for outer in _left_behind(parent):
        shutil.rmtree(outer, ignore_errors=True)
    folder = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=parent)) / "s"
    folder.mkdir()
    folder.chmod(0o777)
    return folder


def remove_folder(folder: Path) -> None:
    """Takes a folder away, with all that is in it."""
    shutil.rmtree(folder.parent, ignore_errors=True)


def lock_folder(folder: Path) -> int:
    """Returns a descriptor that keeps the folder for as long as any process has it open."""
    descriptor = os.open(folder.parent, os.O_RDONLY | os.O_CLOEXEC)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    return descriptor


def _parent() -> Path:
    usual, room = tempfile.gettempdir(), len(f"/{_PREFIX}12345678/s") + _LONGEST_NAME
    return Path(usual if len(usual) + room <= LONGEST_SOCKET_PATH else "/tmp")  # noqa: S108


def _left_behind(parent: Path) -> Iterator[Path]:
    """Yields the folders of launchers that have died."""
    for outer in parent.glob(f"{_PREFIX}*"):
        with contextlib.suppress(OSError):
            status = outer.stat()
            if status.st_uid == os.getuid() and time.time() - status.st_mtime > _OLD:
                with _unlocked(outer):
                    yield outer


@contextlib.contextmanager
def _unlocked(outer: Path) -> Iterator[None]:
    """Holds the lock of a folder; raises ``OSError`` if somebody else does."""
    descriptor = os.open(outer, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        os.close(descriptor)
