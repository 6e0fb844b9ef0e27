"""The environment of a function's process: the worker's, Numaflow's variables, the container's own.

The worker's environment says which vertex it serves, in Numaflow's variables. What Spark and
Ebbflow have put there for themselves, secrets among it, is not for functions.
"""

from __future__ import annotations

import os
from pathlib import Path

from ebbflow.usercode.variables import CONTAINER_TYPE, Variables, expand_all

SOCKETS = "EBBFLOW_SOCKETS"
"""The variable with the folder of the sockets, for functions that can be told where to listen."""

_OURS = ("EBBFLOW_", "SPARK_", "PYSPARK_", "_PYSPARK_", "PYTHON_")
_SET_BY_SPARK = ("OMP_NUM_THREADS", "PYTHONHASHSEED")
_PYTHON_PATH = "PYTHONPATH"


def function_environment(container: str, own: Variables, folder: Path) -> dict[str, str]:
    """Returns the variables for a function; those of its container go before all others."""
    environment = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(_OURS) and name not in _SET_BY_SPARK
    }
    if _PYTHON_PATH in environment:
        environment[_PYTHON_PATH] = _without_spark(environment[_PYTHON_PATH])
    environment |= {CONTAINER_TYPE: container, SOCKETS: str(folder)}
    return environment | expand_all(own, environment)


def _without_spark(path: str) -> str:
    """Returns a Python path without the entries that Spark gives its workers."""
    entries = path.split(os.pathsep)
    return os.pathsep.join(
        entry
        for entry in entries
        if "pyspark" not in Path(entry).parts
        and not Path(entry).name.startswith(("pyspark", "py4j"))
    )
