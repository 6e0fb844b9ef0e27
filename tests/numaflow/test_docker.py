"""Functions in containers of Docker: the commands that are given to its client.

No engine is needed: a program in the place of the client notes what it is told, and listens on the
socket as the function in the image would.
"""

import json
import os
import sys
from pathlib import Path

import pytest

from ebbflow.domain.errors import SetupError
from ebbflow.numaflow.docker import check_docker, docker_run
from ebbflow.numaflow.function import FunctionPlan, FunctionProcess
from ebbflow.numaflow.launcher import PLACE
from ebbflow.spec.lint import load

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
def ask_again() -> None:
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


def test_the_command_that_runs_an_image(monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_an_image_runs_with_its_folder_its_variables_and_a_name_of_its_own(
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


def test_images_without_a_binding_run_under_docker_when_it_is_asked_for(
    tmp_path: Path, client: Path
) -> None:
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


def test_a_missing_client_and_a_missing_engine_are_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(SetupError, match=r"Docker is not installed.* bind the images to commands"):
        check_docker()
    client = tmp_path / "docker"
    client.write_text("#!/bin/sh\necho 'Cannot connect to the Docker daemon' >&2\nexit 1\n")
    client.chmod(0o755)
    with pytest.raises(SetupError, match=r"engine is not there.*: Cannot connect to the Docker"):
        check_docker()
