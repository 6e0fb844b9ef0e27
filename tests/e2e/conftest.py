"""Whole runs of the command ``ebbflow``, in their own processes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.chaos.kill_and_restart import kill_tree
from tests.waiting import until

SPEC = """
apiVersion: numaflow.numaproj.io/v1alpha1
kind: Pipeline
metadata:
  name: whole
spec:
  inline: {inline}
  vertices:
    - name: in
      source:
        generator: {generator}
    - name: work
      udf:
        python: "steps:work"
    - name: out
      sink:
        udsink:
          python: "steps:Store"
  edges:
    - from: in
      to: work
    - from: work
      to: out
"""

STEPS = '''
import json, os
from pathlib import Path
from ebbflow import Message, Response

HERE = Path(__file__).parent

def work(datum):
    return Message(datum.value)

class Store:
    """Writes numbers to one file per worker, with a mark for each open and close."""

    name = "stored"

    def open(self):
        self.file = open(HERE / f"{self.name}-{os.getpid()}", "a")
        print("opened", file=self.file, flush=True)

    def close(self):
        print("closed", file=self.file, flush=True)

    def __call__(self, data):
        for datum in data:
            print(json.loads(datum.value)["value"], file=self.file)
        self.file.flush()
        return [Response.ok(datum.id) for datum in data]
'''


class Whole:
    """A pipeline in a folder, run by the command."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._started: list[subprocess.Popen[str]] = []
        (folder / "steps.py").write_text(textwrap.dedent(STEPS))

    def write(self, generator: dict[str, Any], *, inline: bool = True) -> None:
        """The specification. With ``inline=False`` every vertex has its own task."""
        text = SPEC.replace("{generator}", json.dumps(generator))
        text = text.replace("{inline}", json.dumps(inline))
        (self.folder / "pipeline.yaml").write_text(text)

    def start(
        self, *options: str, group: bool = False, log: Path | None = None, **environment: str
    ) -> subprocess.Popen[str]:
        """The command, in its own process group if that is to be signalled as a whole."""
        process = subprocess.Popen(
            [sys.executable, "-m", "ebbflow", "run", "pipeline.yaml", *options],
            cwd=self.folder,
            env=os.environ | {"COLUMNS": "200"} | environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE if log is None else log.open("w"),
            stderr=subprocess.STDOUT,
            text=True,
            process_group=0 if group else None,
        )
        self._started.append(process)
        return process

    def close(self) -> None:
        """Stop whatever is still running, even after a failure."""
        for process in self._started:
            if process.poll() is None:
                kill_tree(process.pid)
                process.communicate()

    def stored(self, sink: str = "stored") -> list[int]:
        """The numbers that a sink wrote."""
        return sorted(int(word) for word in self._words(sink) if word.isdigit())

    def marks(self) -> list[str]:
        """How often the sink was opened and closed."""
        return sorted(word for word in self._words("stored") if not word.isdigit())

    def _words(self, sink: str) -> list[str]:
        files = self.folder.glob(f"{sink}-*")
        return [word for file in files for word in file.read_text().split()]

    def wait_until(self, condition: Callable[[], bool], process: subprocess.Popen[str]) -> None:
        """Wait for something to happen while the run continues."""
        until(condition, 240, process, lambda: process.communicate()[0], every=0.05)


def finish(process: subprocess.Popen[str]) -> tuple[int, str]:
    """The exit code and the output of a run that comes to its end."""
    output, _ = process.communicate(timeout=300)
    return process.returncode, output


@pytest.fixture
def whole(tmp_path: Path) -> Iterator[Whole]:
    made = Whole(tmp_path)
    yield made
    made.close()
