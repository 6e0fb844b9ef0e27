"""``Problem``: one thing that lint has found wrong with a pipeline."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Problem:
    """One line of ``ebbflow lint``. ``line`` and ``column`` count from 1.

    A pipeline built in Python has no file: then ``file`` is empty and ``place`` says in words
    where the problem is.
    """

    file: str
    line: int
    column: int
    code: str
    message: str
    place: str = ""

    def __str__(self) -> str:
        where = f"{self.file}:{self.line}:{self.column}" if self.file else self.place
        return f"{where}: {self.code} {self.message}"
