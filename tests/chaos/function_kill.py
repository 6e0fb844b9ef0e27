"""Repeatedly kill the process of a function with -9 while it handles messages, and count.

The function is a map in Go that takes 20 ms for a message, so that some are in flight at any
moment. Every number that the source made must be in the sink's journal. None may be lost, and none
may become a dead letter: no message is at fault. The seed of the moments is printed.

    python -m tests.chaos.function_kill --kills 20 --messages 20000 [--seed N]
"""

from __future__ import annotations

import argparse
import os
import random
import sys
import tempfile
import time
from pathlib import Path

import psutil

from ebbflow import Datum, Function, Pipeline, Response
from ebbflow.connectors import Generator
from ebbflow.nats.locate import open_link, start_embedded
from ebbflow.testing.background_run import BackgroundRun, local_spark, until
from tests.chaos.tally import Tally, count
from tests.numaflow.functions.building import NotBuilt, command
from tests.processes import command_of, family_of

_PAUSE = 20
_PATIENCE = 120.0


class Journal:
    """A sink that records the number of each message, in one file per process."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def __call__(self, data: list[Datum]) -> list[Response]:
        """Write all numbers to disk before the messages are acknowledged."""
        import json

        numbers = [json.loads(datum.value)["value"] for datum in data]
        with open(self._folder / str(os.getpid()), "a", encoding="utf-8") as file:
            file.write("".join(f"{number}\n" for number in numbers))
        return [Response.ok(datum.id) for datum in data]


class FunctionKills:
    """One pipeline in its own folder, whose function is killed."""

    def __init__(
        self, folder: Path, program: tuple[str, ...], messages: int, rate: int, seed: int
    ) -> None:
        self._folder = folder
        self._command = [*program, "map"]
        self._messages = messages
        self._random = random.Random(seed)
        (folder / "journal").mkdir()
        function = Function(self._command, env={"FUNCTION_PAUSE": str(_PAUSE)})
        self._pipeline = (
            Pipeline("chaos")
            .source("in", Generator(messages=messages, rpu=rate))
            .map("work", function, partitions=2)
            .sink("store", Journal(folder / "journal"))
        )

    def run(self, kills: int) -> Tally:
        """Kill at most that many times, spread over the messages; let the rest arrive; count."""
        done = 0
        run = BackgroundRun(self._pipeline, self._folder / "state", on_line=print)
        try:
            for number in range(kills):
                moment = (number + self._random.random()) / (kills + 1)
                self._await(run, int(moment * self._messages))
                done += self._kill()
            if not until(lambda: run.status["store"].counts.done >= self._messages, _PATIENCE):
                raise TimeoutError(f"not all messages arrived: {run.status}")
        finally:
            run.stop()
        with start_embedded(self._folder / "state") as server, open_link(server) as link:
            return count(self._folder, self._messages, done, link)

    def _arrived(self) -> int:
        """The number of lines in the journal; more than messages if some arrived twice."""
        return sum(path.read_bytes().count(b"\n") for path in (self._folder / "journal").iterdir())

    def _await(self, run: BackgroundRun, messages: int) -> None:
        if not until(lambda: self._arrived() >= messages, _PATIENCE):
            raise TimeoutError(f"{self._arrived()} of {messages} messages arrived: {run.status}")

    def _kill(self) -> bool:
        """Kill one of the function's processes, as soon as there is one; not after the end.

        A function that dies when it is no longer needed is not restarted.
        """
        if not until(lambda: self._is_over() or bool(self._processes()), _PATIENCE):
            raise TimeoutError("the function was not restarted")
        processes = self._processes()
        if self._is_over() or not processes:
            return False
        process = self._random.choice(processes)
        process.kill()
        print(f"killed {process.pid} after {self._arrived()} messages", flush=True)
        return True

    def _is_over(self) -> bool:
        return self._arrived() >= self._messages

    def _processes(self) -> list[psutil.Process]:
        return [one for one in family_of(os.getpid()) if command_of(one) == self._command]


def main() -> None:
    """Run it as a command; exit 1 when anything was lost."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--messages", type=int, default=20_000)
    parser.add_argument("--rate", type=int, default=800)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    arguments = parser.parse_args()
    print(f"seed {arguments.seed}", flush=True)
    try:
        program = command("go")
    except NotBuilt as error:
        print(f"functions in Go are NOT tested: {error}")
        return
    with tempfile.TemporaryDirectory(prefix="ebbflow-chaos-") as folder, local_spark():
        options = (arguments.messages, arguments.rate, arguments.seed)
        tally = FunctionKills(Path(folder), program, *options).run(arguments.kills)
    print(tally)
    sys.exit(1 if tally.lost or tally.dead else 0)


if __name__ == "__main__":
    main()
