"""Exit codes, options, option parsing and shell completion that commands share.

An option that several commands have is declared once, here. ``expand_options`` gives a command the
options that a dataclass declares.
"""

from __future__ import annotations

import inspect
import os
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import MISSING, dataclass, fields, is_dataclass
from enum import IntEnum
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar, cast, get_type_hints

import typer
from typer.core import TyperCommand
from typing_extensions import override

from ebbflow.domain.durations import to_seconds

if TYPE_CHECKING:
    from ebbflow.nats.link import Link
    from ebbflow.spec.lint import SpecFile
    from ebbflow.streams.names import Names

T = TypeVar("T")

DEFAULT_STATE = Path(".ebbflow")

_COMPLETED_WITHIN = 1.0
_ADDRESS = re.compile(r"(?:https?://)?(?:\[[0-9a-fA-F:]+\]|[\w.-]*):\d{1,5}|\d{1,5}")
_STAND_ALONE = ("--ui", "--metrics")


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
    ExitCode.ENGINE_LOST: "Spark's JVM kept dying; the next run continues where this one ended",
    ExitCode.DEAD_LETTERS: "there were more dead letters than --max-dead-letters allows",
    ExitCode.INTERRUPTED: "interrupted before the run began",
}
"""Every exit code with its meaning."""

# Without \b the help formatter joins the lines into one paragraph.
EXIT_CODE_HELP = "\b\nExit codes:\n" + "\n".join(
    f"{code:5}  {meaning}" for code, meaning in EXIT_CODES.items()
)


# --- shell completion ---------------------------------------------------------------------------
#
# The shell blocks until completion answers, so completion starts no server. The folder of the
# embedded server lists its streams even while the server is stopped; the user's own server gets one
# second to answer. If anything fails, completion offers nothing.


def complete_pipelines(ctx: typer.Context, incomplete: str) -> list[str]:
    """Returns the pipelines that have run on the server or folder that the command uses."""
    from ebbflow.streams.names import list_pipelines

    return [name for name in list_pipelines(_find_streams(ctx)) if name.startswith(incomplete)]


def complete_vertices(ctx: typer.Context, incomplete: str) -> list[str]:
    """Returns the vertices of the pipeline that the command line names."""
    from ebbflow.streams.names import Names

    partitions = Names(str(ctx.params.get("pipeline"))).partitions_in(_find_streams(ctx))
    return sorted({vertex for vertex, _ in partitions if vertex.startswith(incomplete)})


def complete_specs(ctx: typer.Context, incomplete: str) -> list[str]:
    """Returns the pipelines that have run, and the YAML files of a folder."""
    folder = Path(incomplete).parent
    files = [path for path in folder.glob("*") if path.suffix in (".yaml", ".yml")]
    fitting = sorted(str(path) for path in files if str(path).startswith(incomplete))
    return [*complete_pipelines(ctx, incomplete), *fitting]


def _find_streams(ctx: typer.Context) -> list[str]:
    """Returns the names of streams, or none if they cannot be read."""
    server = ctx.params.get("nats") or os.environ.get("EBBFLOW_NATS_URL")
    try:
        if server:
            return _ask_server(str(server))
        return list(_look_in_folder(Path(ctx.params.get("state") or ".ebbflow")))
    except Exception:  # an error would appear in the middle of the command line
        return []


def _look_in_folder(state: Path) -> Iterator[str]:
    for streams in (state / "nats" / "jetstream").glob("*/streams"):
        yield from (entry.name for entry in streams.iterdir())


def _ask_server(url: str) -> list[str]:
    from concurrent.futures import ThreadPoolExecutor

    from ebbflow.nats import api
    from ebbflow.nats.locate import find_own_server, open_link
    from ebbflow.streams.names import PREFIX

    def ask() -> list[str]:
        server = find_own_server(url)
        assert server is not None
        with open_link(server) as link:
            return link.run(api.list_streams(link.client, PREFIX), timeout=_COMPLETED_WITHIN)

    pool = ThreadPoolExecutor(1)
    try:
        return pool.submit(ask).result(_COMPLETED_WITHIN)
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


# --- options that several commands have ---------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ServerOptions:
    """Options that name the NATS server: the embedded one of a folder, or the user's own."""

    state: Annotated[
        Path, typer.Option(metavar="DIR", help="Folder of the embedded NATS server's data.")
    ] = DEFAULT_STATE
    nats: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            help="Use your own NATS server at this URL instead of the embedded one.",
            envvar="EBBFLOW_NATS_URL",
            show_default=False,
        ),
    ] = None

    @contextmanager
    def open(self, pipeline: str) -> Iterator[tuple[Link, Names]]:
        """Opens a connection to the server of a pipeline, and starts the server if necessary."""
        from ebbflow.nats.locate import open_link_to_pipeline
        from ebbflow.streams.names import Names

        names = Names(pipeline)
        with open_link_to_pipeline(self.state, self.nats, inbox=names.inbox) as link:
            yield link, names


HERE = ServerOptions()
"""The embedded server of the default folder."""

JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON object per line.")]
PipelineArgument = Annotated[
    str,
    typer.Argument(
        metavar="PIPELINE",
        help="Name of the pipeline.",
        show_default=False,
        autocompletion=complete_pipelines,
    ),
]
VertexArgument = Annotated[
    str,
    typer.Argument(
        metavar="VERTEX",
        help="Vertex of the pipeline.",
        show_default=False,
        autocompletion=complete_vertices,
    ),
]
OptionalVertex = Annotated[
    str | None,
    typer.Argument(
        metavar="VERTEX",
        help="Only this vertex; all of them by default.",
        show_default=False,
        autocompletion=complete_vertices,
    ),
]
SpecArgument = Annotated[
    Path, typer.Argument(metavar="FILE", help="YAML file of the pipeline.", show_default=False)
]
SpecOrName = Annotated[
    str,
    typer.Argument(
        metavar="PIPELINE",
        help="YAML file of the pipeline, or the name of one that has run.",
        show_default=False,
        autocompletion=complete_specs,
    ),
]
NameOption = Annotated[
    str | None,
    typer.Option(
        "--name", metavar="NAME", help="Which pipeline to use when the file holds several."
    ),
]
BindOption = Annotated[
    Path | None,
    typer.Option(
        "--bind",
        metavar="FILE",
        help="Read what images are bound to from this file; "
        "bindings.yaml next to the pipeline by default.",
        show_default=False,
    ),
]
ContainersOption = Annotated[
    Literal["docker"] | None,
    typer.Option(
        "--containers", help="Run unbound images in containers of this kind.", show_default=False
    ),
]
SecretsOption = Annotated[
    Path | None,
    typer.Option(
        "--secrets",
        metavar="DIR",
        help="Read Kubernetes Secrets and ConfigMaps from this folder, as NAME/KEY or NAME.KEY.",
        envvar="EBBFLOW_SECRETS",
        show_default=False,
    ),
]
OutputOption = Annotated[
    Path | None,
    typer.Option("--output", "-o", metavar="FILE", help="Write to this file.", show_default=False),
]
UiOption = Annotated[
    str | None,
    typer.Option(
        "--ui",
        metavar="[[https://]HOST:PORT]",
        help="Show the run in a web UI; on 127.0.0.1:8321 or a free port by default. "
        "Beyond this machine it needs a token, from EBBFLOW_UI_TOKEN or made up at a terminal.",
        show_default=False,
    ),
]
MetricsOption = Annotated[
    str | None,
    typer.Option(
        "--metrics",
        metavar="[HOST:PORT]",
        help="Serve /metrics for Prometheus, /health and /ready; on 127.0.0.1:8322 or a free port "
        "by default. The web UI of --ui has them too.",
        show_default=False,
    ),
]


# --- reading options ----------------------------------------------------------------------------


def parse_seconds(text: str, option: str) -> float:
    """Returns the seconds of a duration that the user passed to an option."""
    try:
        value = to_seconds(text)
    except ValueError as error:
        raise typer.BadParameter(f"{error}.", param_hint=option) from error
    if not value:
        raise typer.BadParameter("must be longer than 0.", param_hint=option)
    return value


_REWORDED = (
    (re.compile("^Value error, "), ""),
    (re.compile("^Input should be a valid integer.*"), "must be a whole number"),
    (re.compile("^Input should be a valid number.*"), "must be a number"),
    (re.compile("^Input should be "), "must be "),
)


def reword(text: str) -> str:
    """Returns an error about an option without the wording of the library that checks it."""
    for pattern, words in _REWORDED:
        text = pattern.sub(words, text)
    return text


def read_listening(value: str | None) -> bool | str:
    """Returns an option's address, ``True`` if it has no value, ``False`` if it is missing."""
    return False if value is None else value or True


class ListeningCommand(TyperCommand):
    """A command that accepts ``--ui`` and ``--metrics`` without a value: ``run --ui spec.yaml``."""

    @override
    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        return super().parse_args(ctx, [*complete_addresses(args)])


def complete_addresses(args: Sequence[str]) -> Iterator[str]:
    """Yields the arguments, with an empty value for an option that no address follows."""
    for position, arg in enumerate(args):
        follower = args[position + 1] if position + 1 < len(args) else ""
        stands_alone = arg in _STAND_ALONE and _ADDRESS.fullmatch(follower) is None
        yield f"{arg}=" if stands_alone else arg


def echo_notes(file: SpecFile) -> None:
    """Prints the notes about a file to standard error, such as fields that have no effect here."""
    for note in file.notes:
        typer.echo(f"{file.path}: {note}", err=True)


def expand_options(command: Callable[..., T]) -> Callable[..., T]:
    """Returns the command with each dataclass parameter replaced by one option per field.

    Fields declare options the way parameters do. Nested dataclasses are expanded as well.
    """
    hints = get_type_hints(command, include_extras=True)
    own = inspect.signature(command).parameters
    parameters = [
        option
        for name, parameter in own.items()
        for option in _expand(name, hints[name], parameter.default)
    ]

    @wraps(command)
    def call(**values: Any) -> T:
        return command(**{name: _collect(name, hints[name], values) for name in own})

    call.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    call.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    return call


def _expand(name: str, hint: Any, default: Any) -> Iterator[inspect.Parameter]:
    """Yields the parameter itself, or one parameter per field if it is a dataclass."""
    if not is_dataclass(hint):
        kind = inspect.Parameter.KEYWORD_ONLY  # allows defaults before required parameters
        yield inspect.Parameter(name, kind, default=default, annotation=hint)
        return
    hints = get_type_hints(hint, include_extras=True)
    for field in fields(hint):
        wanted = inspect.Parameter.empty if field.default is MISSING else field.default
        yield from _expand(field.name, hints[field.name], wanted)


def _collect(name: str, hint: Any, values: dict[str, Any]) -> Any:
    """Returns the value of a parameter, or the dataclass built from the values of its options."""
    if not is_dataclass(hint):
        return values[name]
    hints, group = get_type_hints(hint, include_extras=True), cast("Callable[..., Any]", hint)
    return group(**{f.name: _collect(f.name, hints[f.name], values) for f in fields(hint)})
