"""Markdown pages and the fenced blocks in them."""

from __future__ import annotations

import functools
import re
import runpy
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
_FENCE = re.compile(r"^```(\S*)([^\n]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@functools.cache
def generator() -> dict[str, Any]:
    """The functions of ``docs/generate.py``, which makes the reference."""
    return runpy.run_path(str(ROOT / "docs" / "generate.py"))


@dataclass(frozen=True)
class Block:
    """One fenced block. ``name`` is the file it stands for, if it has one."""

    page: Page
    line: int
    language: str
    words: tuple[str, ...]
    text: str

    @property
    def name(self) -> str | None:
        return next((w.removeprefix("name=") for w in self.words if w.startswith("name=")), None)

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"


@dataclass(frozen=True)
class Page:
    """One Markdown file."""

    path: Path

    def __str__(self) -> str:
        return str(self.path.relative_to(ROOT))

    @property
    def text(self) -> str:
        return self.path.read_text(encoding="utf-8")

    @property
    def prose(self) -> str:
        """The text without its fenced blocks."""
        return _FENCE.sub("", self.text)

    @cached_property
    def blocks(self) -> list[Block]:
        return [
            Block(
                self,
                self.text.count("\n", 0, found.start()) + 1,
                found[1],
                tuple(found[2].split()),
                found[3],
            )
            for found in _FENCE.finditer(self.text)
        ]


PAGES = [Page(path) for path in sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])]
BLOCKS = [block for page in PAGES for block in page.blocks]


def commands(text: str) -> list[tuple[str, list[str]]]:
    """The ``$`` lines of a console block, each with the output shown below it."""
    found: list[tuple[str, list[str]]] = []
    for line in text.splitlines():
        if line.startswith("$ "):
            found.append((line[2:], []))
        elif found:
            found[-1][1].append(line)
    return found


def pattern(expected: list[str]) -> str:
    """Returns a pattern in which three dots match anything, including several lines."""
    text = "\n".join(expected).replace("\n...\n", "...").removeprefix("...\n")
    pieces = [re.escape(piece) for piece in text.split("...")]
    start = ".*" if expected[0] == "..." else ""
    return start + ".*".join(pieces) + r"\s*"
