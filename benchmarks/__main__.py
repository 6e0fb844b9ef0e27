"""``python -m benchmarks``: measures Ebbflow and its peers on this machine, in one run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

_PARTS = (
    "rates, end-to-end, sources, sinks, kafka, pulsar, sqs, pubsub, postgres, functions, calls, "
    "latency, growth, serving, low-rates, cores, observed, start"
)
_RESULTS = Path("benchmarks/results")

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)


@app.command()
def bench(
    short: Annotated[
        bool,
        typer.Option("--short", help="The run takes under two minutes; its figures are rough."),
    ] = False,
    only: Annotated[
        str | None,
        typer.Option(
            metavar="PARTS", help=f"The run measures only these of: {_PARTS}.", show_default="all"
        ),
    ] = None,
    who: Annotated[
        str | None,
        typer.Option(
            metavar="NAMES",
            help="Contests are among those with one of these in their names; no file is written.",
            show_default="all",
        ),
    ] = None,
    rounds: Annotated[
        int | None,
        typer.Option(min=1, help="The run takes each rate this often.", show_default="3"),
    ] = None,
    seed: Annotated[int, typer.Option(help="The run makes its payloads from this number.")] = 2026,
    to: Annotated[
        Path, typer.Option(metavar="DIR", help="The run writes its files here.")
    ] = _RESULTS,
) -> None:
    """Measure Ebbflow next to its peers on this machine: a table, a plot, and the figures in JSON.

    Takes about half an hour, and wants the machine for itself.
    """
    parts = _parts(only)
    from dataclasses import replace

    from rich.console import Console

    from benchmarks import files, programme, tables

    console = Console(highlight=False)
    wanted = programme.SHORT if short else programme.LONG
    if rounds is not None:
        wanted = replace(wanted, rounds=rounds)
    if who is not None:
        wanted = replace(wanted, who=tuple(who.split(",")))
    figures = programme.measured(wanted, parts, seed, console.print)
    for table in tables.tables(figures):
        console.print(table)
    for text in figures.left_out:
        console.print(f"left out: {text}", style="bold")
    # Figures for some contestants would replace those for all.
    for file in files.write(figures, to, seed) if who is None else ():
        console.print(f"written: {file}")


def _parts(only: str | None) -> list[str]:
    known = _PARTS.split(", ")
    wanted = known if only is None else [part.strip() for part in only.split(",")]
    if unknown := [part for part in wanted if part not in known]:
        raise typer.BadParameter(f"{unknown[0]!r} is not one of: {_PARTS}", param_hint="--only")
    return wanted


if __name__ == "__main__":
    app()
