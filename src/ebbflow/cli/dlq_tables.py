"""Prints dead letters: a table that fits the terminal, and the details of one dead letter."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from ebbflow.cli.tables import fit_lines
from ebbflow.engine.causes import MOST_SHOWN
from ebbflow.engine.dead_letter import describe_cause
from ebbflow.status.terminal import console_for, one_line

if TYPE_CHECKING:
    from ebbflow.deadletters import DeadLetters, LetterFilter, ReplayResult, StoredLetter
    from ebbflow.deadletters.letters import Causes, Which
    from ebbflow.engine.dead_letter import Letter

_SHOWN_BYTES = 4096
_SHOWN_NUMBERS = 8
_SHOWN_REASONS = 20
# On a narrow terminal the reason gets this width, and ids and names shrink to no less than this.
_WHY, _LEAST, _WIDE = 24, {"id": 12, "vertex": 8}, 110
_COUNTS = ("number", "tries", "replays")


@dataclass(frozen=True, slots=True)
class ChosenDeadLetters:
    """Dead letters chosen by number or id or, if ``which`` is empty, by a filter."""

    which: tuple[Which, ...]
    filter: LetterFilter

    def find_numbers(self, letters: DeadLetters) -> list[int]:
        """Returns the numbers of the named dead letters; ``EbbflowError`` if one is missing."""
        numbers = {which for which in self.which if isinstance(which, int)}
        if ids := [which for which in self.which if isinstance(which, str)]:
            numbers |= {entry.number for entry in letters.get(*ids)}
        return sorted(numbers)


def console(err: bool = False) -> Any:
    """Returns rich's console for standard output or error, as wide as the terminal."""
    return console_for(sys.stderr if err else sys.stdout)


def letters_text(count: int) -> str:
    """Returns a count of dead letters as text."""
    return "1 dead letter" if count == 1 else f"{count:,} dead letters"


def list_lines(letters: Sequence[StoredLetter], width: int) -> list[str]:
    """Returns a line for each dead letter, cut to the width of the terminal."""
    years = {stored.letter.last_seen.year for stored in letters}
    year = years.pop() if len(years) == 1 and width < _WIDE else None
    died = f"died ({year}, UTC)" if year else "died (UTC)"
    titles = ["number", died, "vertex", "id", "tries", "replays", "why"]
    table = [titles, *(_cells(stored, year) for stored in letters)]
    if not any(stored.letter.replays for stored in letters):
        table = [row[:5] + row[6:] for row in table]
    return fit_lines(table, width, _COUNTS, _LEAST, _WHY)


def _cells(stored: StoredLetter, year: int | None) -> list[str]:
    letter = stored.letter
    died = time_text(letter.last_seen)
    return [
        str(stored.number),
        died.removeprefix(f"{year}-"),
        one_line(letter.vertex),
        one_line(letter.id),
        str(letter.deliveries),
        str(letter.replays),
        one_line(why(letter)),
    ]


def why(letter: Letter) -> str:
    """Returns the reason and the error as one text without repetition."""
    return describe_cause(letter.reason, letter.error)


def cause_lines(causes: Causes) -> list[str]:
    """Returns a line for each of the most frequent causes, then the rest and the total."""
    lines = [
        f"{count:>9,}  {vertex}  {one_line(text)}"
        for (vertex, text), count in [*causes.items()][:MOST_SHOWN]
    ]
    more, total = [*causes.values()][MOST_SHOWN:], sum(causes.values())
    if more:
        lines.append(f"{sum(more):>9,}  and {len(more):,} more causes; --json has them all")
    return [*lines, *([""] if lines else []), letters_text(total)]


def time_text(time: datetime | None) -> str:
    """Returns a time in UTC, to the second."""
    if time is None:
        return "unknown"
    return time.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S")


def stayed_lines(result: ReplayResult) -> list[str]:
    """Returns a line for each reason why dead letters stayed, with their first numbers."""
    reasons = [*result.stayed.items()]
    lines = []
    for text, numbers in reasons[:_SHOWN_REASONS]:
        left = len(numbers) - _SHOWN_NUMBERS
        more = f" and {left:,} more" if left > 0 else ""
        lines.append(f"  {', '.join(map(str, numbers[:_SHOWN_NUMBERS]))}{more}: {one_line(text)}")
    if len(reasons) > _SHOWN_REASONS:
        lines.append(f"  … and {len(reasons) - _SHOWN_REASONS:,} more reasons; --json has them all")
    return lines


def letter_to_text(stored: StoredLetter) -> str:
    """Returns everything about a dead letter as text for people."""
    from ebbflow.deadletters.filters import own_headers

    letter = stored.letter
    facts = {
        "number": str(stored.number),
        "vertex": letter.vertex,
        "id": letter.id,
        "reason": letter.reason,
        "error": letter.error or "none",
        "deliveries": str(letter.deliveries),
        "replays": str(letter.replays),
        "first seen": time_text(letter.first_seen),
        "died": time_text(letter.last_seen),
        "event time": time_text(letter.event_time),
        "keys": ", ".join(letter.keys) or "none",
    }
    facts |= {f"header {name}": value for name, value in own_headers(stored).items()}
    for group, entries in letter.metadata.items():
        facts |= {f"metadata {group}.{key}": text_or_hex(v) for key, v in entries.items()}
    lines = [f"{name + ':':12} {one_line(text)}" for name, text in facts.items()]
    history = _block("history", "\n".join(_history(letter)) or None)
    return "\n".join([*lines, *history, *_block("traceback", letter.traceback), *_value(letter)])


def _history(letter: Letter) -> list[str]:
    return [
        f"{time_text(death.died)}  died as dead letter {death.number} "
        f"on delivery {death.deliveries}: "
        f"{death.reason}; replayed {time_text(death.replayed)}"
        for death in letter.history
    ]


def _value(letter: Letter) -> list[str]:
    size = f"{len(letter.value):,} bytes"
    if letter.size is not None:
        size += f", cut from {letter.size:,}"
    shown = text_or_hex(letter.value[:_SHOWN_BYTES])
    if len(letter.value) > _SHOWN_BYTES:
        shown += "\n… (all of it with --json)"
    return _block(f"value ({size})", shown)


def _block(title: str, text: str | None) -> list[str]:
    if text is None:
        return []
    return [f"{title}:", *(f"  {one_line(line)}" for line in text.splitlines())]


def text_or_hex(value: bytes) -> str:
    """Returns bytes as text, or in hexadecimal if they are not text."""
    # The value may have been cut inside its last character, which does not make it binary.
    text = value.decode("utf-8", "replace")
    broken = text.rstrip("\ufffd")
    if len(text) - len(broken) <= 3 and "\ufffd" not in broken and "\0" not in broken:
        return broken
    rows = (value[start : start + 16] for start in range(0, len(value), 16))
    return "\n".join(row.hex(" ") for row in rows)
