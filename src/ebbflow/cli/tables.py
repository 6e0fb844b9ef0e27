"""Tables that fit the terminal.

``print_table`` wraps long cells and escapes characters that could move the cursor. ``fit_lines``
keeps each row on one line: it cuts ids and names in the middle, and the last column at its end.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence

_GAP = "  "


def print_table(
    titles: Sequence[str], rows: Iterable[Sequence[str]], numbers: Sequence[str] = ()
) -> None:
    """Prints a table to standard output. The columns in ``numbers`` are right-aligned."""
    from rich.table import Table
    from rich.text import Text

    from ebbflow.status.terminal import console_for, one_line

    table = Table()
    for title in titles:
        justify = "right" if title in numbers else "left"
        table.add_column(title, overflow="fold", justify=justify)  # type: ignore[arg-type]
    for row in rows:
        table.add_row(*(Text(one_line(cell)) for cell in row))
    console_for(sys.stdout).print(table)


def fit_lines(
    table: Sequence[Sequence[str]],
    width: int,
    numbers: Sequence[str],
    least: dict[str, int],
    last: int,
) -> list[str]:
    """Returns a line for each row, the titles first, none wider than ``width``.

    The columns in ``numbers`` are right-aligned. The columns in ``least`` shrink in that order,
    each to no less than its width there, until the last column has ``last`` characters.
    """
    titles = table[0]
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    room = width - len(_GAP) * (len(widths) - 1) - sum(widths[:-1])
    for title, fewest in least.items():
        column = titles.index(title)
        taken = min(max(0, last - room), max(0, widths[column] - fewest))
        widths[column] -= taken
        room += taken
    widths[-1] = max(room, 1)
    to_right = [title in numbers for title in titles]
    return [_line(row, widths, to_right) for row in table]


def _line(cells: Sequence[str], widths: Sequence[int], to_right: Sequence[bool]) -> str:
    *others, last = zip(cells, widths, to_right, strict=True)
    padded = [
        text.rjust(size) if right else cut_middle(text, size).ljust(size)
        for text, size, right in others
    ]
    return _GAP.join([*padded, cut_end(last[0], last[1])]).rstrip()


def cut_end(text: str, size: int) -> str:
    """Returns the text, cut to a size and marked with an ellipsis."""
    return text if len(text) <= size else text[: size - 1] + "…"


def cut_middle(text: str, size: int) -> str:
    """Returns the text, cut in the middle because ids differ at their ends."""
    if len(text) <= size:
        return text
    tail = (size - 1) // 2
    return f"{text[: size - 1 - tail]}…{text[-tail:]}"
