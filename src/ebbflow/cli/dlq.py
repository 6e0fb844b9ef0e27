"""``ebbflow dlq``: list, show, replay, export and purge the dead letters of a pipeline.

The commands use the server of the running pipeline. If the pipeline is not running, they start the
embedded server and stop it when they end.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated

import typer

from ebbflow.cli.options import (
    HERE,
    ExitCode,
    JsonOption,
    OutputOption,
    PipelineArgument,
    ServerOptions,
    complete_vertices,
    expand_options,
)
from ebbflow.domain.durations import milliseconds

if TYPE_CHECKING:
    from ebbflow.cli.dlq_tables import ChosenDeadLetters
    from ebbflow.deadletters import DeadLetters, LetterFilter
    from ebbflow.deadletters.letters import Causes, Which

_RATE = re.compile(r"(\d+(?:\.\d+)?)(?:/(s|m|h))?")
_SECONDS = {None: 1, "s": 1, "m": 60, "h": 3600}

app = typer.Typer(
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    help="Look at dead letters, send them back, export or delete them.",
)


# --- choosing dead letters ----------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class FilterOptions:
    """Options that filter dead letters. A dead letter has to match all of them."""

    vertex: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Only dead letters of this vertex.",
            autocompletion=complete_vertices,
        ),
    ] = None
    reason: Annotated[
        str | None,
        typer.Option(metavar="TEXT", help="Only dead letters whose reason has this text."),
    ] = None
    cause: Annotated[
        str | None,
        typer.Option(
            metavar="TEXT",
            help="Only dead letters of this cause, as --count prints it; all alike match.",
        ),
    ] = None
    error: Annotated[
        str | None,
        typer.Option(metavar="TEXT", help="Only dead letters whose error has this text."),
    ] = None
    text: Annotated[
        str | None,
        typer.Option(
            metavar="TEXT",
            help="Only dead letters with this text in value, id, reason, error, keys or headers.",
        ),
    ] = None
    key: Annotated[
        str | None,
        typer.Option(metavar="TEXT", help="Only dead letters with this text in one of the keys."),
    ] = None
    header: Annotated[
        str | None,
        typer.Option(
            metavar="NAME[=VALUE]", help="Only dead letters with this header, or this value of it."
        ),
    ] = None
    since: Annotated[
        str | None,
        typer.Option(
            metavar="TIME",
            help="Only dead letters of messages that died since: 2h (ago), or 2026-11-16T15:00 "
            "(UTC).",
        ),
    ] = None
    until: Annotated[
        str | None,
        typer.Option(metavar="TIME", help="Only dead letters of messages that died before then."),
    ] = None

    def to_filter(self, up_to: int | None = None) -> LetterFilter:
        """Returns the filter that the options describe."""
        from ebbflow.deadletters import LetterFilter

        times = {name: parse_time(getattr(self, name), f"--{name}") for name in ("since", "until")}
        return LetterFilter(**asdict(self) | times, up_to=up_to)


_NO_FILTER = FilterOptions()


@dataclass(frozen=True, slots=True)
class ChoiceOptions:
    """Options that choose dead letters by number or id, by a filter, or all of them."""

    ids: Annotated[
        list[str] | None,
        typer.Argument(metavar="ID", help="Numbers of dead letters, or ids of messages."),
    ] = None
    everything: Annotated[bool, typer.Option("--all", help="Take every dead letter.")] = False
    filters: FilterOptions = _NO_FILTER
    up_to: Annotated[
        int | None,
        typer.Option("--up-to", metavar="NUMBER", help="Only dead letters up to this number."),
    ] = None

    def choose(self) -> ChosenDeadLetters:
        """Returns the chosen dead letters.

        Requires exactly one way of choosing, so that nothing selects all of them by accident.
        """
        from ebbflow.cli.dlq_tables import ChosenDeadLetters
        from ebbflow.deadletters import LetterFilter

        filter = self.filters.to_filter(self.up_to)
        is_filtered = filter != LetterFilter()
        if bool(self.ids) == (self.everything or is_filtered):
            raise typer.BadParameter(
                "name dead letters by number or id, or say --all or a filter such as --vertex "
                "NAME, not both.",
                param_hint="ID",
            )
        return ChosenDeadLetters(tuple(map(read_which, self.ids or ())), filter)


def read_which(text: str) -> Which:
    """Returns digits as a number: every dead letter has one, so an id of digits is not needed."""
    return int(text) if text.isdecimal() else text


def parse_time(
    text: str | None,
    option: str,
    now: Callable[[], datetime] = lambda: datetime.now(UTC),
) -> datetime | None:
    """Returns the time that the user passed: a duration before now, or a date and time in UTC."""
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
            f"{text!r} is not a time; write for example 90m or 2h, which is how long ago, or "
            "2026-11-16T15:00, which is in UTC.",
            param_hint=option,
        ) from error
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


def parse_rate(text: str | None) -> float | None:
    """Returns the rate that the user passed, in dead letters per second."""
    if text is None:
        return None
    parts = _RATE.fullmatch(text.strip())
    if parts is None or not float(parts[1]):
        raise typer.BadParameter(
            f"{text!r} is not a rate; write for example 500, 500/s or 30/m.", param_hint="--rate"
        )
    return float(parts[1]) / _SECONDS[parts[2]]


def _open(pipeline: str, server: ServerOptions) -> AbstractContextManager[DeadLetters]:
    from ebbflow.deadletters import DeadLetters

    return DeadLetters.open(pipeline, state=server.state, nats=server.nats)


# --- list, show, export -------------------------------------------------------------------------


@app.command("list")
@expand_options
def list_letters(
    pipeline: PipelineArgument,
    filters: FilterOptions,
    limit: Annotated[
        int, typer.Option(min=1, metavar="NUMBER", help="List at most this many dead letters.")
    ] = 50,
    count: Annotated[
        bool, typer.Option("--count", help="Count dead letters by vertex and cause.")
    ] = False,
    newest: Annotated[
        bool, typer.Option("--newest", help="List the newest dead letter first.")
    ] = False,
    as_json: JsonOption = False,
    server: ServerOptions = HERE,
) -> None:
    """List dead letters, oldest first or newest first, or count them by their causes."""
    from ebbflow.cli import dlq_tables
    from ebbflow.deadletters.filters import describe_letter

    chosen = filters.to_filter()
    with _open(pipeline, server) as letters:
        if count:
            _echo_causes(letters, chosen, as_json)
            return
        listed = [*letters.list(chosen, limit + 1, newest)]
        counts = letters.counts()
    shown = listed[:limit]
    if as_json:
        for stored in shown:
            typer.echo(json.dumps(describe_letter(stored, whole=False)))
        return
    for line in dlq_tables.list_lines(shown, dlq_tables.console().width) if shown else ():
        typer.echo(line)
    typer.echo(_footer(counts, chosen, len(shown), len(listed) > limit))


def _echo_causes(letters: DeadLetters, chosen: LetterFilter, as_json: bool) -> None:
    from ebbflow.cli import dlq_tables

    causes = _find_causes(letters, chosen)
    if as_json:
        for (vertex, text), count in causes.items():
            typer.echo(json.dumps({"vertex": vertex, "cause": text, "count": count}))
        return
    for line in dlq_tables.cause_lines(causes):
        typer.echo(line)


def _find_causes(letters: DeadLetters, chosen: LetterFilter) -> Causes:
    from ebbflow.cli.dlq_tables import why
    from ebbflow.engine.causes import CauseCounter

    if chosen.is_everything:
        causes = letters.causes().items()
        return {cause: count for cause, count in causes if chosen.vertex in (None, cause[0])}
    counter = CauseCounter()
    for stored in letters.list(chosen):
        counter.add(why(stored.letter), group=stored.letter.vertex)
    return {(str(c.group), c.text): c.count for c in counter.causes()}


def _footer(counts: dict[str, int], chosen: LetterFilter, shown: int, is_cut: bool) -> str:
    from ebbflow.cli.dlq_tables import letters_text

    in_all = counts.get(chosen.vertex, 0) if chosen.vertex else sum(counts.values())
    if is_cut:
        of = letters_text(in_all) if chosen.is_everything else f"more that match, {in_all:,} in all"
        return f"\n{shown:,} of {of}; see more with --limit, or their causes with --count"
    if shown:
        return f"\n{letters_text(shown)}"
    if in_all:
        return f"no dead letter matches; there are {in_all:,}"
    others = ", ".join(f"{name} ({count:,})" for name, count in counts.items())
    if chosen.vertex and others:
        return f"0 dead letters of vertex {chosen.vertex!r}; others have some: {others}"
    return "0 dead letters"


@app.command()
@expand_options
def show(
    pipeline: PipelineArgument,
    id: Annotated[
        str, typer.Argument(metavar="ID", help="Number of a dead letter, or id of a message.")
    ],
    as_json: JsonOption = False,
    server: ServerOptions = HERE,
) -> None:
    """Show everything about one dead letter, or about all dead letters of one message."""
    from ebbflow.cli import dlq_tables
    from ebbflow.deadletters.filters import describe_letter

    with _open(pipeline, server) as letters:
        chosen = letters.get(read_which(id))
    for stored in chosen:
        typer.echo(
            json.dumps(describe_letter(stored)) if as_json else dlq_tables.letter_to_text(stored)
        )


@app.command()
@expand_options
def export(
    pipeline: PipelineArgument,
    filters: FilterOptions,
    output: OutputOption = None,
    server: ServerOptions = HERE,
) -> None:
    """Write dead letters with all their facts and values as JSON, one object per line."""
    from ebbflow.cli.dlq_tables import letters_text
    from ebbflow.deadletters.filters import describe_letter

    chosen = filters.to_filter()
    count = 0
    with _open(pipeline, server) as letters, _writing(output) as file:
        for stored in letters.list(chosen):
            file.write(json.dumps(describe_letter(stored)) + "\n")
            count += 1
    typer.echo(f"{letters_text(count)} exported", err=True)


@contextmanager
def _writing(path: Path | None) -> Iterator[IO[str]]:
    if path is None:
        yield sys.stdout
        return
    with path.open("w", encoding="utf-8") as file:
        yield file


# --- replay -------------------------------------------------------------------------------------


@app.command()
@expand_options
def replay(
    pipeline: PipelineArgument,
    choice: ChoiceOptions,
    function: Annotated[
        str | None,
        typer.Option(
            "--map",
            metavar="MODULE:FUNCTION",
            help="Call this function for each dead letter; its result is sent back.",
        ),
    ] = None,
    edit: Annotated[
        bool, typer.Option("--edit", help="Open the dead letter in your editor ($EDITOR) first.")
    ] = False,
    rate: Annotated[
        str | None,
        typer.Option(
            metavar="N[/s|/m|/h]",
            help="Send back at most this many dead letters, per second by default.",
        ),
    ] = None,
    dry_run: Annotated[
        bool,
        typer.Option("--dry-run", help="Show what would happen without changing anything."),
    ] = False,
    as_json: JsonOption = False,
    server: ServerOptions = HERE,
) -> None:
    """Send messages back to the vertex where they died, as if for the first time.

    Each goes back exactly once. Repeat a replay that was interrupted: it continues where it ended.
    """
    from ebbflow.cli.dlq_replay import ReplayCommand

    chosen = choice.choose()
    command = ReplayCommand(pipeline, function, edit, parse_rate(rate), dry_run, as_json)
    with _open(pipeline, server) as letters:
        result = command.run(letters, chosen)
    if result is not None and result.kept:
        raise typer.Exit(ExitCode.NOT_READY)


# --- purge --------------------------------------------------------------------------------------


@app.command()
@expand_options
def purge(
    pipeline: PipelineArgument,
    choice: ChoiceOptions,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Delete without asking.")] = False,
    server: ServerOptions = HERE,
) -> None:
    """Delete dead letters. This cannot be undone."""
    from ebbflow.cli.dlq_tables import letters_text

    chosen = choice.choose()
    with _open(pipeline, server) as letters:
        count = _purge(letters, chosen, pipeline, yes)
    typer.echo("Nothing was deleted." if count is None else f"{letters_text(count)} deleted")


def _purge(letters: DeadLetters, chosen: ChosenDeadLetters, pipeline: str, yes: bool) -> int | None:
    """Returns how many dead letters were deleted; ``None`` if the user declined."""
    numbers = chosen.find_numbers(letters) if chosen.which else None
    # Dead letters that arrive after the prompt are not part of what the user confirms.
    filter = replace(chosen.filter, up_to=letters.last_number(chosen.filter))
    if not yes:
        total = len(numbers) if numbers is not None else _count(letters, filter)
        if total and not _confirm(total, pipeline):
            return None
    return letters.purge(filter if numbers is None else numbers)


def _count(letters: DeadLetters, filter: LetterFilter) -> int:
    return sum(1 for _ in letters.list(filter))


def _confirm(total: int, pipeline: str) -> bool:
    from ebbflow.cli.dlq_tables import letters_text

    try:
        return typer.confirm(f"Delete {letters_text(total)} of {pipeline} for good?")
    except typer.Abort:
        raise typer.BadParameter("there is no terminal to ask on.", param_hint="--yes") from None
