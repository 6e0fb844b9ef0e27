"""The ``ebbflow`` command. Each command is in a module next to this one.

An error that Ebbflow raises on purpose is printed without a traceback. Anything else is a bug and
prints Python's plain traceback. Typer's own tracebacks are off because they print local variables,
which may include passwords.
"""

from __future__ import annotations

import io
import sys
import traceback
from collections.abc import Callable
from typing import Annotated, Any

import typer
from typer.core import TyperGroup
from typing_extensions import override

from ebbflow.cli import (
    answer,
    dev,
    dlq,
    doctor,
    pipeline_commands,
    project_commands,
    run,
    send,
    serve_udf,
    spec_commands,
    sql,
    tap,
    trace,
)
from ebbflow.cli.demo import demo
from ebbflow.cli.options import (
    EXIT_CODE_HELP,
    ExitCode,
    ListeningCommand,
    expand_options,
    reword,
)
from ebbflow.domain import __version__
from ebbflow.domain.errors import EbbflowError, EngineLost, SpecError

_WIDTH = 100  # of help at most, also in a wider terminal
_WHOLE = 1_000  # more characters than any help has


class Commands(TyperGroup):
    """The group of all commands. It maps each kind of error to an exit code."""

    @override
    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Lists the commands with all their words, which a narrow terminal breaks into lines."""
        found = [(name, self.get_command(ctx, name)) for name in self.list_commands(ctx)]
        with formatter.section("Commands"):
            formatter.write_dl(
                [(name, one.get_short_help_str(_WHOLE)) for name, one in found if one is not None]
            )

    @override
    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except typer.BadParameter as error:
            error.message = reword(error.message)
            raise
        except SpecError as error:
            typer.echo(str(error))
            raise typer.Exit(ExitCode.SPEC) from None
        except EbbflowError as error:
            typer.echo(f"ebbflow: {error}", err=True)
            lost = isinstance(error, EngineLost)
            code = ExitCode.ENGINE_LOST if lost else ExitCode.NOT_READY
            raise typer.Exit(code) from None
        except KeyboardInterrupt as interrupt:
            # The interrupted code may have added a note about what it was doing.
            where = "".join(f" {note}" for note in getattr(interrupt, "__notes__", ()))
            typer.echo(f"ebbflow: interrupted{where}", err=True)
            raise typer.Exit(ExitCode.INTERRUPTED) from None


app = typer.Typer(
    name="ebbflow",
    cls=Commands,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    epilog=EXIT_CODE_HELP,
    context_settings={"max_content_width": _WIDTH},
)
_COMMANDS = (
    demo, project_commands.new, spec_commands.lint, project_commands.check_examples, dev.dev,
    run.run, pipeline_commands.pause, pipeline_commands.resume, tap.tap, send.send,
    spec_commands.graph, spec_commands.echo, spec_commands.schema,
    spec_commands.connectors, doctor.doctor,
    spec_commands.permissions, serve_udf.serve_udf, trace.trace, pipeline_commands.ui, sql.sql,
    pipeline_commands.status, pipeline_commands.logs,
)  # fmt: skip
"""In the order in which ``ebbflow --help`` lists them."""

_OPTIONS: dict[Callable[..., Any], dict[str, Any]] = {
    run.run: {"cls": ListeningCommand, "epilog": EXIT_CODE_HELP},
    project_commands.check_examples: {"name": "test"},
}

for _command in _COMMANDS:
    app.command(**_OPTIONS.get(_command, {}))(expand_options(_command))
app.add_typer(dlq.app, name="dlq")
app.add_typer(answer.app, name="answer")


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"ebbflow {__version__}")
        raise typer.Exit


@app.callback()
def _ebbflow(
    version: Annotated[
        bool,
        typer.Option(
            "--version",
            callback=_print_version,
            is_eager=True,
            help="Print the version and exit.",
        ),
    ] = False,
) -> None:
    """Message pipelines on Apache Spark with a decision for every single message."""


def main() -> None:
    """The entry point of the ``ebbflow`` script."""
    for stream in (sys.stdout, sys.stderr):
        # A message may contain any text, and a character that the terminal cannot show must not
        # end a run.
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    try:
        app()
    except Exception:
        # Python's own exit code for this is 1, which already means problems in the pipeline.
        traceback.print_exc()
        sys.exit(ExitCode.NOT_READY)
