"""The environment of a function's process: the worker's, Numaflow's variables, the container's own.

The worker's environment says which vertex it serves, in Numaflow's variables. What Spark has put
there for itself, secrets of its processes among it, is not for functions.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path

SOCKETS = "EBBFLOW_SOCKETS"
"""The variable with the folder of the sockets, for functions that can be told where to listen."""

_OF_SPARK = ("SPARK_", "PYSPARK_", "PYTHON_WORKER_", "PYTHON_DAEMON_")
_REFERENCE = re.compile(r"\$(?:\$|\(([-._a-zA-Z][-._a-zA-Z0-9]*)\))")


def function_environment(
    container: str, own: Iterable[tuple[str, str]], folder: Path
) -> dict[str, str]:
    """Returns the variables for a function; those of its container go before all others."""
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith(_OF_SPARK)
    }
    environment |= {"NUMAFLOW_UD_CONTAINER_TYPE": container, SOCKETS: str(folder)}
    for name, value in own:
        environment[name] = expand(value, environment)
    return environment


def expand(text: str, variables: Mapping[str, str]) -> str:
    """Returns the text with variables put in, as Kubernetes does it.

    ``$(NAME)`` is a variable, or stays as it is if there is none; ``$$`` is a dollar sign.
    """

    def replace(match: re.Match[str]) -> str:
        name = match[1]
        return "$" if name is None else variables.get(name, match[0])

    return _REFERENCE.sub(replace, text)


def literal(text: str) -> str:
    """Returns the text so that ``expand`` gives it back as it is."""
    return text.replace("$", "$$")
