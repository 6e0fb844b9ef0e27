"""``ebbflow lint``: every problem of every file as ``file:line:col: code message``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ebbflow.cli.conventions import (
    BindOption,
    ContainersOption,
    ExitCode,
    JsonOption,
    echo_notes,
)

if TYPE_CHECKING:
    from ebbflow.domain.errors import Problem
    from ebbflow.spec.lint import SpecFile


def lint(
    files: Annotated[
        list[Path],
        typer.Argument(help="Each of these YAML files holds a pipeline.", show_default=False),
    ],
    bind: BindOption = None,
    containers: ContainersOption = None,
    as_json: JsonOption = False,
) -> None:
    """Check pipelines without running them. Exits with 1 if there are problems.

    It names all problems of a spec at once, and imports user code to check it. Ports, secrets and
    what user code does in open() are checked when the pipeline runs. It also says which bindings of
    images none of the pipelines uses.
    """
    # Imported here: the model takes a while to import, and other commands do without it.
    from ebbflow.spec.lint import read_specs

    read = [read_specs(file, bind=bind, containers=containers) for file in files]
    problems = [problem for file in read for problem in file.problems]
    for problem in problems:
        typer.echo(json.dumps(_facts(problem)) if as_json else str(problem))
    if problems:
        raise typer.Exit(ExitCode.SPEC)
    for file in read:
        echo_notes(file)
    for line in _unused_bindings(read):
        typer.echo(line, err=True)
    if as_json:
        return
    typer.echo("1 file ok" if len(files) == 1 else f"{len(files)} files ok")


def _facts(problem: Problem) -> dict[str, object]:
    names = ("file", "line", "column", "code", "message")
    return {name: getattr(problem, name) for name in names}


def _unused_bindings(read: list[SpecFile]) -> list[str]:
    """Returns a line for each bindings file with names that stand for no image of these files."""
    used = {(file.binder.bindings.file, name) for file in read for name in file.binder.used}
    unused = {
        file.binder.bindings.file: [
            name
            for name in file.binder.bindings.by_name
            if (file.binder.bindings.file, name) not in used
        ]
        for file in read
    }
    return [f"{file}: unused: {', '.join(names)}" for file, names in unused.items() if names]
