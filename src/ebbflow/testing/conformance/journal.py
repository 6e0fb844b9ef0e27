"""Lines that user code writes on Spark's workers and a test reads while the pipeline runs.

Every process appends to a file of its own. A line that was written stays, whatever is killed
afterwards; a line that is half written when its process dies is not read.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any


class Journal:
    """A folder of files. Pickled to a worker it writes there; the test's own object reads."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._read: dict[str, int] = {}

    def __reduce__(self) -> tuple[Any, ...]:
        return Journal, (self._folder,)

    def write(self, *entries: Any) -> None:
        """Append entries, each anything that JSON can hold; complete on disk when this returns."""
        lines = "".join(json.dumps(entry) + "\n" for entry in entries)
        with open(self._folder / str(os.getpid()), "a", encoding="utf-8") as file:
            file.write(lines)

    def new(self) -> list[Any]:
        """The entries since this was last called; those of one process are in their order."""
        entries: list[Any] = []
        for path in sorted(self._folder.iterdir()):
            start = self._read.get(path.name, 0)
            with open(path, "rb") as file:
                file.seek(start)
                whole, newline, _ = file.read().rpartition(b"\n")
            self._read[path.name] = start + len(whole) + len(newline)
            entries += map(json.loads, whole.splitlines())
        return entries
