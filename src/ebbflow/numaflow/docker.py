"""Functions in containers of Docker: the commands that start one and take it away again.

The folder of the sockets is mounted where SDKs listen. Values of variables are handed over in the
environment of Docker's client and not on its command line, where everybody could read them.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path

from ebbflow.domain.errors import SetupError
from ebbflow.numaflow.launcher import PLACE

_PATIENCE = 20.0


def docker_run(
    image: str,
    name: str,
    folder: Path,
    variables: Iterable[str],
    command: Sequence[str],
    args: Sequence[str],
    workdir: str | None,
) -> list[str]:
    """Returns the command that runs an image with the folder of its sockets.

    ``variables`` are the names of those that the container gets, and none of the machine's others;
    Docker's client has them in its own environment. ``command`` replaces the image's entry point
    and ``args`` what it is given, as in Kubernetes.
    """
    run = ["docker", "run", "--rm", "--name", name, "--volume", f"{folder}:{PLACE}"]
    if os.getuid() != 0:  # whoever connects to a socket must be allowed to write to it
        run += ["--user", f"{os.getuid()}:{os.getgid()}"]
    for variable in dict.fromkeys(variables):
        run += ["--env", variable]
    if workdir is not None:
        run += ["--workdir", workdir]
    if command:
        run += ["--entrypoint", command[0]]
    return [*run, image, *command[1:], *args]


def docker_remove(name: str) -> list[str]:
    """Returns the command that ends a container, also when the client that ran it was killed."""
    return ["docker", "rm", "--force", name]


@cache
def check_docker() -> None:
    """Raises ``SetupError`` if there is no client of Docker's, or no engine behind it."""
    if shutil.which("docker") is None:
        raise SetupError(
            "Docker is not installed, and --containers docker needs it.",
            "Install it, or bind the images to commands: see docs/guides/functions.md",
        )
    question = ["docker", "version", "--format", "{{.Server.Version}}"]
    try:
        asked = subprocess.run(question, capture_output=True, text=True, timeout=_PATIENCE)
    except subprocess.TimeoutExpired:
        said = f"it did not answer within {_PATIENCE:g} s"
    else:
        if asked.returncode == 0:
            return
        said = " ".join(asked.stderr.split()) or f"its client ended with code {asked.returncode}"
    raise SetupError(
        f"Docker's engine is not there, and --containers docker needs it: {said.rstrip('.?! ')}.",
        "Start it, or bind the images to commands: see docs/guides/functions.md",
    )
