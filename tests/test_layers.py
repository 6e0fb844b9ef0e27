"""The layers of the package: which modules may import which, and that no imports are circular.

Every import counts, including those inside functions and those for types only.
"""

import ast
import re
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

import ebbflow

ROOT = Path(ebbflow.__file__).parent

LAYERS = (
    "domain", "engine", "usercode", "nats", "streams", "accounts", "web", "numaflow", "connectors",
    "spec", "runtime", "status", "spark", "deadletters", "facade", "operations", "package", "ui",
    "datasource", "testing", "cli",
)  # fmt: skip
"""From the lowest to the highest: a layer imports itself and the layers before it in this list.

The modules of the root are for users: the facade. The package itself exports names of all layers.
"""

EXCEPTIONS = {
    ("ebbflow.__main__", "ebbflow.cli.main"),  # is the command
    ("ebbflow.builders", "ebbflow.ui.web_ui"),  # run(ui=True) opens the web UI next to the run
    ("ebbflow.builders", "ebbflow.operations.pipeline_run"),  # start() returns the handle
}


def modules() -> dict[str, Path]:
    """Every module of the package by its dotted name."""
    named = {}
    for path in sorted(ROOT.rglob("*.py")):
        parts = path.relative_to(ROOT.parent).with_suffix("").parts
        named[".".join(parts).removesuffix(".__init__")] = path
    return named


MODULES = modules()


def layer_of(module: str) -> str:
    """The layer that a module belongs to."""
    name = module.split(".")[1] if "." in module else "package"
    return name if name in LAYERS else "facade"


def imports_of(module: str) -> set[str]:
    """The modules of the package that a module imports, anywhere in its code."""
    targets: set[str] = set()
    for node in ast.walk(ast.parse(MODULES[module].read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "ebbflow":
            whole = {f"{node.module}.{alias.name}" for alias in node.names}
            targets |= {name if name in MODULES else str(node.module) for name in whole}
        elif isinstance(node, ast.Import):
            targets |= {alias.name for alias in node.names if alias.name in MODULES}
    return targets - {module}


@pytest.mark.parametrize("module", MODULES)
def test_a_module_imports_only_its_own_and_lower_layers(module: str) -> None:
    place = LAYERS.index(layer_of(module))
    too_far = {
        target
        for target in imports_of(module)
        if LAYERS.index(layer_of(target)) > place and (module, target) not in EXCEPTIONS
    }
    assert too_far == set()


def test_no_imports_are_circular() -> None:
    TopologicalSorter({name: imports_of(name) for name in MODULES}).prepare()


def test_only_the_spark_packages_import_pyspark() -> None:
    allowed = (
        "ebbflow.spark",
        "ebbflow.connectors.spark",
        "ebbflow.datasource",
        "ebbflow.testing",
        "ebbflow.usercode.poison",
    )
    importing = [
        name
        for name, path in MODULES.items()
        if re.search(r"import pyspark|from pyspark", path.read_text("utf-8"))
    ]
    assert [name for name in importing if not name.startswith(allowed)] == []


def test_only_one_module_imports_cloudpickle_from_pyspark() -> None:
    # Spark pickles user code with the cloudpickle it ships, and what starts a process for
    # user code has to do the same. It needs no Java and no session.
    importing = [
        name
        for name, path in MODULES.items()
        if "from pyspark import cloudpickle\n" in path.read_text("utf-8")
    ]
    assert importing == ["ebbflow.usercode.poison"]
