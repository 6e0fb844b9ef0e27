"""Functions in their own processes, in a whole run: they end with it, however it ends."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from collections import Counter
from pathlib import Path

import psutil
import pytest

from tests.e2e.conftest import Whole, finish
from tests.processes import command_of, family_of
from tests.waiting import until

pytestmark = pytest.mark.slow

MESSAGES = 600

MAP = """
import os, subprocess
from pynumaflow.mapper import Datum, MapServer, Message, Messages

def mark(keys: list[str], datum: Datum) -> Messages:
    return Messages(Message(datum.value, keys=[os.environ["LEVEL"]]))

names = ("NUMAFLOW_PIPELINE_NAME", "NUMAFLOW_VERTEX_NAME", "NUMAFLOW_REPLICA", "LEVEL")
print("starts", *(os.environ.get(name) for name in names), flush=True)
subprocess.Popen(["sleep", "600"], start_new_session=True)
folder = os.environ["EBBFLOW_SOCKETS"]
info = f"{folder}/mapper-server-info"
MapServer(mark, sock_path=f"{folder}/map.sock", server_info_file=info).start()
"""

STEPS = """
import os
from pathlib import Path
from ebbflow import Response

class Store:
    def __init__(self):
        self.made = os.environ["PART"]

    def __call__(self, data):
        called, level = os.environ["PART"], os.environ.get("LEVEL")
        with open(Path(__file__).with_name(f"stored-{os.getpid()}"), "a") as file:
            for datum in data:
                print(self.made, called, level, datum.id, *datum.keys, file=file)
        answer = Response.fallback if called == "primary" else Response.ok
        return [answer(datum.id) for datum in data]
"""

STORE = {"image": "org/store"}


def container(part: str) -> dict[str, object]:
    return {"udsink": {"container": STORE | {"env": [{"name": "PART", "value": part}]}}}


SPEC = {
    "apiVersion": "numaflow.numaproj.io/v1alpha1",
    "kind": "Pipeline",
    "metadata": {"name": "whole"},
    "spec": {
        "vertices": [
            {"name": "in", "source": {"generator": {"messages": MESSAGES, "rpu": 100}}},
            {
                "name": "mark",
                "udf": {
                    "container": {
                        "image": "registry.io/org/mark:v1",
                        "env": [{"name": "LEVEL", "value": "high"}],
                    }
                },
            },
            {"name": "out", "sink": container("primary") | {"fallback": container("fallback")}},
        ],
        "edges": [{"from": "in", "to": "mark"}, {"from": "mark", "to": "out"}],
    },
}
BINDINGS = {
    "org/mark": {"command": [sys.executable, "mark.py"]},
    "store": {"python": "steps:Store"},
}


def of_functions(process: subprocess.Popen[str]) -> set[psutil.Process]:
    """The launchers of a run, the functions next to them and what those have started."""
    launchers = {one for one in family_of(process.pid) if "launcher.py" in str(command_of(one))}
    return launchers | {inner for one in launchers for inner in family_of(one.pid)}


def stored(folder: Path) -> list[str]:
    return [line for file in folder.glob("stored-*") for line in file.read_text().splitlines()]


def wait_until_gone(processes: set[psutil.Process]) -> None:
    _, alive = psutil.wait_procs(processes, timeout=120)
    assert alive == []


@pytest.mark.long
@pytest.mark.guarantee("functions-end-with-the-run")
def test_functions_end_with_the_run_and_start_again_in_the_next_one(whole: Whole) -> None:
    (whole.folder / "pipeline.yaml").write_text(json.dumps(SPEC))
    (whole.folder / "bindings.yaml").write_text(json.dumps(BINDINGS))
    (whole.folder / "steps.py").write_text(STEPS)
    (whole.folder / "mark.py").write_text(MAP)

    first = whole.start()
    whole.wait_until(lambda: len(stored(whole.folder)) > 50, first)
    functions = of_functions(first)
    assert len(functions) == 3  # a launcher, the function, and what it has started
    others = set(family_of(first.pid)) - functions
    for process in [psutil.Process(first.pid), *others]:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    first.communicate()
    wait_until_gone(functions)

    second = whole.start("--drain", "--timeout", "240s", "--plain")
    functions = until(lambda: of_functions(second), 60, second, every=0.05)
    code, output = finish(second)
    assert code == 0, output
    wait_until_gone(functions)
    assert "(mark) starts whole mark 0 high" in output.splitlines(), output

    # Each part sees only its own variables, both when it is created and when it is called.
    kinds = Counter(tuple(line.split()[:3]) for line in stored(whole.folder))
    assert set(kinds) == {("primary", "primary", "None"), ("fallback", "fallback", "None")}
    fell_back = {line.split()[3] for line in stored(whole.folder) if line.startswith("fallback")}
    assert len(fell_back) == MESSAGES
    assert {line.split()[4] for line in stored(whole.folder)} == {"high"}
