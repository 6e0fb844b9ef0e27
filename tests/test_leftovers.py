"""Modules that leave something behind fail with its name, and nothing outlives pytest itself."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from tests.processes import is_running
from tests.waiting import until

ROOT = Path(__file__).parents[1]
LEAVING = {
    "process": """
import subprocess
def test_it():
    subprocess.Popen(["sleep", "601"], start_new_session=True)
""",
    "orphan": """
import subprocess
def test_it():
    subprocess.run(["sh", "-c", "sleep 602 & exit 0"], stdin=subprocess.DEVNULL)
""",
    "zombie": """
import subprocess
def test_it():
    globals()["child"] = subprocess.Popen(["true"])
""",
    "thread": """
import threading, time
def test_it():
    threading.Thread(target=time.sleep, args=(4,), name="a long one").start()
""",
    "port": """
import socket
def test_it():
    globals()["listener"] = socket.create_server(("127.0.0.1", 0))
""",
    "nothing": """
import subprocess, threading, time
def test_it(server, module_server):
    subprocess.run(["true"])
    threading.Thread(target=time.sleep, args=(0.3,)).start()  # it ends by itself, a little later
def test_more(server):
    pass
""",
}
CONFTEST = """
import subprocess
import pytest
from tests import leftovers
pytest_plugins = ["tests.leftovers"]
leftovers._PATIENCE = 1.0
@pytest.fixture(scope="session")
def server():
    with subprocess.Popen(["sleep", "603"]) as process:
        yield
        process.kill()
@pytest.fixture(scope="module")
def module_server():
    with subprocess.Popen(["sleep", "604"]) as process:
        yield
        process.kill()
"""


def written(folder: Path, files: dict[str, str]) -> Path:
    (folder / "conftest.py").write_text(CONFTEST)
    for name, text in files.items():
        (folder / f"test_{name}.py").write_text(text)
    return folder


def pytest_in(folder: Path, *options: str) -> subprocess.Popen[str]:
    environment = {name: value for name, value in os.environ.items() if "PYTEST" not in name}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-rE", *options]
    return subprocess.Popen(
        [*command, str(folder)],
        cwd=folder,
        env=environment | {"PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)])},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def test_a_module_that_leaves_something_behind_fails_with_its_name(tmp_path: Path) -> None:
    with pytest_in(written(tmp_path, LEAVING)) as process:
        output, _ = process.communicate(timeout=300)

    assert output.splitlines()[-1].startswith("7 passed"), output
    assert "5 errors" in output.splitlines()[-1], output
    for name, what in {
        "process": "sleep 601 (started by test_process.py::test_it (call))",
        "orphan": "sleep 602 (started by test_orphan.py::test_it (call))",
        "zombie": "true, which has ended and was not waited for",
        "thread": "thread a long one",
        "port": "a socket that listens on port ",
    }.items():
        _, _, failure = output.partition(f"test_{name}.py left behind:\n")
        assert what in failure.partition("left behind")[0], output
    assert "test_nothing.py left behind" not in output


SERVING = """
import os, time
from pathlib import Path
import pytest
from tests.nats.securing import nats_server

@pytest.fixture(scope="session")
def server(tmp_path_factory):
    folder = tmp_path_factory.mktemp("nats")
    with nats_server(folder, ""):
        yield int((folder / "nats.pid").read_text())

def test_it(server):
    Path("pids.part").write_text(f"{os.getpid()} {server}")
    Path("pids.part").rename("pids")
    time.sleep(600)
"""


def interrupt(pytest_process: int, worker: int) -> None:
    os.kill(pytest_process, signal.SIGINT)


def kill_worker(pytest_process: int, worker: int) -> None:
    os.kill(worker, signal.SIGKILL)


@pytest.mark.parametrize("end", [interrupt, kill_worker])
def test_no_server_outlives_pytest(end: Callable[[int, int], None], tmp_path: Path) -> None:
    written(tmp_path, {"serving": SERVING})
    with pytest_in(tmp_path, "-n", "1", "--max-worker-restart", "0") as process:
        until(lambda: (tmp_path / "pids").exists() or process.poll() is not None)
        worker, server = map(int, (tmp_path / "pids").read_text().split())
        watched = psutil.Process(server)
        assert watched.name() == "nats-server"
        end(process.pid, worker)
        until(lambda: not is_running(watched))
        process.communicate(timeout=300)
