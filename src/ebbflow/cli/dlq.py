"""``ebbflow dlq``: list, show, replay and purge the dead letters of a pipeline.

The commands use the server of a pipeline that runs. If it does not run, they start the embedded
server for as long as they take.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ebbflow.cli.conventions import (
    DEFAULT_STATE,
    JsonOption,
    NatsOption,
    PipelineArgument,
    StateOption,
    json_bytes,
)

if TYPE_CHECKING:
    from rich.table import Table

    from ebbflow.deadletters import DeadLetters, StoredLetter, Which

_ERROR_WIDTH = 60
_SHOWN_BYTES = 4096

app = typer.Typer(
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    help="Look at dead letters, send them back or delete them.",
)

IdsArgument = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="ID", help="The command takes the letters with these numbers or message ids."
    ),
]
AllOption = Annotated[bool, typer.Option("--all", help="The command takes every letter.")]
VertexOption = Annotated[
    str | None, typer.Option(metavar="NAME", help="The command takes only letters of this vertex.")
]


# --- reaching the letters -----------------------------------------------------------------------


def _open(pipeline: str, state: Path, nats: str | None) -> AbstractContextManager[DeadLetters]:
    from ebbflow.deadletters import DeadLetters

    return DeadLetters.open(pipeline, state=state, nats=nats)


def _which(ids: list[str]) -> list[Which]:
    """Reads digits as numbers; every letter has one, so nobody needs an id of digits only."""
    return [int(text) if text.isdecimal() else text for text in ids]


def _selection(ids: list[str] | None, everything: bool, vertex: str | None) -> list[Which] | None:
    """Returns the letters named; ``None`` means every letter, or every one of the vertex."""
    if bool(ids) == (everything or vertex is not None):
        raise typer.BadParameter(
            "name letters by number or id, or say --all or --vertex NAME, not both.",
            param_hint="ID",
        )
    return _which(ids) if ids else None


# --- commands -----------------------------------------------------------------------------------


@app.command("list")
def list_letters(
    pipeline: PipelineArgument,
    vertex: VertexOption = None,
    limit: Annotated[int, typer.Option(min=1, help="The list ends after this many letters.")] = 50,
    as_json: JsonOption = False,
    state: StateOption = DEFAULT_STATE,
    nats: NatsOption = None,
) -> None:
    """List dead letters, oldest first."""
    with _open(pipeline, state, nats) as letters:
        counts = letters.counts()
        listed = letters.list(vertex, limit)
        if as_json:
            for stored in listed:
                typer.echo(json.dumps(_facts(stored)))
            return
        table = _table(listed)
    total = counts.get(vertex, 0) if vertex else sum(counts.values())
    if total:
        _console().print(table)
    typer.echo(_footer(counts, vertex, total, limit))


@app.command()
def show(
    pipeline: PipelineArgument,
    id: Annotated[str, typer.Argument(help="The number of a letter, or the id of a message.")],
    as_json: JsonOption = False,
    state: StateOption = DEFAULT_STATE,
    nats: NatsOption = None,
) -> None:
    """Show everything about one dead letter, or about all letters of one message."""
    with _open(pipeline, state, nats) as letters:
        chosen = letters.get(*_which([id]))
    for stored in chosen:
        typer.echo(json.dumps(_facts(stored, whole=True)) if as_json else _describe(stored))


@app.command()
def replay(
    pipeline: PipelineArgument,
    ids: IdsArgument = None,
    everything: AllOption = False,
    vertex: VertexOption = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="The command only counts; nothing is sent.")
    ] = False,
    state: StateOption = DEFAULT_STATE,
    nats: NatsOption = None,
) -> None:
    """Send messages back to the vertex where they died, as if they came for the first time."""
    which = _selection(ids, everything, vertex)
    with _open(pipeline, state, nats) as letters:
        chosen = letters.list(vertex) if which is None else iter(letters.get(*which))
        total = _total(letters, vertex) if which is None else None
        count = letters.replay(_progress(chosen, total), dry_run=dry_run)
    verb = "can be replayed" if dry_run else "sent back"
    typer.echo(f"{_letters_text(count)} {verb}")


@app.command()
def purge(
    pipeline: PipelineArgument,
    ids: IdsArgument = None,
    everything: AllOption = False,
    vertex: VertexOption = None,
    yes: Annotated[
        bool, typer.Option("--yes", "-y", help="The command does not ask before it deletes.")
    ] = False,
    state: StateOption = DEFAULT_STATE,
    nats: NatsOption = None,
) -> None:
    """Delete dead letters. Nobody can bring them back."""
    which = _selection(ids, everything, vertex)
    with _open(pipeline, state, nats) as letters:
        total = _total(letters, vertex) if which is None else len(letters.numbers(*which))
        if total and not yes and not _confirm(total, pipeline):
            typer.echo("Nothing was deleted.")
            return
        count = letters.purge_all(vertex) if which is None else letters.purge(*which)
    typer.echo(f"{_letters_text(count)} deleted")


def _total(letters: DeadLetters, vertex: str | None) -> int:
    counts = letters.counts()
    return counts.get(vertex, 0) if vertex else sum(counts.values())


def _confirm(total: int, pipeline: str) -> bool:
    try:
        return typer.confirm(f"Delete {_letters_text(total)} of {pipeline} for good?")
    except typer.Abort:
        raise typer.BadParameter("there is no terminal to ask on.", param_hint="--yes") from None


def _progress(letters: Iterator[StoredLetter], total: int | None) -> Iterator[StoredLetter]:
    """Yields the letters and shows a bar on the terminal meanwhile."""
    from rich.progress import track

    quiet = total is None or not sys.stderr.isatty()
    yield from track(letters, "replaying", total, console=_console(err=True), disable=quiet)


# --- how letters look ---------------------------------------------------------------------------


def _console(err: bool = False) -> Any:
    from ebbflow.display import console_for

    return console_for(sys.stderr if err else sys.stdout)


def _letters_text(count: int) -> str:
    return "1 dead letter" if count == 1 else f"{count:,} dead letters"


def _table(letters: Iterator[StoredLetter]) -> Table:
    from rich.table import Table
    from rich.text import Text

    from ebbflow.display import one_line

    table = Table()
    table.add_column("number", justify="right", no_wrap=True)
    for name in ("vertex", "id", "deliveries", "reason", "error", "last seen (UTC)"):
        table.add_column(name, overflow="fold")
    for stored in letters:
        letter = stored.letter
        words = [letter.vertex, letter.id, str(letter.deliveries), letter.reason]
        words += [_cut(letter.error or ""), _time(letter.last_seen)]
        table.add_row(str(stored.number), *(Text(one_line(word)) for word in words))
    return table


def _footer(counts: dict[str, int], vertex: str | None, total: int, limit: int) -> str:
    if total > limit:
        return f"{limit:,} of {_letters_text(total)}; see more with --limit {total}"
    if vertex is None or total or not counts:
        return _letters_text(total)
    others = ", ".join(f"{name} ({count:,})" for name, count in counts.items())
    return f"{_letters_text(0)} of vertex {vertex!r}; others have some: {others}"


def _cut(text: str) -> str:
    return text if len(text) <= _ERROR_WIDTH else text[: _ERROR_WIDTH - 1] + "…"


def _time(time: datetime | None) -> str:
    if time is None:
        return "unknown"
    return time.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S")


def _facts(stored: StoredLetter, whole: bool = False) -> dict[str, Any]:
    """Returns the letter for programs; bytes that are no text become ``{"base64": …}``."""
    letter = stored.letter
    facts: dict[str, Any] = {"number": stored.number}
    facts |= {name: getattr(letter, name) for name in letter.__dataclass_fields__}
    for name in ("first_seen", "last_seen", "event_time"):
        facts[name] = facts[name].isoformat() if facts[name] else None
    facts["value"] = json_bytes(letter.value)
    facts["metadata"] = {
        group: {key: json_bytes(value) for key, value in entries.items()}
        for group, entries in letter.metadata.items()
    }
    for name in () if whole else ("value", "traceback", "headers", "metadata"):
        del facts[name]
    return facts


def _describe(stored: StoredLetter) -> str:
    from ebbflow.display import one_line

    letter = stored.letter
    facts = {
        "number": str(stored.number),
        "vertex": letter.vertex,
        "id": letter.id,
        "reason": letter.reason,
        "error": letter.error or "none",
        "deliveries": str(letter.deliveries),
        "first seen": _time(letter.first_seen),
        "last seen": _time(letter.last_seen),
        "event time": _time(letter.event_time),
        "keys": ", ".join(letter.keys) or "none",
    }
    facts |= {f"header {name}": value for name, value in letter.headers.items()}
    for group, entries in letter.metadata.items():
        facts |= {f"metadata {group}.{key}": _text_or_hex(v) for key, v in entries.items()}
    lines = [f"{name + ':':12} {one_line(text)}" for name, text in facts.items()]
    return "\n".join([*lines, *_block("traceback", letter.traceback), *_value(letter)])


def _value(letter: Any) -> list[str]:
    size = f"{len(letter.value):,} bytes"
    if letter.size is not None:
        size += f", cut from {letter.size:,}"
    shown = _text_or_hex(letter.value[:_SHOWN_BYTES])
    if len(letter.value) > _SHOWN_BYTES:
        shown += "\n… (all of it with --json)"
    return _block(f"value ({size})", shown)


def _block(title: str, text: str | None) -> list[str]:
    from ebbflow.display import one_line

    if text is None:
        return []
    return [f"{title}:", *(f"  {one_line(line)}" for line in text.splitlines())]


def _text_or_hex(value: bytes) -> str:
    # A cut may have split the last character; that alone does not make it binary.
    text = value.decode("utf-8", "replace")
    broken = text.rstrip("\ufffd")
    if len(text) - len(broken) <= 3 and "\ufffd" not in broken and "\0" not in broken:
        return broken
    rows = (value[start : start + 16] for start in range(0, len(value), 16))
    return "\n".join(row.hex(" ") for row in rows)
