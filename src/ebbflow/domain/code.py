"""Types of user code, the literal values of a spec's fields, and a container's variables.

Separate from the model, so that the Python builders can use them without importing pydantic. A
container's variables are those of the user code that replaces it; ``usercode.calling`` sets them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from ebbflow.domain.spelling import named_fields

Code = str | Callable[..., Any]
"""User code: the function or class itself, or ``"module:attribute"``."""

OnFull = Literal["retryUntilSuccess", "discardLatest"]
"""What happens to a message when its target buffer is full: it waits, or is dropped."""

OnFailure = Literal["retry", "fallback", "drop"]
"""What happens when the steps of a back-off are used up."""

Mode = Literal["unary", "batch", "stream", "columnar", "pandas"]
"""What one call of a map receives, and how it returns results."""

SinkMode = Literal["batch", "columnar", "pandas"]
"""What one call of a sink receives, and how it responds."""

TagOperator = Literal["and", "or", "not"]
"""A message matches if it has all, any or none of the tags."""

Phase = Literal["Running", "Paused"]
"""Whether a pipeline should run."""


@named_fields
@dataclass(frozen=True, slots=True)
class Function:
    """A program that is built with one of Numaflow's SDKs; accepted wherever user code is.

        Pipeline("orders").map("enrich", Function(["./enrich", "--fast"], env={"LEVEL": "high"}))

    ``command`` is started next to each task of the vertex, in the folder ``working_dir``; it ends
    with the run. ``env`` adds to its environment. ``$(NAME)`` in a command or a value is a
    variable. ``sockets`` is the folder of a function that is running already, instead of a
    command. If it does not come up, the vertex waits and tries again; nothing is raised.
    """

    command: Sequence[str] = ()
    env: Mapping[str, str] = field(default_factory=dict, repr=False)
    working_dir: str | Path | None = None
    sockets: str | Path | None = None

    def to_container(self) -> dict[str, Any]:
        """Returns it as the ``container`` of a spec."""
        command = [self.command] if isinstance(self.command, str) else list(self.command)
        fields = {
            "command": command,
            "env": [{"name": name, "value": value} for name, value in self.env.items()],
            "workingDir": None if self.working_dir is None else str(self.working_dir),
            "sockets": None if self.sockets is None else str(self.sockets),
        }
        return {name: value for name, value in fields.items() if value}


# --- variables of a container -------------------------------------------------------------------

Variables = tuple[tuple[str, str], ...]
"""Names and values, in order; a value may refer to variables in Kubernetes' syntax."""

CONTAINER_TYPE = "NUMAFLOW_UD_CONTAINER_TYPE"
"""The variable in which Numaflow says what a container is for."""

_REFERENCE = re.compile(r"\$(?:\$|\(([-._a-zA-Z][-._a-zA-Z0-9]*)\))")


def expand(text: str, variables: Mapping[str, str]) -> str:
    """Returns the text with its variables expanded, as Kubernetes does it.

    ``$(NAME)`` is a variable; it stays as it is if it is unknown. ``$$`` is a dollar sign.
    """

    def replace(match: re.Match[str]) -> str:
        name = match[1]
        return "$" if name is None else variables.get(name, match[0])

    return _REFERENCE.sub(replace, text)


def literal(text: str) -> str:
    """Returns the text escaped, so that ``expand`` restores it."""
    return text.replace("$", "$$")


def expand_all(variables: Variables, around: Mapping[str, str]) -> dict[str, str]:
    """Returns the values, expanded with ``around`` and with the variables before them."""
    known = dict(around)
    for name, value in variables:
        known[name] = expand(value, known)
    return {name: known[name] for name, _ in variables}
