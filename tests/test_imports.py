import json
import pkgutil
import subprocess
import sys

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
"""The chunk loop, with all that it is made of: what carries the guarantees can be run in memory."""


@pytest.mark.parametrize(
    "modules",
    [["ebbflow.domain.message"], PURE, LOOP],
    ids=["message", "all of core", "the chunk loop"],
)
def test_the_pure_parts_import_neither_spark_nor_nats(modules):
    assert not loaded_by(*modules) & {"pyspark", "nats"}


def test_importing_ebbflow_alone_starts_neither_spark_nor_nats():
    assert not loaded_by("ebbflow") & {"pyspark", "nats"}


def test_the_web_kit_knows_neither_how_connections_are_read_nor_how_certificates_are_made():
    modules = ("ebbflow.web.app", "ebbflow.web.guard", "ebbflow.web.server")
    assert not loaded_by(*modules) & {"httptools", "cryptography", "nats"}


@pytest.mark.parametrize(
    ("program", "expected"), [("/venv/bin/ebbflow", "SIG_DFL"), ("shop.py", "default_int_handler")]
)
def test_ctrl_c_ends_the_command_without_a_traceback_while_it_is_imported(
    program: str, expected: str
) -> None:
    code = (
        f"import signal, sys; sys.argv = [{program!r}, '--version']\n"
        "import ebbflow; print(getattr(signal.getsignal(signal.SIGINT), '__name__', 'SIG_DFL'))\n"
        "from ebbflow.cli import main\n"
        "main.app = lambda: print(signal.getsignal(signal.SIGINT).__name__)\n"
        "main.main()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == [expected, "default_int_handler"]
