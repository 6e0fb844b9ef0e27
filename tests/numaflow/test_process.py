"""A function's process: it starts, shows its output, is restarted, and never outlives its owner."""

from __future__ import annotations

import contextlib
import io
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from ebbflow.domain import host
from ebbflow.domain.errors import SetupError, Unavailable
from ebbflow.numaflow import launcher, server_info
from ebbflow.numaflow.launcher import PLACE
from ebbflow.numaflow.process import FunctionPlan, FunctionProcess, check_docker, docker_run
from ebbflow.spec.lint import load
from tests.waiting import until

MAP = """
from pynumaflow.mapper import Datum, MapServer, Message, Messages

def cat(keys: list[str], datum: Datum) -> Messages:
    return Messages(Message(datum.value, keys=keys))

MapServer(cat).start()
"""
MAP_IN_FOLDER = "import os; folder = os.environ['EBBFLOW_SOCKETS']" + MAP.replace(
    "MapServer(cat)",
    "MapServer(cat, sock_path=folder + '/map.sock', "
    "server_info_file=folder + '/mapper-server-info')",
)

SEES_ITS_OWN = "from ebbflow.numaflow.launcher import _unshare_mounts; _unshare_mounts()"
namespaces = pytest.mark.skipif(
    subprocess.run([sys.executable, "-c", SEES_ITS_OWN], capture_output=True).returncode != 0,
    reason="MOUNT NAMESPACES ARE NOT ALLOWED HERE: functions have to be told their folder",
)

READY = """
import os, pathlib, socket, sys, time
folder = pathlib.Path(os.environ["EBBFLOW_SOCKETS"])
listener = socket.socket(socket.AF_UNIX)
listener.bind(str(folder / "map.sock"))
listener.listen()
(folder / "mapper-server-info").write_text("{}U+005C__END__")
"""


def python(source: str, *arguments: str) -> tuple[str, ...]:
    return (sys.executable, "-u", "-c", source, *arguments)


@contextlib.contextmanager
def started(*command: str, **options: object) -> Iterator[FunctionProcess]:
    plan = FunctionPlan("udf", command=command, **options)  # type: ignore[arg-type]
    function = FunctionProcess(plan, limit=120)
    function.start()
    try:
        yield function
    finally:
        function.stop()


def wait_until_gone(pids: set[int]) -> None:
    until(lambda: not any(map(is_running, pids)))


def is_running(pid: int) -> bool:
    with contextlib.suppress(psutil.NoSuchProcess):
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    return False


def launcher_of(function: FunctionProcess) -> psutil.Process:
    assert function._process is not None
    return psutil.Process(function._process.pid)


def processes_of(function: FunctionProcess) -> set[int]:
    """The launcher of a function, and all that it has started."""
    launcher_process = launcher_of(function)
    return {
        launcher_process.pid,
        *(child.pid for child in launcher_process.children(recursive=True)),
    }


@namespaces
def test_pynumaflow_servers_run_in_parallel_at_their_usual_socket_path() -> None:
    before = sorted(PLACE.glob("*"))
    with started(*python(MAP)) as one, started(*python(MAP)) as other:
        assert one.server_info.language == "python"
        assert one.server_info.map_mode == "unary-map"
        assert one.socket != other.socket
        assert one.socket.name == "map.sock"
        assert one.socket.is_socket()
        assert len(str(one.socket)) < 100
        first, folder = one.socket, one.restart()
        assert folder != first.parent
        assert not first.parent.exists()
        assert one.alive
        assert sorted(PLACE.glob("*")) == before  # the machine's own is left alone
    assert not one.socket.parent.exists()


def test_output_of_a_function_is_shown_like_prints_of_user_code(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    shown = io.StringIO()
    source = "import os; print('one'); os.write(2, b'\\xff two\\n')\n" + READY + "time.sleep(60)"
    monkeypatch.setattr(sys, "stdout", sys.__stdout__)  # nothing captures it there
    with started(*python(source)):
        monkeypatch.setattr(sys, "stdout", shown)
    assert shown.getvalue().splitlines() == ["one", "\\xff two"]


def test_a_function_that_does_not_start_is_unavailable_and_its_last_output_is_shown() -> None:
    source = "print('lines'); raise RuntimeError('no such table')"
    plan = FunctionPlan("udf", image="org/f:v1", command=python(source))
    with pytest.raises(Unavailable) as raised:
        FunctionProcess(plan).start()
    text = str(raised.value)
    assert text.startswith("the function org/f:v1: it ended with code 1: lines | Traceback")
    assert text.endswith("RuntimeError: no such table")


def test_a_function_that_does_not_start_is_retried_after_longer_and_longer_waits() -> None:
    waits = []
    for _ in range(7):
        with pytest.raises(Unavailable) as raised:
            FunctionProcess(FunctionPlan("udf", command=("false",))).start()
        waits.append(raised.value.retry_after)
    assert waits == [1_000, 2_000, 4_000, 8_000, 16_000, 30_000, 30_000]


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"command": ("no-such-program",)}, "cannot start no-such-program: No such file"),
        ({"command": ("true",), "cwd": "/no/folder"}, "cannot start /no/folder: No such file"),
        ({"command": ("sh", "-c", "kill -9 $$$$")}, "it was killed by signal 9"),
        ({"folder": "/no/folder"}, "nothing listens in /no/folder"),
        (
            {"command": ("sh", "-c", f'echo "{launcher.REFUSED}: Not permitted"; exit 1')},
            r"or make the function listen in \$EBBFLOW_SOCKETS",
        ),
        ({"command": python("print('waits'); import time; time.sleep(60)")}, "not ready after 0.5"),
    ],
    ids=["program", "folder", "killed", "no listener", "refused", "silent"],
)
def test_the_error_says_why_a_function_does_not_start(
    options: dict[str, object], reason: str
) -> None:
    plan = FunctionPlan("udf", **options)  # type: ignore[arg-type]
    # A function that ends by itself is not waited for any longer.
    limit = 0.5 if reason.startswith(("not ready", "nobody")) else 60
    function = FunctionProcess(plan, limit=limit)
    with pytest.raises(Unavailable, match=reason):
        function.start()
    assert function._process is None


def test_a_function_that_can_never_be_called_is_a_setup_error() -> None:
    source = READY.replace("{}", "{'language': 'go', 'version': 'v0.8.0'}".replace("'", '\\"'))
    source += "time.sleep(60)"
    with pytest.raises(SetupError, match=r"too old: go v0\.8\.0"):
        FunctionProcess(FunctionPlan("udf", command=python(source))).start()


def test_a_running_function_is_found_by_its_folder_and_left_running() -> None:
    with started(*python(MAP_IN_FOLDER)) as running:
        plan = FunctionPlan("udf", folder=str(running.socket.parent))
        function = FunctionProcess(plan)
        assert function.start() == running.socket.parent
        assert function.socket == running.socket
        function.stop()
        assert function.alive
        assert running.alive


def test_a_function_gets_its_variables_and_arguments_but_no_secrets(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("NUMAFLOW_POD", "p-v-0")
    monkeypatch.setenv("SPARK_AUTH_SECRET", "hidden")
    monkeypatch.setenv("EBBFLOW_SECRET_LOGIN__PASSWORD", "hidden")
    monkeypatch.setenv("PYTHONPATH", "/mine:/lib/pyspark.zip:/x/pyspark/python:/y/py4j-0.1.zip")
    source = (
        "import os, sys\n"
        "names = 'NUMAFLOW_POD NUMAFLOW_UD_CONTAINER_TYPE LEVEL WHO SPARK_AUTH_SECRET "
        "EBBFLOW_SECRET_LOGIN__PASSWORD PYTHONPATH'.split()\n"
        "print(*[os.environ.get(name) for name in names], sys.argv[1:], os.getcwd())\n"
        "print(os.path.isdir(os.environ['EBBFLOW_SOCKETS']))\n"
        f"{READY}time.sleep(60)"
    )
    env = (("LEVEL", "high"), ("WHO", "$(NUMAFLOW_POD)/$(LEVEL)/$(NO_PARENT)/$$(LEVEL)"))
    command = python(source, "--level=$(LEVEL)", "$$(LEVEL)")
    shown = io.StringIO()
    with contextlib.redirect_stdout(shown), started(*command, env=env, cwd=str(tmp_path)):
        pass
    first, second = shown.getvalue().splitlines()
    assert first == (
        "p-v-0 udf high p-v-0/high/$(NO_PARENT)/$(LEVEL) None None /mine "
        f"['--level=high', '$(LEVEL)'] {tmp_path}"
    )
    assert second == "True"


LEAVING = f"""
import signal, subprocess
away = subprocess.Popen(["sleep", "600"], start_new_session=True)
subprocess.Popen(["sh", "-c", "setsid sleep 600 & setsid sleep 600 &"]).wait()
{READY}
time.sleep(600)
"""
STUBBORN = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)" + LEAVING


def test_a_function_that_ignores_termination_leaves_no_process_behind() -> None:
    function = FunctionProcess(FunctionPlan("udf", command=python(STUBBORN)))
    function.start()
    pids = processes_of(function)
    assert len(pids) == 5  # launcher, function and three that sleep
    function.stop(grace=0.2)
    assert not any(is_running(pid) for pid in pids)


def test_a_killed_function_is_noticed_and_can_be_restarted() -> None:
    with started(*python(READY + "time.sleep(600)")) as function:
        assert function.explain_end(0) is None
        launcher_of(function).children()[0].kill()
        assert function.explain_end(10) == "it was killed by signal 9"
        assert not function.alive
        function.restart()
        assert function.alive


OWNER = f"""
import os, sys, time
from ebbflow.numaflow.process import FunctionPlan, FunctionProcess
FunctionProcess(FunctionPlan("udf", command=(sys.executable, "-c", {LEAVING!r}))).start()
if os.fork() == 0:  # as the isolation of poison does; it lives on
    time.sleep(600)
print("started", flush=True)
time.sleep(600)
"""


def test_a_function_ends_when_its_owner_is_killed() -> None:
    owner = subprocess.Popen([sys.executable, "-c", OWNER], stdout=subprocess.PIPE)
    assert owner.stdout is not None
    with owner.stdout as said:
        assert said.readline() == b"started\n"
    children = psutil.Process(owner.pid).children()
    (launcher_process,) = (
        child for child in children if "launcher.py" in " ".join(child.cmdline())
    )
    (forked,) = (child for child in children if child != launcher_process)
    pids = {
        launcher_process.pid,
        *(child.pid for child in launcher_process.children(recursive=True)),
    }
    assert len(pids) == 5
    owner.kill()
    owner.wait()
    wait_until_gone(pids)
    assert is_running(forked.pid)
    forked.kill()


@pytest.mark.parametrize("portable", ["", "1"], ids=["linux", "portable"])
def test_a_function_ends_when_its_launcher_is_killed(
    portable: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(host.PORTABLE, portable)
    with started(*python(READY + "time.sleep(600)")) as function:
        pids = processes_of(function)
        launcher_of(function).kill()
        wait_until_gone(pids)
        assert not function.alive


def test_a_folder_whose_launcher_was_killed_is_removed_later(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    parent = tempfile.TemporaryDirectory(dir="/tmp")  # a short path
    monkeypatch.setattr(server_info, "_parent", lambda: Path(parent.name))
    monkeypatch.setattr(server_info, "_OLD", -1.0)
    command = python(READY + "time.sleep(600)")
    with parent, started(*command) as one, started(*command) as other:
        killed, living = one.socket.parent.parent, other.socket.parent.parent
        launcher_process = launcher_of(one)
        launcher_process.kill()
        launcher_process.wait()
        assert killed.exists()
        with started(*command):
            assert not killed.exists()
            assert living.exists()


def test_the_launcher_needs_only_python_itself() -> None:
    order = {"command": ["true"], "env": {}, "cwd": None, "folder": "/no/folder/s"}
    order |= {"grace": 1, "after": [], "mount": True, "linux": True, "lock": 2}
    text = json.dumps(order).encode() + b"\n"
    command = [sys.executable, "-I", "-S", launcher.__file__]
    done = subprocess.run(command, input=text, capture_output=True, timeout=300)
    assert done.returncode in (0, 128 + signal.SIGTERM)  # the pipe ends at once


CLIENT = f"""#!{sys.executable}
import json, os, pathlib, signal, socket, sys, time
notes = pathlib.Path(__file__).with_name("notes")
with notes.open("a") as file:
    print(json.dumps([sys.argv[1:], dict(os.environ)]), file=file)
if sys.argv[1] == "run":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    folder, place = sys.argv[sys.argv.index("--volume") + 1].split(":")
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(folder + "/sink.sock")
    listener.listen()
    pathlib.Path(folder, "sinker-server-info").write_text("{{}}U+005C__END__")
    time.sleep(600)
"""


@pytest.fixture(autouse=True)
def forget_docker_check() -> None:
    check_docker.cache_clear()


@pytest.fixture
def client(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of a program that stands in for Docker's client, first on the path."""
    folder = tmp_path / "bin"
    folder.mkdir()
    (folder / "docker").write_text(CLIENT)
    (folder / "docker").chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    return folder


def notes(client: Path) -> list[tuple[list[str], dict[str, str]]]:
    return [json.loads(line) for line in (client / "notes").read_text().splitlines()]


def test_the_docker_command_runs_an_image_as_its_plan_says(monkeypatch: pytest.MonkeyPatch) -> None:
    options = ("org/f:v1", "name", Path("/tmp/s"), ["A", "B"])
    monkeypatch.setattr(os, "getuid", lambda: 0)
    start = ["docker", "run", "--rm", "--name", "name", "--volume", "/tmp/s:/var/run/numaflow"]
    assert docker_run(*options, (), (), None) == [*start, "--env", "A", "--env", "B", "org/f:v1"]
    monkeypatch.setattr(os, "getuid", lambda: 501)
    monkeypatch.setattr(os, "getgid", lambda: 20)
    more = docker_run(*options, ("/bin/f", "-x"), ("-y",), "/work")
    assert more == [
        *start,
        *("--user", "501:20"),
        *("--env", "A", "--env", "B"),
        *("--workdir", "/work"),
        *("--entrypoint", "/bin/f"),
        *("org/f:v1", "-x", "-y"),
    ]


def test_an_image_runs_with_its_own_folder_variables_and_name(
    client: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NUMAFLOW_POD", "orders-out-0")
    plan = FunctionPlan(
        "udsink",
        image="org/sink:v1",
        args=("--level=$(LEVEL)",),
        env=(("LEVEL", "high"), ("WHO", "$(NUMAFLOW_POD)")),
        docker=True,
    )
    function = FunctionProcess(plan)
    folder = function.start()
    assert folder.stat().st_mode & 0o777 == 0o777  # whoever the image runs as
    assert folder.parent.stat().st_mode & 0o777 == 0o700
    function.stop(grace=0.1)
    (run, environment), (remove, _) = notes(client)
    name = run[run.index("--name") + 1]
    assert name.startswith("ebbflow-orders-out-0-")
    assert run[run.index("--volume") + 1] == f"{folder}:{PLACE}"
    assert run[-2:] == ["org/sink:v1", "--level=high"]
    given = {run[at + 1] for at, word in enumerate(run) if word == "--env"}
    assert {name: environment[name] for name in given} == {
        "NUMAFLOW_POD": "orders-out-0",
        "NUMAFLOW_UD_CONTAINER_TYPE": "udsink",
        "EBBFLOW_SOCKETS": str(PLACE),
        "LEVEL": "high",
        "WHO": "orders-out-0",
    }
    assert remove == ["rm", "--force", name]
    assert not folder.parent.exists()


SPEC = """\
apiVersion: numaflow.numaproj.io/v1alpha1
kind: MonoVertex
metadata: {name: orders}
spec:
  source: {generator: {}}
  udf: {container: {image: quay.io/numaio/numaflow-go/map-cat, command: [/cat], args: [-v]}}
  sink: {udsink: {container: {image: bound}}}
"""


def test_images_without_a_binding_run_under_docker_on_request(tmp_path: Path, client: Path) -> None:
    file = tmp_path / "pipeline.yaml"
    file.write_text(SPEC)
    (tmp_path / "bindings.yaml").write_text("bound: {command: [mine]}")
    spec = load(file, containers="docker")
    assert spec.kind == "MonoVertex"
    assert spec.udf is not None
    plan = spec.udf.plan_function()
    assert (plan.docker, plan.command, plan.args) == (True, ("/cat",), ("-v",))
    assert not spec.sink.udsink.plan_function().docker  # type: ignore[attr-defined]
    assert notes(client)[0][0][0] == "version"


def test_a_missing_docker_client_and_a_missing_engine_are_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(SetupError, match=r"Docker is not installed.* bind the images to commands"):
        check_docker()
    client = tmp_path / "docker"
    client.write_text("#!/bin/sh\necho 'Cannot connect to the Docker daemon' >&2\nexit 1\n")
    client.chmod(0o755)
    with pytest.raises(SetupError, match=r"engine is down.*: Cannot connect to the Docker"):
        check_docker()
