"""``ebbflow lint``: every problem of every file as ``file:line:col: code message``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def lint(
    files: Annotated[list[Path], typer.Argument(help="Pipelines in YAML.", show_default=False)],
) -> None:
    """Check pipelines without running them. Exits with 1 if there are problems."""
    # Here, because the model takes a while to import and other commands do without it.
    from ebbflow.spec.lint import lint as problems_of

    problems = [problem for file in files for problem in problems_of(file)]
    for problem in problems:
        typer.echo(str(problem))
    if problems:
        raise typer.Exit(1)
    typer.echo(f"{len(files)} file{'s' * (len(files) != 1)} ok")
