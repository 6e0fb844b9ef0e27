"""A process ends with its owner, however the owner ends.

An owner that is killed can end nothing any more. So a shell waits beside the process for the end of
a pipe that only the owner holds, and then asks the process to end. It does nothing else and needs
nothing that Linux alone has.
"""

from __future__ import annotations

import contextlib
import subprocess

_UNTIL_THE_PIPE_ENDS = 'read -r _; kill "$1"'


class Watch:
    """Ends the process ``pid`` when this one is gone; until ``stop``.

    In a session of its own: what a terminal sends to everybody is not for it.
    """

    def __init__(self, pid: int) -> None:
        self._process = subprocess.Popen(
            ["/bin/sh", "-c", _UNTIL_THE_PIPE_ENDS, "ebbflow-watch", str(pid)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    def stop(self) -> None:
        """Ends the watch."""
        # Killed first: it must not see the pipe end, for the pid may be another's by then.
        self._process.kill()
        self._process.wait()
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):
            self._process.stdin.close()
