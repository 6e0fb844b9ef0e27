"""``Function``: user code in a process of its own, in any language, for the Python builders."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


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
