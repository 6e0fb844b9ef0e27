"""The letters that a command means: numbers and ids, or filters."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Annotated

import typer

from ebbflow.cli.completion import complete_vertices
from ebbflow.domain.durations import milliseconds

if TYPE_CHECKING:
    from ebbflow.deadletters import DeadLetters, LetterFilter, Which

_RATE = re.compile(r"(\d+(?:\.\d+)?)(?:/(s|m|h))?")
_SECONDS = {None: 1, "s": 1, "m": 60, "h": 3600}

IdsArgument = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="ID", help="The command takes the letters with these numbers or message ids."
    ),
]
AllOption = Annotated[bool, typer.Option("--all", help="The command takes every letter.")]
VertexOption = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help="The command takes only letters of this vertex.",
        autocompletion=complete_vertices,
    ),
]
ReasonOption = Annotated[
    str | None, typer.Option(metavar="TEXT", help="Only letters whose reason has this text.")
]
CauseOption = Annotated[
    str | None,
    typer.Option(
        metavar="TEXT", help="Only letters of this cause, as --count prints it; all alike match."
    ),
]
ErrorOption = Annotated[
    str | None, typer.Option(metavar="TEXT", help="Only letters whose error has this text.")
]
TextOption = Annotated[
    str | None,
    typer.Option(
        metavar="TEXT",
        help="Only letters with this text in value, id, reason, error, keys or headers.",
    ),
]
KeyOption = Annotated[
    str | None, typer.Option(metavar="TEXT", help="Only letters with this text in one of the keys.")
]
HeaderOption = Annotated[
    str | None,
    typer.Option(
        metavar="NAME[=VALUE]", help="Only letters with this header, or this value of it."
    ),
]
SinceOption = Annotated[
    str | None,
    typer.Option(
        metavar="TIME",
        help="Only letters of messages that died since then: 2h (ago), or 2026-11-16T15:00 (UTC).",
    ),
]
UntilOption = Annotated[
    str | None, typer.Option(metavar="TIME", help="Only letters of messages that died before then.")
]
UpToOption = Annotated[
    int | None, typer.Option("--up-to", metavar="NUMBER", help="Only letters up to this number.")
]


@dataclass(frozen=True, slots=True)
class Chosen:
    """The letters that were named; if there are none, those that match the filter."""

    which: tuple[Which, ...]
    filter: LetterFilter


def make_filter(
    vertex: str | None,
    reason: str | None,
    cause: str | None,
    error: str | None,
    text: str | None,
    key: str | None,
    header: str | None,
    since: str | None,
    until: str | None,
    up_to: int | None = None,
) -> LetterFilter:
    """Returns the filter that options describe."""
    from ebbflow.deadletters import LetterFilter

    return LetterFilter(
        vertex=vertex,
        reason=reason,
        cause=cause,
        error=error,
        text=text,
        key=key,
        header=header,
        since=parse_time(since, "--since"),
        until=parse_time(until, "--until"),
        up_to=up_to,
    )


def choose(ids: list[str] | None, everything: bool, filter: LetterFilter) -> Chosen:
    """Returns the letters meant; they are named in exactly one way, and never all by accident."""
    from ebbflow.deadletters import LetterFilter

    is_filtered = filter != LetterFilter()
    if bool(ids) == (everything or is_filtered):
        raise typer.BadParameter(
            "name letters by number or id, or say --all or a filter such as --vertex NAME, "
            "not both.",
            param_hint="ID",
        )
    return Chosen(tuple(map(read_which, ids or ())), filter)


def read_which(text: str) -> Which:
    """Reads digits as a number; every letter has one, so nobody needs an id of digits only."""
    return int(text) if text.isdecimal() else text


def find_numbers(letters: DeadLetters, chosen: Chosen) -> list[int]:
    """Returns the numbers of letters that were named; ``EbbflowError`` if one does not exist."""
    numbers = {which for which in chosen.which if isinstance(which, int)}
    if ids := [which for which in chosen.which if isinstance(which, str)]:
        numbers |= {entry.number for entry in letters.get(*ids)}
    return sorted(numbers)


def parse_time(
    text: str | None,
    option: str,
    now: Callable[[], datetime] = lambda: datetime.now(UTC),
) -> datetime | None:
    """Returns a time that the user has typed: how long ago, or a moment in UTC."""
    if text is None:
        return None
    try:
        return now() - timedelta(milliseconds=milliseconds(text))
    except ValueError:
        pass
    try:
        moment = datetime.fromisoformat(text)
    except ValueError as error:
        raise typer.BadParameter(
            f"{text!r} is no time; write for example 90m or 2h, which is how long ago, or "
            "2026-11-16T15:00, which is in UTC.",
            param_hint=option,
        ) from error
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


def parse_rate(text: str | None) -> float | None:
    """Returns the letters a second that the user has typed."""
    if text is None:
        return None
    parts = _RATE.fullmatch(text.strip())
    if parts is None or not float(parts[1]):
        raise typer.BadParameter(
            f"{text!r} is no rate; write for example 500, 500/s or 30/m.", param_hint="--rate"
        )
    return float(parts[1]) / _SECONDS[parts[2]]
