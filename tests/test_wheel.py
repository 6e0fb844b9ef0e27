"""The wheel has what users need, works where it is unpacked, and has no development files."""

from __future__ import annotations

import ast
import email
import importlib.metadata
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import threading
import zipfile
from email.message import Message
from functools import cache
from pathlib import Path
from typing import TextIO

import pytest

from tests.environments import Environment
from tests.waiting import until

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True, timeout=300)
    (path,) = folder.glob("*.whl")
    return zipfile.ZipFile(path)


def metadata(wheel: zipfile.ZipFile) -> Message:
    (name,) = [name for name in wheel.namelist() if name.endswith("dist-info/METADATA")]
    return email.message_from_bytes(wheel.read(name))


def test_the_wheel_contains_the_package_and_nothing_else(wheel: zipfile.ZipFile) -> None:
    tops = {name.partition("/")[0] for name in wheel.namelist()}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"ebbflow"}
    assert {
        "ebbflow/py.typed",
        "ebbflow/cli/demo/pipeline.yaml",
        "ebbflow/cli/demo/steps.py",
        "ebbflow/cli/templates/shared/.github/workflows/ci.yaml.tmpl",
        "ebbflow/connectors/serving/openapi.yaml",
    } <= {*wheel.namelist()}


def test_the_wheel_contains_the_web_ui_with_the_licences_of_its_libraries(
    wheel: zipfile.ZipFile,
) -> None:
    static = ROOT / "src/ebbflow/ui/static"
    files = {str(path.relative_to(ROOT / "src")) for path in static.rglob("*") if path.is_file()}
    assert files <= {*wheel.namelist()}
    assert {"preact.LICENSE.txt", "htm.LICENSE.txt"} <= {Path(name).name for name in files}


def test_client_functions_traces_and_most_connectors_are_extras(wheel: zipfile.ZipFile) -> None:
    required = metadata(wheel).get_all("Requires-Dist", [])
    optional = [line for line in required if "extra ==" in line]
    assert {re.split(r"[<>=]", line)[0].strip() for line in optional} == {
        *("boto3", "botocore"),
        *("google-api-core", "google-auth", "google-cloud-pubsub"),
        *("confluent-kafka", "cryptography", "httpx", "psycopg[binary]"),
        "pulsar-client",
        *("grpcio", "hpack", "protobuf"),
        *("opentelemetry-api", "opentelemetry-exporter-otlp-proto-http", "opentelemetry-sdk"),
    }
    extras = ["client", "grpc", "http", "kafka", "otel", "postgres", "pubsub", "pulsar", "sqs"]
    assert metadata(wheel).get_all("Provides-Extra") == extras


def imports_of(path: Path) -> set[str]:
    """The modules that a file imports, anywhere in its code, including for types only."""
    modules: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            modules |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            whole = {f"{node.module}.{alias.name}" for alias in node.names}
            modules |= whole & owners().keys() or {node.module}
    return modules


@cache
def third_party() -> dict[str, set[str]]:
    """For each third-party module, the files that import it."""
    using: dict[str, set[str]] = {}
    for path in (ROOT / "src").rglob("*.py"):
        for module in imports_of(path):
            if module.partition(".")[0] not in {*sys.stdlib_module_names, "ebbflow"}:
                using.setdefault(module, set()).add(str(path.relative_to(ROOT / "src/ebbflow")))
    return using


@cache
def owners() -> dict[str, str]:
    """The package that each installed module belongs to; any of them if there are several."""
    known: dict[str, str] = {}
    for package in importlib.metadata.distributions():
        name = package.name  # parsed on each access
        for line in (package.read_text("RECORD") or "").splitlines():
            path = line.partition(",")[0]
            if path.endswith((".py", ".so")):
                folder, _, file = path.rpartition("/")
                parts = [*folder.split("/"), file.partition(".")[0]] if folder else [file[:-3]]
                for length in range(1, len(parts) + 1):
                    known.setdefault(".".join(parts[:length]), name)
    return known


def package_of(module: str) -> str:
    """The package on PyPI that a module comes from."""
    return re.sub(r"[-_.]+", "-", owners().get(module, module)).lower()


def declared(wheel: zipfile.ZipFile) -> dict[str, str]:
    """The packages that the wheel requires, each with its extra, which is empty for most."""
    lines = metadata(wheel).get_all("Requires-Dist", [])
    return {
        re.split(r"[<>=;\[ ]", line)[0].lower(): line.partition("extra == ")[2].strip("'")
        for line in lines
    }


OF_ITS_EXTRA = {
    "client": ("client/",),
    "grpc": ("numaflow/", "connectors/pubsub/"),
    "http": ("web/server.py",),
    "kafka": ("connectors/kafka/",),
    "otel": ("accounts/traces.py", "accounts/traces.py"),
    "postgres": ("connectors/postgres/",),
    "pulsar": ("connectors/pulsar/",),
    "pubsub": ("connectors/pubsub/",),
    "sqs": ("connectors/sqs/",),
}
"""Where packages of an extra may be imported: the rest works without them."""
NOT_REQUIRED = {
    "pynumaflow": "user code installs it",
    "ipython": "the notebook that a run is shown in has it",
    "pytest": "users who run tests have it",
}


def test_the_wheel_requires_every_package_that_it_imports(wheel: zipfile.ZipFile) -> None:
    required = declared(wheel)
    imported = {package_of(module) for module in third_party()}
    assert imported - required.keys() - NOT_REQUIRED.keys() == set()


def test_packages_of_an_extra_are_imported_only_by_its_part(wheel: zipfile.ZipFile) -> None:
    required = declared(wheel)
    astray = [
        f"{file} imports {module}"
        for module, files in third_party().items()
        for file in files
        if (extra := required.get(package_of(module))) and not file.startswith(OF_ITS_EXTRA[extra])
    ]
    assert astray == []


def test_the_wheel_has_the_urls_of_the_project(wheel: zipfile.ZipFile) -> None:
    urls = dict(line.split(", ") for line in metadata(wheel).get_all("Project-URL", []))
    assert urls.keys() == {"Documentation", "Source", "Changelog"}
    assert all(url.startswith("https://github.com/ebbflow/ebbflow") for url in urls.values())


def test_the_commands_of_the_wheel_find_their_files(wheel: zipfile.ZipFile, tmp_path: Path) -> None:
    wheel.extractall(tmp_path)
    env = {**os.environ, "PYTHONPATH": str(tmp_path)}
    pipeline = tmp_path / "ebbflow/cli/demo/pipeline.yaml"
    command = [sys.executable, "-P", "-m", "ebbflow", "lint", str(pipeline)]
    done = subprocess.run(
        command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=300
    )
    assert done.stdout == "1 file ok\n", done.stderr


def commands_of_the_readme(section: str) -> list[list[str]]:
    """The commands in the first console of a section, in order."""
    text = (ROOT / "README.md").read_text("utf-8").partition(f"\n## {section}\n")[2]
    console = text.partition("```console\n")[2].partition("```")[0]
    return [shlex.split(line.removeprefix("$ ")) for line in console.splitlines()]


class Newcomer:
    """Runs commands as a user types them, in an environment with nothing but Python."""

    def __init__(self, folder: Path, wheel: str) -> None:
        self.folder = folder
        self.wheel = wheel
        self.environment = Environment(folder / "environment", "3.11")
        self.output = ""

    def follow(self, command: list[str]) -> None:
        if command[0] == "cd":
            self.folder /= command[1]
        elif command[:2] == ["pip", "install"]:
            packages = [self.wheel if each.endswith(".whl") else each for each in command[2:]]
            self.environment.install(*packages, cwd=self.folder)
        else:
            self.output = self.environment.run(*command, cwd=self.folder, timeout=600)

    def start(self, command: list[str]) -> subprocess.Popen[str]:
        """Starts a command that runs until Ctrl-C; ``output`` grows while it does."""
        process = self.environment.start(*command, cwd=self.folder, PYTHONUNBUFFERED="1")
        self.output = ""
        threading.Thread(target=self._read, args=[process.stdout], daemon=True).start()
        return process

    def _read(self, stream: TextIO) -> None:
        for line in stream:
            self.output += line


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_the_first_steps_of_the_readme_work_as_written(
    wheel: zipfile.ZipFile, tmp_path: Path
) -> None:
    newcomer = Newcomer(tmp_path, str(wheel.filename))
    for command in commands_of_the_readme("Try it"):
        newcomer.follow(command)
    assert "Every order is in the store or among the dead letters." in newcomer.output
    *steps, dev = commands_of_the_readme("Your first pipeline")
    assert ["ebbflow", "test"] in steps
    for command in steps:
        newcomer.follow(command)
    assert newcomer.output.endswith("3 examples ok\n")

    process = newcomer.start(dev)
    try:
        assert until(lambda: "running" in newcomer.output, 240, process, lambda: newcomer.output)
        code = newcomer.folder / "steps.py"
        edited = code.read_text().replace("    order = ", '    print("edited")\n    order = ', 1)
        code.write_text(edited)
        assert until(lambda: "edited" in newcomer.output, 240, process, lambda: newcomer.output)
    finally:
        process.send_signal(signal.SIGINT)
        assert process.wait(120) == 0, newcomer.output
    shutil.rmtree(newcomer.environment.folder)


WITH_THE_CONNECTOR = """
from ebbflow import Pipeline
from ebbflow.connectors import Log, Myshelf

pipeline = Pipeline("back").source("in", Myshelf(path="written")).sink("out", Log())
summary = pipeline.run(timeout="30s", state="back")
assert summary.vertices["out"].done == 100, summary
"""


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_a_connector_package_passes_its_tests_and_is_used_from_yaml_and_python(
    wheel: zipfile.ZipFile, tmp_path: Path
) -> None:
    newcomer = Newcomer(tmp_path, str(wheel.filename))
    newcomer.environment.install(newcomer.wheel)
    newcomer.follow(["ebbflow", "new", "my-shelf", "--template", "connector"])
    newcomer.follow(["cd", "my-shelf"])
    readme = (newcomer.folder / "README.md").read_text().partition("```console\n")[2]
    *steps, run = (
        shlex.split(line.removeprefix("$ ")) for line in readme.split("\n```")[0].split("\n")
    )
    for command in steps:
        newcomer.follow(command)
    assert re.search(r"\d+ passed", newcomer.output), newcomer.output
    assert "failed" not in newcomer.output
    newcomer.follow(run)
    assert len(list((newcomer.folder / "written").glob("*.msg"))) == 100, newcomer.output
    (newcomer.folder / "back.py").write_text(WITH_THE_CONNECTOR)
    newcomer.follow(["python", "back.py"])
    assert list((newcomer.folder / "written").glob("*.msg")) == []
    shutil.rmtree(newcomer.environment.folder)


COMPLETE = {
    "_EBBFLOW_COMPLETE": "complete_bash",
    "COMP_WORDS": "ebbflow status --state .ebbflow/demo ",
    "COMP_CWORD": "4",
}
FROM_PYTHON = """
from ebbflow import Message, Pipeline
from ebbflow.connectors import Generator, Log

def double(datum):
    return Message(datum.value * 2)

pipeline = Pipeline("twice").source("in", Generator(messages=20))
summary = pipeline.map("double", double).sink("out", Log()).run(drain=True, timeout="2m")
assert summary.vertices["out"].done == 20, summary
"""
ALONE = [("3.11", ""), ("3.13", ""), ("3.11", "4.0"), ("3.11", "4.1"), ("3.11", "4.2")]


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(("python", "pyspark"), ALONE)
def test_an_install_with_the_newest_packages_runs_all_that_a_newcomer_tries(
    wheel: zipfile.ZipFile, tmp_path: Path, python: str, pyspark: str
) -> None:
    alone = Environment(tmp_path / "environment", python)
    alone.install(str(wheel.filename), *([f"pyspark=={pyspark}.*"] if pyspark else []))
    installed = alone.run("ebbflow", "doctor", cwd=tmp_path, timeout=300)
    assert f"pyspark {pyspark}" in installed
    assert installed.endswith("Ready.\n")
    demo = alone.run("ebbflow", "demo", "--orders", "300", cwd=tmp_path, timeout=600)
    assert "Every order is in the store or among the dead letters." in demo, demo
    document = ".ebbflow/demo/pipeline/pipeline.yaml"
    assert alone.run("ebbflow", "lint", document, cwd=tmp_path, timeout=60) == "1 file ok\n"
    assert alone.run("ebbflow", cwd=tmp_path, timeout=60, **COMPLETE) == "orders\n"
    alone.run("ebbflow", "new", "shop", cwd=tmp_path, timeout=60)
    assert alone.run("ebbflow", "test", cwd=tmp_path / "shop", timeout=60).endswith(
        "3 examples ok\n"
    )
    (tmp_path / "twice.py").write_text(FROM_PYTHON)
    alone.run("python", "twice.py", cwd=tmp_path, timeout=600)
    shutil.rmtree(alone.folder)
