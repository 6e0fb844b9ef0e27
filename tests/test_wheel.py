"""The wheel has what users need, works where it is unpacked, and has nothing of the workshop."""

from __future__ import annotations

import ast
import email
import importlib.metadata
import os
import re
import shutil
import subprocess
import sys
import zipfile
from email.message import Message
from functools import cache
from pathlib import Path

import pytest

from tests.environments import Environment

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True, timeout=60)
    (path,) = folder.glob("*.whl")
    return zipfile.ZipFile(path)


def metadata(wheel: zipfile.ZipFile) -> Message:
    (name,) = [name for name in wheel.namelist() if name.endswith("dist-info/METADATA")]
    return email.message_from_bytes(wheel.read(name))


def test_it_holds_the_package_and_nothing_else(wheel: zipfile.ZipFile) -> None:
    tops = {name.partition("/")[0] for name in wheel.namelist()}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"ebbflow"}
    assert {
        "ebbflow/py.typed",
        "ebbflow/cli/demo/pipeline.yaml",
        "ebbflow/cli/demo/steps.py",
        "ebbflow/connectors/serving/openapi.yaml",
    } <= {*wheel.namelist()}


def test_it_holds_the_page_with_the_licences_of_what_it_uses(wheel: zipfile.ZipFile) -> None:
    static = ROOT / "src/ebbflow/ui/static"
    page = {str(path.relative_to(ROOT / "src")) for path in static.rglob("*") if path.is_file()}
    assert page <= {*wheel.namelist()}
    assert {"preact.LICENSE.txt", "htm.LICENSE.txt"} <= {Path(name).name for name in page}


def test_client_functions_http_kafka_and_traces_are_extras(wheel: zipfile.ZipFile) -> None:
    required = metadata(wheel).get_all("Requires-Dist", [])
    optional = [line for line in required if "extra ==" in line]
    assert {re.split(r"[<>=]", line)[0].strip() for line in optional} == {
        *("confluent-kafka", "cryptography", "httpx"),
        *("grpcio", "hpack", "protobuf"),
        *("opentelemetry-api", "opentelemetry-exporter-otlp-proto-http", "opentelemetry-sdk"),
    }
    assert metadata(wheel).get_all("Provides-Extra") == ["client", "grpc", "http", "kafka", "otel"]


def imports_of(path: Path) -> set[str]:
    """The modules that a file imports, wherever the import stands, also for types only."""
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
    """The files that import each module which is neither ours nor Python's."""
    using: dict[str, set[str]] = {}
    for path in (ROOT / "src").rglob("*.py"):
        for module in imports_of(path):
            if module.partition(".")[0] not in {*sys.stdlib_module_names, "ebbflow"}:
                using.setdefault(module, set()).add(str(path.relative_to(ROOT / "src/ebbflow")))
    return using


@cache
def owners() -> dict[str, str]:
    """The package that each installed module belongs to; of parts of several, any of them."""
    known: dict[str, str] = {}
    for package in importlib.metadata.distributions():
        name = package.name  # is parsed each time
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
    "grpc": ("numaflow/",),
    "http": ("web/server.py",),
    "kafka": ("connectors/kafka/",),
    "otel": ("runtime/spans.py", "runtime/trace_export.py"),
}
"""Where packages of an extra may be imported: the rest works without."""
NOT_REQUIRED = {
    "pynumaflow": "user code brings it",
}


def test_it_requires_every_package_that_it_imports(wheel: zipfile.ZipFile) -> None:
    required = declared(wheel)
    imported = {package_of(module) for module in third_party()}
    assert imported - required.keys() - NOT_REQUIRED.keys() == set()


def test_packages_of_an_extra_are_imported_by_its_part_alone(wheel: zipfile.ZipFile) -> None:
    required = declared(wheel)
    astray = [
        f"{file} imports {module}"
        for module, files in third_party().items()
        for file in files
        if (extra := required.get(package_of(module))) and not file.startswith(OF_ITS_EXTRA[extra])
    ]
    assert astray == []


def test_it_says_where_the_project_is(wheel: zipfile.ZipFile) -> None:
    urls = dict(line.split(", ") for line in metadata(wheel).get_all("Project-URL", []))
    assert urls.keys() == {"Documentation", "Source", "Changelog"}
    assert all(url.startswith("https://github.com/ebbflow/ebbflow") for url in urls.values())


def test_its_commands_find_their_files(wheel: zipfile.ZipFile, tmp_path: Path) -> None:
    wheel.extractall(tmp_path)
    env = {**os.environ, "PYTHONPATH": str(tmp_path)}
    pipeline = tmp_path / "ebbflow/cli/demo/pipeline.yaml"
    command = [sys.executable, "-P", "-m", "ebbflow", "lint", str(pipeline)]
    done = subprocess.run(
        command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=60
    )
    assert done.stdout == "1 file ok\n", done.stderr


COMPLETE = {
    "_EBBFLOW_COMPLETE": "complete_bash",
    "COMP_WORDS": "ebbflow status --state .ebbflow/demo ",
    "COMP_CWORD": "4",
}
FROM_PYTHON = """
from ebbflow import Message, Pipeline

def double(datum):
    return Message(datum.value * 2)

pipeline = Pipeline("twice").source("in", generator={"messages": 20})
summary = pipeline.map("double", double).sink("out", log=True).run(drain=True, timeout="2m")
assert summary.vertices["out"].done == 20, summary
"""
ALONE = [("3.11", ""), ("3.13", ""), ("3.11", "4.0"), ("3.11", "4.1"), ("3.11", "4.2")]


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(("python", "pyspark"), ALONE)
def test_alone_with_the_newest_packages_it_does_all_that_a_newcomer_tries(
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
    (tmp_path / "twice.py").write_text(FROM_PYTHON)
    alone.run("python", "twice.py", cwd=tmp_path, timeout=600)
    shutil.rmtree(alone.folder)
