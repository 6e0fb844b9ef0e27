"""Conventions of all commands: exit codes, and the options that say where a pipeline lives."""

from __future__ import annotations

from enum import IntEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from ebbflow.cli.completion import complete_pipelines
from ebbflow.domain.durations import milliseconds

if TYPE_CHECKING:
    from ebbflow.spec.lint import SpecFile

DEFAULT_STATE = Path(".ebbflow")


def parse_seconds(text: str, option: str) -> float:
    """Returns the seconds of a time that the user has typed for an option."""
    try:
        value = milliseconds(text) / 1000
    except ValueError as error:
        raise typer.BadParameter(f"{error}.", param_hint=option) from error
    if not value:
        raise typer.BadParameter("must be longer than 0.", param_hint=option)
    return value


def echo_notes(file: SpecFile) -> None:
    """Prints to standard error what the file says that changes nothing here."""
    for note in file.notes:
        typer.echo(f"{file.path}: {note}", err=True)


class ExitCode(IntEnum):
    """The exit code of a command, for scripts."""

    OK = 0
    SPEC = 1
    USAGE = 2
    NOT_READY = 3
    TIMEOUT = 4
    ENGINE_LOST = 5
    DEAD_LETTERS = 6
    INTERRUPTED = 130


EXIT_CODES = {
    ExitCode.OK: "drained, or stopped on request",
    ExitCode.SPEC: "the pipeline has problems; they are printed as by lint",
    ExitCode.USAGE: "wrong usage of the command",
    ExitCode.NOT_READY: "this machine is not ready, or something failed; the text says what to do",
    ExitCode.TIMEOUT: "--drain did not finish within --timeout",
    ExitCode.ENGINE_LOST: "Spark's JVM kept dying; the next run goes on where this one ended",
    ExitCode.DEAD_LETTERS: "there were more dead letters than --max-dead-letters allows",
    ExitCode.INTERRUPTED: "interrupted before the run began",
}
"""Every exit code with its meaning."""

# The mark keeps the lines from being joined to a paragraph.
EXIT_CODE_HELP = "\b\nExit codes:\n" + "\n".join(
    f"{code:5}  {meaning}" for code, meaning in EXIT_CODES.items()
)

StateOption = Annotated[
    Path,
    typer.Option(
        "--state", metavar="DIR", help="The embedded NATS server keeps its data in this folder."
    ),
]
NatsOption = Annotated[
    str | None,
    typer.Option(
        "--nats",
        metavar="URL",
        help="The pipeline uses your own NATS server at this URL, not the embedded one.",
        envvar="EBBFLOW_NATS_URL",
        show_default=False,
    ),
]
JsonOption = Annotated[
    bool, typer.Option("--json", help="The command prints one JSON object per line.")
]
PipelineArgument = Annotated[
    str,
    typer.Argument(
        help="The command acts on the pipeline of this name.",
        show_default=False,
        autocompletion=complete_pipelines,
    ),
]
SpecArgument = Annotated[
    Path, typer.Argument(help="This YAML file holds the pipeline.", show_default=False)
]
NameOption = Annotated[
    str | None,
    typer.Option(
        "--name", metavar="NAME", help="The pipeline of this name, of several in the file."
    ),
]
BindOption = Annotated[
    Path | None,
    typer.Option(
        "--bind",
        metavar="FILE",
        help="This file says what runs in the place of images; "
        "without it, bindings.yaml beside the pipeline.",
        show_default=False,
    ),
]
ContainersOption = Annotated[
    Literal["docker"] | None,
    typer.Option(
        "--containers",
        help="Images that nothing is bound to run in containers of this kind.",
        show_default=False,
    ),
]
SecretsOption = Annotated[
    Path | None,
    typer.Option(
        "--secrets",
        metavar="DIR",
        help="Secrets and ConfigMaps of Kubernetes are in this folder, as NAME/KEY or NAME.KEY.",
        envvar="EBBFLOW_SECRETS",
        show_default=False,
    ),
]
