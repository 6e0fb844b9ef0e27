"""``ebbflow answer``: get the answers to a request, list answers, or watch for new ones.

The commands use the server of the running pipeline. If the pipeline is not running, they start the
embedded server and stop it when they end. To find a store of the user's own, they need the
pipeline's file.
"""

from __future__ import annotations

import json
from contextlib import AbstractContextManager
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ebbflow.cli.options import (
    HERE,
    BindOption,
    ContainersOption,
    JsonOption,
    NameOption,
    SecretsOption,
    ServerOptions,
    expand_options,
    parse_seconds,
)
from ebbflow.cli.tables import cut_end, print_table
from ebbflow.domain.errors import EbbflowError
from ebbflow.domain.message import json_bytes

if TYPE_CHECKING:
    from ebbflow.engine.answers import Answer
    from ebbflow.operations.stored_answers import StoredAnswers

_SHOWN = 60
_COLUMNS = ("request", "vertex", "message", "answer", "stored (UTC)", "bytes")
_FILES = (".yaml", ".yml")

app = typer.Typer(
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    help="Look at the answers that sinks have stored.",
)

WhereArgument = Annotated[
    str,
    typer.Argument(
        metavar="PIPELINE",
        help="Name of the pipeline, or its YAML file.",
        show_default=False,
    ),
]
RequestArgument = Annotated[
    str, typer.Argument(metavar="REQUEST", help="Id of the request.", show_default=False)
]


def _open(
    pipeline: str, server: ServerOptions, **choices: Any
) -> AbstractContextManager[StoredAnswers]:
    from ebbflow.operations.stored_answers import answers, open_answers

    if not pipeline.endswith(_FILES):
        return answers(pipeline, state=server.state, nats=server.nats)
    from ebbflow.spec.lint import load

    file = Path(pipeline)
    spec = load(file, **choices)
    return open_answers(spec, file.parent, state=server.state, nats=server.nats)


# --- commands -----------------------------------------------------------------------------------


@app.command()
@expand_options
def get(
    pipeline: WhereArgument,
    request: RequestArgument,
    as_json: JsonOption = False,
    server: ServerOptions = HERE,
    name: NameOption = None,
    secrets: SecretsOption = None,
    bind: BindOption = None,
    containers: ContainersOption = None,
) -> None:
    """Print the answers to one request, one per line, in the order of results."""
    choices = {"name": name, "secrets": secrets, "bind": bind, "containers": containers}
    with _open(pipeline, server, **choices) as stored:
        chosen = stored.get(request)
    if not chosen:
        raise EbbflowError(
            f"There is no answer to request {request!r} in {pipeline}, or not yet. "
            f"See which there are with: ebbflow answer list {pipeline}"
        )
    for answer in chosen:
        if as_json:
            typer.echo(json.dumps(_facts(answer)))
        else:
            typer.echo(answer.payload, nl=not answer.payload.endswith(b"\n"))


@app.command("list")
@expand_options
def list_answers(
    pipeline: WhereArgument,
    limit: Annotated[
        int, typer.Option(min=1, metavar="NUMBER", help="List at most this many answers.")
    ] = 50,
    as_json: JsonOption = False,
    server: ServerOptions = HERE,
) -> None:
    """List the answers that are stored, oldest first."""
    with _open(pipeline, server) as stored:
        listed = stored.list(limit + 1)
        if as_json:
            for answer in islice(listed, limit):
                typer.echo(json.dumps(_facts(answer)))
            return
        shown = [*listed]
    if shown:
        print_table(_COLUMNS, map(_cells, shown[:limit]), numbers=("bytes",))
    typer.echo(_count(shown, limit))


@app.command()
@expand_options
def watch(
    pipeline: WhereArgument,
    request: Annotated[
        str | None,
        typer.Argument(
            metavar="REQUEST",
            help="Only answers to this request, beginning with those already stored.",
            show_default=False,
        ),
    ] = None,
    timeout: Annotated[
        str | None,
        typer.Option(metavar="TIME", help="Stop after this time: 90s, 5m, 1h30m."),
    ] = None,
    as_json: JsonOption = False,
    server: ServerOptions = HERE,
) -> None:
    """Print answers as they are stored, until Ctrl-C."""
    if timeout is not None:
        parse_seconds(timeout, "--timeout")
    with _open(pipeline, server) as stored:
        for answer in stored.watch(request, timeout=timeout):
            typer.echo(json.dumps(_facts(answer)) if as_json else _line(answer))


# --- formatting ---------------------------------------------------------------------------------


def _facts(answer: Answer) -> dict[str, Any]:
    """Returns the answer as JSON fields; bytes that are not text become ``{"base64": …}``."""
    return {
        "request": answer.request,
        "vertex": answer.vertex,
        "message": answer.message,
        "number": answer.number,
        "stored": answer.stored.isoformat() if answer.stored else None,
        "payload": json_bytes(answer.payload),
    }


def _shorten(answer: Answer) -> str:
    from ebbflow.status.terminal import one_line

    return cut_end(
        one_line(answer.payload[: 4 * _SHOWN].decode("utf-8", "backslashreplace")), _SHOWN
    )


def _line(answer: Answer) -> str:
    from ebbflow.status.terminal import one_line

    return f"{one_line(answer.request)} {answer.vertex}: {_shorten(answer)}"


def _cells(answer: Answer) -> list[str]:
    stored = answer.stored.strftime("%Y-%m-%d %H:%M:%S") if answer.stored else ""
    size = f"{len(answer.payload):,}"
    return [answer.request, answer.vertex, answer.message, _shorten(answer), stored, size]


def _count(shown: list[Answer], limit: int) -> str:
    if len(shown) > limit:
        return f"the first {limit:,} answers; see more with --limit {10 * limit}"
    return "1 answer" if len(shown) == 1 else f"{len(shown):,} answers"
