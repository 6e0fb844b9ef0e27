import ast
import json
import pkgutil
import subprocess
import sys
from pathlib import Path

import pytest

import ebbflow.engine

CORE = [f"ebbflow.engine.{module.name}" for module in pkgutil.iter_modules(ebbflow.engine.__path__)]
PURE = [
    *CORE,
    "ebbflow.domain.message",
    "ebbflow.domain.outcome",
    "ebbflow.domain.message",
    "ebbflow.domain.durations",
    "ebbflow.domain.errors",
]


def loaded_by(*modules: str) -> set[str]:
    """The top-level packages that a fresh interpreter has after importing these."""
    code = f"import {', '.join(modules)}, json, sys; print(json.dumps(list(sys.modules)))"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=300
    )
    return {name.partition(".")[0] for name in json.loads(done.stdout)}


LOOP = ["ebbflow.runtime.loop"]
"""The chunk loop and its parts: the code behind the guarantees can run in memory."""


@pytest.mark.parametrize(
    "modules",
    [["ebbflow.domain.message"], PURE, LOOP],
    ids=["message", "all of core", "the chunk loop"],
)
def test_the_pure_parts_import_neither_spark_nor_nats(modules):
    assert not loaded_by(*modules) & {"pyspark", "nats"}


def test_the_engine_uses_no_clock_no_process_and_no_log():
    banned = {"logging", "os", "random", "secrets", "subprocess", "threading", "time"}
    found = {
        (path.name, name)
        for path in Path(ebbflow.engine.__file__).parent.glob("*.py")
        for name in imported_by(path) & banned
    }
    assert found == set()


def imported_by(path: Path) -> set[str]:
    """The top-level packages that a module imports, anywhere in its code."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names.add(node.module or "")
    return {name.partition(".")[0] for name in names}


def test_importing_ebbflow_alone_starts_neither_spark_nor_nats():
    assert not loaded_by("ebbflow") & {"pyspark", "nats"}


def test_the_web_package_imports_neither_http_parsing_nor_certificate_code():
    modules = ("ebbflow.web.app", "ebbflow.web.guard", "ebbflow.web.server")
    assert not loaded_by(*modules) & {"httptools", "cryptography", "nats"}
