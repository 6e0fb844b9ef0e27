"""User code as people give it, and the words that a spec chooses from, as types.

Apart from the model, so that the Python builders can use them without importing pydantic.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

Code = str | Callable[..., Any]
"""User code: the function or class itself, or ``"module:attribute"``."""

OnFull = Literal["retryUntilSuccess", "discardLatest"]
"""What happens to a message when the buffer it is to go to is full: it waits, or is dropped."""

OnFailure = Literal["retry", "fallback", "drop"]
"""What happens when the steps of a back-off are used up."""

Mode = Literal["unary", "batch", "stream", "columnar", "pandas"]
"""What a map is given at a time, and how it answers."""

SinkMode = Literal["batch", "columnar", "pandas"]
"""What a sink is given at a time, and how it answers."""

TagOperator = Literal["and", "or", "not"]
"""A message matches if it has all, any or none of the tags."""

Phase = Literal["Running", "Paused"]
"""What a pipeline is to do."""


@dataclass(frozen=True, slots=True)
class Function:
    """A program that is built with one of Numaflow's SDKs, given wherever code can be given.

        Pipeline("orders").map("enrich", Function(["./enrich", "--fast"], env={"LEVEL": "high"}))

    ``command`` is started beside each task of the vertex, in the folder ``working_dir``; it ends
    with the run. ``env`` adds to its environment. ``$(NAME)`` in a command or a value is a
    variable. ``sockets`` is the folder of a function that is running already, in place of a
    command. If it does not come up, the vertex waits and tries again; nothing is raised.
    """

    command: Sequence[str] = ()
    env: Mapping[str, str] = field(default_factory=dict, repr=False)
    working_dir: str | Path | None = None
    sockets: str | Path | None = None

    def to_container(self) -> dict[str, Any]:
        """Returns the ``container`` of a spec that says the same."""
        command = [self.command] if isinstance(self.command, str) else list(self.command)
        fields = {
            "command": command,
            "env": [{"name": name, "value": value} for name, value in self.env.items()],
            "workingDir": None if self.working_dir is None else str(self.working_dir),
            "sockets": None if self.sockets is None else str(self.sockets),
        }
        return {name: value for name, value in fields.items() if value}
