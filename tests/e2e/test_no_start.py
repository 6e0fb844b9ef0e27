"""Runs that cannot start: one sentence, the right exit code, and no server left running.

All of them are tried in one process, which imports everything once.
"""

from __future__ import annotations

import json
import os
import socket
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.conftest import Whole

pytestmark = pytest.mark.slow

TRIALS = """
import contextlib, io, json, os, sys
from ebbflow.cli.main import main
from ebbflow.spark.session import java_version

def tried(folder, options, java_home):
    os.chdir(folder)
    os.environ.pop("JAVA_HOME", None)
    if java_home:
        os.environ["JAVA_HOME"] = java_home
    java_version.cache_clear()
    sys.argv = ["ebbflow", "run", "pipeline.yaml", *options]
    output = io.StringIO()
    with contextlib.redirect_stdout(output), contextlib.redirect_stderr(output):
        try:
            main()
            code = 0
        except SystemExit as end:
            code = end.code
    return [code, output.getvalue()]

print(json.dumps([tried(*trial) for trial in json.loads(sys.argv[1])]))
"""
VERSION = """[ "$1" = -version ] && echo 'openjdk version "17.0.1"' >&2 && exit\n"""
SPARK = "Spark did not start: "
# The options, the script that replaces Java or its path, and the expected output.
NO_START: dict[str, tuple[list[str], str | None, list[str]]] = {
    "an invalid master": (
        ["--master", "garbage"],
        None,
        [
            f"{SPARK}Master must either be yarn or start with spark, k8s, or local. "
            "Correct --master, --conf or Java;"
        ],
    ),
    "a number of slots that is not a number": (
        ["--master", "local[x]"],
        None,
        [f"{SPARK}Could not parse Master URL: 'local[x]'."],
    ),
    "an invalid amount of memory": (
        ["--conf", "spark.driver.memory=nonsense"],
        None,
        [f"{SPARK}Invalid maximum heap size: -Xmxnonsense."],
    ),
    "a Java with unreadable output": (
        ["--drain"],
        "echo banana >&2; exit 1",
        ["does not say which version of Java it is."],
    ),
    "a Java that reports its version and fails": (
        ["--drain"],
        VERSION + "echo 'Segmentation fault'; exit 139",
        [f"{SPARK}Segmentation fault."],
    ),
    "a Java that ends at once": (["--drain"], VERSION + "exit 0", [SPARK]),
    "a Java that is missing": (
        ["--drain"],
        "/nowhere",
        [
            "Spark needs Java 17 or newer, and there is none in JAVA_HOME",
            "apt-get install",
        ],
    ),
    "a state folder that cannot be created": (
        ["--state", "pipeline.yaml/state"],
        None,
        ["Cannot write to the state folder", "pipeline.yaml/state", "with --state DIR."],
    ),
    "a port that is taken": (
        ["--nats-port", "{taken}"],
        None,
        ["Port {taken} on 127.0.0.1 is not free", "--nats-port"],
    ),
    "a port of a source that is taken": (
        ["--timeout", "1s"],
        None,
        ["The http source in cannot listen on 127.0.0.1:{taken}: Address already in use."],
    ),
}
LISTENING = """
apiVersion: numaflow.numaproj.io/v1alpha1
kind: Pipeline
metadata: {name: listening}
spec:
  vertices:
    - {name: in, source: {http: {ports: {http: TAKEN}}}}
    - {name: out, sink: {blackhole: {}}}
  edges: [{from: in, to: out}]
"""


class Trials:
    """All runs that cannot start, each in its own folder."""

    def __init__(self, folder: Path, taken: int) -> None:
        self._folder = folder
        self.taken = taken
        arguments = [self._trial(name, *case) for name, case in NO_START.items()]
        done = subprocess.run(
            [sys.executable, "-c", TRIALS, json.dumps(arguments)],
            env=os.environ | {"COLUMNS": "200"},
            capture_output=True,
            text=True,
            timeout=300,
        )
        assert done.returncode == 0, done.stderr
        self._results = dict(zip(NO_START, json.loads(done.stdout), strict=True))

    def folder_of(self, name: str) -> Path:
        return self._folder / str(list(NO_START).index(name))

    def __getitem__(self, name: str) -> Any:
        return self._results[name]

    def _trial(self, name: str, options: list[str], java: str | None, _: list[str]) -> Any:
        folder = self.folder_of(name)
        folder.mkdir()
        Whole(folder).write({"messages": 1})
        if "of a source" in name:
            (folder / "pipeline.yaml").write_text(LISTENING.replace("TAKEN", str(self.taken)))
        home = None if java is None else java if java == "/nowhere" else fake_java(folder, java)
        return [str(folder), [word.format(taken=self.taken) for word in options], home]


def fake_java(folder: Path, script: str) -> str:
    java = folder / "java" / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text(f"#!/bin/sh\n{script}\n")
    java.chmod(java.stat().st_mode | stat.S_IXUSR)
    return str(folder / "java")


@pytest.fixture(scope="module")
def trials(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Trials]:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield Trials(tmp_path_factory.mktemp("no-start"), listening.getsockname()[1])


@pytest.mark.guarantee("a-stop-loses-no-work")
@pytest.mark.parametrize("name", NO_START)
def test_a_run_that_cannot_start_says_why_in_one_sentence(trials, name):
    code, output = trials[name]

    assert code == 3
    for sentence in NO_START[name][2]:
        assert sentence.format(taken=trials.taken) in output
    assert "Traceback" not in output
    assert " running" not in output
    assert not list((trials.folder_of(name) / ".ebbflow/nats").glob("pid"))
