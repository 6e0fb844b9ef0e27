"""What a query over audit tables is given and what it comes to, on either engine."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class AuditTables:
    """The tables of pipelines by their names, and their dead letters if those are asked for."""

    tables: Mapping[str, Mapping[str, Any]]
    letters: Sequence[Mapping[str, Any]] | None = None


class AuditResult:
    """What a query comes to."""

    def __init__(self, columns: list[str], rows: Callable[[], Iterator[tuple[Any, ...]]]) -> None:
        self.columns = columns
        """The names of its columns."""
        self._rows = rows

    def rows(self) -> Iterator[tuple[Any, ...]]:
        """Yields its rows, times with their zone; ``EbbflowError`` if they cannot be made."""
        return self._rows()
