"""``ebbflow lint``: every problem of every file as ``file:line:col: code message``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ebbflow.cli.conventions import echo_notes


def lint(
    files: Annotated[
        list[Path],
        typer.Argument(help="Each of these YAML files holds a pipeline.", show_default=False),
    ],
) -> None:
    """Check pipelines without running them. Exits with 1 if there are problems."""
    # Imported here: the model takes a while to import, and other commands do without it.
    from ebbflow.spec.lint import read_specs

    read = [read_specs(file) for file in files]
    problems = [problem for file in read for problem in file.problems]
    for problem in problems:
        typer.echo(str(problem))
    if problems:
        raise typer.Exit(1)
    for file in read:
        echo_notes(file)
    typer.echo("1 file ok" if len(files) == 1 else f"{len(files)} files ok")
