"""``ebbflow dev``: saved changes run, problems are shown until the next save, Spark stays up."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.waiting import until

SPEC = """\
apiVersion: numaflow.numaproj.io/v1alpha1
kind: Pipeline
metadata: {name: shop}
spec:
  vertices:
  - {name: in, source: {generator: {messages: 3}}}
  - {name: mark, udf: {python: "steps:mark"}}
  - {name: out, sink: {log: {}}}
  edges: [{from: in, to: mark}, {from: mark, to: out}]
"""
CODE = """\
from ebbflow import Message

def mark(datum):
    return Message(b"%s")
"""


class Dev:
    """The command in a folder, and what it has printed so far."""

    def __init__(self, folder: Path, *options: str) -> None:
        self.folder = folder
        self.text = ""
        command = [sys.executable, "-u", "-m", "ebbflow", "dev", "shop.yaml", *options]
        self.process = subprocess.Popen(
            command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.text += line

    def save(self, code: str) -> None:
        (self.folder / "steps.py").write_text(code)

    def shows(self, text: str) -> bool:
        return until(lambda: text in self.text, 120, self.process, lambda: self.text)

    def end(self) -> int:
        self.process.send_signal(signal.SIGINT)
        return self.process.wait(120)


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    (tmp_path / "shop.yaml").write_text(SPEC)
    (tmp_path / "steps.py").write_text(CODE % "one")
    return tmp_path


@pytest.mark.slow
def test_saved_changes_run_on_the_same_spark_session(folder: Path) -> None:
    dev = Dev(folder, "--plain")
    try:
        assert dev.shows("payload=one"), dev.text
        assert "web UI at http://127.0.0.1:" in dev.text
        dev.save(CODE % "second")
        assert dev.shows("payload=second"), dev.text
        dev.save("def mark(datum:\n")
        assert dev.shows("EB402 cannot use 'steps:mark'"), dev.text
        assert dev.shows("waiting for a change"), dev.text
        dev.save(CODE % "third one")
        assert dev.shows("payload=third one"), dev.text
        assert dev.text.count("payload=second") == 3, "each version sees the same messages"
    finally:
        assert dev.end() == 0, dev.text


def test_a_file_that_does_not_exist_ends_the_command(tmp_path: Path) -> None:
    dev = Dev(tmp_path)
    assert dev.process.wait(60) == 1
    assert dev.shows("shop.yaml"), dev.text
    assert "Traceback" not in dev.text


def test_with_debug_everything_is_in_one_process(folder: Path) -> None:
    dev = Dev(folder, "--debug")
    try:
        assert dev.shows("mark: read 3, written 3, done 3"), dev.text
        (folder / "shop.test.yaml").write_text("- {name: an example, messages: [a, b]}")
        assert dev.shows("shop.test.yaml:1: an example"), dev.text
        assert dev.shows("mark: read 2, written 2, done 2"), dev.text
        dev.save("import os\n" + CODE % "x" + "    os.getpid()\n")
        assert dev.shows("changed; starting again"), dev.text
    finally:
        assert dev.end() == 0, dev.text


def test_a_breakpoint_stops_in_user_code_and_quitting_ends_the_command(folder: Path) -> None:
    (folder / "steps.py").write_text("def mark(datum):\n    breakpoint()\n    return None\n")
    command = [sys.executable, "-m", "ebbflow", "dev", "shop.yaml", "--debug"]
    done = subprocess.run(
        command, cwd=folder, input="p datum.id\nq\n", capture_output=True, text=True, timeout=300
    )
    assert "(Pdb) 'in-0'" in done.stdout
    assert (done.returncode, done.stderr) == (0, "")
