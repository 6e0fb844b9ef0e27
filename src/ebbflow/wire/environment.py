"""The environment of a function's process: the worker's, Numaflow's variables, the container's own.

The worker's environment says which vertex it serves, in Numaflow's variables. What Spark has put
there for itself, secrets of its processes among it, is not for functions.
"""

from __future__ import annotations

import os
from pathlib import Path

from ebbflow.core.variables import Variables, expand_all

SOCKETS = "EBBFLOW_SOCKETS"
"""The variable with the folder of the sockets, for functions that can be told where to listen."""

_OF_SPARK = ("SPARK_", "PYSPARK_", "PYTHON_WORKER_", "PYTHON_DAEMON_")


def function_environment(container: str, own: Variables, folder: Path) -> dict[str, str]:
    """Returns the variables for a function; those of its container go before all others."""
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith(_OF_SPARK)
    }
    environment |= {"NUMAFLOW_UD_CONTAINER_TYPE": container, SOCKETS: str(folder)}
    return environment | expand_all(own, environment)
