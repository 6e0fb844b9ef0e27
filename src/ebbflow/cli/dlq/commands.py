"""The commands of ``ebbflow dlq``.

They use the server of a pipeline that runs. If it does not run, they start the embedded server for
as long as they take.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated

import typer

from ebbflow.cli.conventions import (
    DEFAULT_STATE,
    ExitCode,
    JsonOption,
    NatsOption,
    PipelineArgument,
    StateOption,
)
from ebbflow.cli.dlq.choosing import (
    AllOption,
    CauseOption,
    Chosen,
    ErrorOption,
    HeaderOption,
    IdsArgument,
    KeyOption,
    ReasonOption,
    SinceOption,
    TextOption,
    UntilOption,
    UpToOption,
    VertexOption,
    choose,
    find_numbers,
    make_filter,
    parse_rate,
    read_which,
)

if TYPE_CHECKING:
    from ebbflow.deadletters import DeadLetters, LetterFilter
    from ebbflow.deadletters.letters import Causes

app = typer.Typer(
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    help="Look at dead letters, send them back, export or delete them.",
)


def _open(pipeline: str, state: Path, nats: str | None) -> AbstractContextManager[DeadLetters]:
    from ebbflow.deadletters import DeadLetters

    return DeadLetters.open(pipeline, state=state, nats=nats)


# --- looking ------------------------------------------------------------------------------------


@app.command("list")
def list_letters(
    pipeline: PipelineArgument,
    vertex: VertexOption = None,
    reason: ReasonOption = None,
    cause: CauseOption = None,
    error: ErrorOption = None,
    text: TextOption = None,
    key: KeyOption = None,
    header: HeaderOption = None,
    since: SinceOption = None,
    until: UntilOption = None,
    limit: Annotated[int, typer.Option(min=1, help="The list ends after this many letters.")] = 50,
    count: Annotated[
        bool, typer.Option("--count", help="The command counts letters by vertex and cause.")
    ] = False,
    newest: Annotated[
        bool, typer.Option("--newest", help="The list begins with the newest letter.")
    ] = False,
    as_json: JsonOption = False,
    state: StateOption = DEFAULT_STATE,
    nats: NatsOption = None,
) -> None:
    """List dead letters, oldest first or newest first, or count them by their causes."""
    from ebbflow.cli.dlq import showing
    from ebbflow.deadletters import describe_letter

    chosen = make_filter(vertex, reason, cause, error, text, key, header, since, until)
    with _open(pipeline, state, nats) as letters:
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
    for line in showing.list_lines(shown, showing.console().width) if shown else ():
        typer.echo(line)
    typer.echo(_footer(counts, chosen, len(shown), len(listed) > limit))


def _echo_causes(letters: DeadLetters, chosen: LetterFilter, as_json: bool) -> None:
    from ebbflow.cli.dlq import showing

    causes = _find_causes(letters, chosen)
    if as_json:
        for (vertex, text), count in causes.items():
            typer.echo(json.dumps({"vertex": vertex, "cause": text, "count": count}))
        return
    for line in showing.cause_lines(causes):
        typer.echo(line)


def _find_causes(letters: DeadLetters, chosen: LetterFilter) -> Causes:
    from ebbflow.cli.dlq.showing import why
    from ebbflow.engine.causes import CauseCounter

    if chosen.is_everything:
        causes = letters.causes().items()
        return {cause: count for cause, count in causes if chosen.vertex in (None, cause[0])}
    counter = CauseCounter()
    for stored in letters.list(chosen):
        counter.add(why(stored.letter), group=stored.letter.vertex)
    return {(str(c.group), c.text): c.count for c in counter.causes()}


def _footer(counts: dict[str, int], chosen: LetterFilter, shown: int, is_cut: bool) -> str:
    from ebbflow.cli.dlq.showing import letters_text

    in_all = counts.get(chosen.vertex, 0) if chosen.vertex else sum(counts.values())
    if is_cut:
        of = letters_text(in_all) if chosen.is_everything else f"more that match, {in_all:,} in all"
        return f"\n{shown:,} of {of}; see more with --limit, or what they are with --count"
    if shown:
        return f"\n{letters_text(shown)}"
    if in_all:
        return f"no dead letter matches; there are {in_all:,}"
    others = ", ".join(f"{name} ({count:,})" for name, count in counts.items())
    if chosen.vertex and others:
        return f"0 dead letters of vertex {chosen.vertex!r}; others have some: {others}"
    return "0 dead letters"


@app.command()
def show(
    pipeline: PipelineArgument,
    id: Annotated[str, typer.Argument(help="The number of a letter, or the id of a message.")],
    as_json: JsonOption = False,
    state: StateOption = DEFAULT_STATE,
    nats: NatsOption = None,
) -> None:
    """Show everything about one dead letter, or about all letters of one message."""
    from ebbflow.cli.dlq import showing
    from ebbflow.deadletters import describe_letter

    with _open(pipeline, state, nats) as letters:
        chosen = letters.get(read_which(id))
    for stored in chosen:
        typer.echo(json.dumps(describe_letter(stored)) if as_json else showing.describe(stored))


@app.command()
def export(
    pipeline: PipelineArgument,
    vertex: VertexOption = None,
    reason: ReasonOption = None,
    cause: CauseOption = None,
    error: ErrorOption = None,
    text: TextOption = None,
    key: KeyOption = None,
    header: HeaderOption = None,
    since: SinceOption = None,
    until: UntilOption = None,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="FILE", help="The letters go to this file."),
    ] = None,
    state: StateOption = DEFAULT_STATE,
    nats: NatsOption = None,
) -> None:
    """Write dead letters with all their facts and values as JSON, one object a line."""
    from ebbflow.cli.dlq.showing import letters_text
    from ebbflow.deadletters import describe_letter

    chosen = make_filter(vertex, reason, cause, error, text, key, header, since, until)
    count = 0
    with _open(pipeline, state, nats) as letters, _writing(output) as file:
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


# --- sending back -------------------------------------------------------------------------------


@app.command()
def replay(
    pipeline: PipelineArgument,
    ids: IdsArgument = None,
    everything: AllOption = False,
    vertex: VertexOption = None,
    reason: ReasonOption = None,
    cause: CauseOption = None,
    error: ErrorOption = None,
    text: TextOption = None,
    key: KeyOption = None,
    header: HeaderOption = None,
    since: SinceOption = None,
    until: UntilOption = None,
    up_to: UpToOption = None,
    function: Annotated[
        str | None,
        typer.Option(
            "--map",
            metavar="MODULE:FUNCTION",
            help="This function gets each letter and returns what goes back.",
        ),
    ] = None,
    edit: Annotated[
        bool, typer.Option("--edit", help="The letter opens in your editor ($EDITOR) first.")
    ] = False,
    rate: Annotated[
        str | None,
        typer.Option(metavar="N[/s|/m|/h]", help="At most this many letters a second go back."),
    ] = None,
    dry_run: Annotated[
        bool,
        typer.Option("--dry-run", help="The command says what would be; nothing is changed."),
    ] = False,
    as_json: JsonOption = False,
    state: StateOption = DEFAULT_STATE,
    nats: NatsOption = None,
) -> None:
    """Send messages back to the vertex where they died, as if they came for the first time.

    Each goes back exactly once. Repeat a replay that was interrupted: it goes on where it ended.
    """
    from ebbflow.cli.dlq.replaying import ReplayCommand

    filter = make_filter(vertex, reason, cause, error, text, key, header, since, until, up_to)
    chosen = choose(ids, everything, filter)
    command = ReplayCommand(pipeline, function, edit, parse_rate(rate), dry_run, as_json)
    with _open(pipeline, state, nats) as letters:
        result = command.run(letters, chosen)
    if result is not None and result.kept:
        raise typer.Exit(ExitCode.NOT_READY)


# --- deleting -----------------------------------------------------------------------------------


@app.command()
def purge(
    pipeline: PipelineArgument,
    ids: IdsArgument = None,
    everything: AllOption = False,
    vertex: VertexOption = None,
    reason: ReasonOption = None,
    cause: CauseOption = None,
    error: ErrorOption = None,
    text: TextOption = None,
    key: KeyOption = None,
    header: HeaderOption = None,
    since: SinceOption = None,
    until: UntilOption = None,
    up_to: UpToOption = None,
    yes: Annotated[
        bool, typer.Option("--yes", "-y", help="The command does not ask before it deletes.")
    ] = False,
    state: StateOption = DEFAULT_STATE,
    nats: NatsOption = None,
) -> None:
    """Delete dead letters. Nobody can bring them back."""
    from ebbflow.cli.dlq.showing import letters_text

    filter = make_filter(vertex, reason, cause, error, text, key, header, since, until, up_to)
    chosen = choose(ids, everything, filter)
    with _open(pipeline, state, nats) as letters:
        count = _purge(letters, chosen, pipeline, yes)
    typer.echo("Nothing was deleted." if count is None else f"{letters_text(count)} deleted")


def _purge(letters: DeadLetters, chosen: Chosen, pipeline: str, yes: bool) -> int | None:
    """Returns how many letters were deleted; ``None`` if the user has said no."""
    numbers = find_numbers(letters, chosen) if chosen.which else None
    # What dies after the question is not part of the answer.
    filter = replace(chosen.filter, up_to=letters.last_number(chosen.filter))
    if not yes:
        total = len(numbers) if numbers is not None else _count(letters, filter)
        if total and not _confirm(total, pipeline):
            return None
    return letters.purge(filter if numbers is None else numbers)


def _count(letters: DeadLetters, filter: LetterFilter) -> int:
    return sum(1 for _ in letters.list(filter))


def _confirm(total: int, pipeline: str) -> bool:
    from ebbflow.cli.dlq.showing import letters_text

    try:
        return typer.confirm(f"Delete {letters_text(total)} of {pipeline} for good?")
    except typer.Abort:
        raise typer.BadParameter("there is no terminal to ask on.", param_hint="--yes") from None
