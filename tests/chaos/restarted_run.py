"""A run of a pipeline that is killed with all its processes and restarted, in one folder."""

from __future__ import annotations

import asyncio
import random
import signal
import subprocess
import sys
from pathlib import Path

from tests.chaos.kill_and_restart import kill_tree


class RestartedRun:
    """The run of one spec. ``while_starting`` is the probability of a kill during a start."""

    def __init__(
        self, folder: Path, spec: str, chance: random.Random, while_starting: float
    ) -> None:
        self._folder = folder
        self._spec = spec
        self._chance = chance
        self._while_starting = while_starting

    @property
    def log(self) -> str:
        """The output of all runs."""
        return (self._folder / "run.log").read_text()

    def start(self) -> None:
        """Start it; it continues where the last run ended."""
        with open(self._folder / "run.log", "ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "ebbflow", "run", self._spec],
                cwd=self._folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    def check(self) -> None:
        """Fail if it has ended by itself."""
        assert self._process.poll() is None, self.log

    def kill(self) -> int:
        """Kill all its processes; return how many there were."""
        killed = kill_tree(self._process.pid)
        self._process.wait()
        return killed

    async def start_again(self) -> None:
        """Start it, and perhaps kill it while it starts and start it again."""
        self.start()
        if self._chance.random() < self._while_starting:
            await asyncio.sleep(self._chance.uniform(0.5, 6.0))
            self.kill()
            self.start()

    def stop(self) -> None:
        """Stop it gracefully."""
        self._process.send_signal(signal.SIGTERM)
        self._process.wait(60)

    def end(self) -> None:
        """Kill what is left of it."""
        if self._process.poll() is None:
            kill_tree(self._process.pid)
