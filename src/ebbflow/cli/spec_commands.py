"""Commands about specs: ``ebbflow lint``, ``echo``, ``graph``, ``schema`` and ``permissions``.

None of them runs a pipeline. ``lint`` prints every problem of every file as
``file:line:col: code message``. What is printed of a spec has everything secret hidden.
"""

from __future__ import annotations

import json
import re
import shlex
import shutil
import sys
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from ebbflow.cli.options import (
    HERE,
    BindOption,
    ContainersOption,
    ExitCode,
    JsonOption,
    NameOption,
    OutputOption,
    ServerOptions,
    SpecArgument,
    SpecOrName,
    echo_notes,
)
from ebbflow.domain.records import to_plain

if TYPE_CHECKING:
    from ebbflow.domain.errors import Problem
    from ebbflow.runtime.run_setup import StoredSpec
    from ebbflow.spec.graph import PipelineShape
    from ebbflow.spec.lint import SpecFile
    from ebbflow.spec.model import Spec


_PIPE_WIDTH = 100


def lint(
    files: Annotated[
        list[Path],
        typer.Argument(help="YAML files of pipelines.", show_default=False),
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


def echo(
    pipeline: SpecOrName,
    defaults: Annotated[
        bool,
        typer.Option("--defaults", help="Include default values."),
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of YAML.")] = False,
    name: NameOption = None,
    server: ServerOptions = HERE,
) -> None:
    """Print the spec of a pipeline, with secrets hidden.

    It is written as Ebbflow reads it. Of a pipeline that has run it is the spec of the latest run.
    """
    from ebbflow.spec.echo import document_to_yaml

    document = read_pipeline(pipeline, name, server, defaults=defaults).document
    text = json.dumps(document) if as_json else document_to_yaml(document)
    typer.echo(text.rstrip())


def schema(
    output: OutputOption = None,
) -> None:
    """Print the JSON schema of pipelines, for editors.

    Save it, and begin your YAML with: # yaml-language-server: $schema=ebbflow.schema.json
    """
    from ebbflow.spec.kinds import make_schema

    text = json.dumps(make_schema(), indent=2)
    if output is None:
        typer.echo(text)
    else:
        output.write_text(f"{text}\n", encoding="utf-8")


def graph(
    pipeline: SpecOrName,
    format: Annotated[
        Literal["text", "mermaid", "svg"],
        typer.Option(
            "--format", "-f", help="Draw text for a terminal, mermaid for Markdown, or svg."
        ),
    ] = "text",
    as_json: Annotated[
        bool,
        typer.Option("--json", help="Print vertices, edges and their places as JSON."),
    ] = False,
    output: OutputOption = None,
    name: NameOption = None,
    server: ServerOptions = HERE,
) -> None:
    """Draw a pipeline: its vertices and the edges between them."""
    shape = read_pipeline(pipeline, name, server).shape
    drawing = _graph_json(shape) if as_json else _draw(shape, format)
    if output is None:
        typer.echo(drawing)
    else:
        output.write_text(f"{drawing.rstrip()}\n", encoding="utf-8")


def _draw(shape: PipelineShape, format: str) -> str:
    from ebbflow.spec.graph.drawings import draw_mermaid, draw_svg, draw_terminal

    if format == "mermaid":
        return draw_mermaid(shape)
    if format == "svg":
        return draw_svg(shape).rstrip()
    terminal = shutil.get_terminal_size().columns if sys.stdout.isatty() else _PIPE_WIDTH
    return draw_terminal(shape, terminal)


def _graph_json(shape: PipelineShape) -> str:
    from ebbflow.spec.graph.layout import lay_out

    return json.dumps({"shape": to_plain(shape), "layout": lay_out(shape).to_json()})


def permissions(
    spec: SpecArgument,
    user: Annotated[
        str | None, typer.Option(metavar="NAME", help="Print a complete user of this name.")
    ] = None,
    name: NameOption = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print JSON, grouped by what the permissions are for.")
    ] = False,
) -> None:
    """Print the least that a pipeline's login needs, as configuration of a NATS server."""
    from ebbflow.runtime.provision import permissions_of
    from ebbflow.spec.lint import load

    # What runs in the place of an image makes no difference to a login, so nothing need be bound.
    pipeline = load(spec, name=name, containers="docker")
    if as_json:
        permitted = permissions_of(pipeline)
        typer.echo(json.dumps({"publish": permitted.publish, "subscribe": permitted.subscribe}))
        return
    typer.echo(_about(pipeline, spec))
    allowed = permissions_of(pipeline).to_config()
    typer.echo(allowed if user is None else _whole(user, allowed))


def _about(spec: Spec, file: Path) -> str:
    name = spec.name
    return (
        f"# The least that {spec.kind} {name} needs on NATS, to run and for its dead letters.\n"
        f"# Made by: ebbflow permissions {shlex.quote(str(file))}\n"
        f"# Include it in the block of its user: include {json.dumps(f'{name}.conf')}"
    )


def _whole(user: str, allowed: str) -> str:
    """A user that the server takes as it is; the password comes from the server's environment."""
    variable = re.sub(r"\W", "_", user).upper()
    inner = textwrap.indent(allowed, "      ")
    return (
        "authorization: {\n  users: [\n    {\n"
        f"      user: {json.dumps(user)}\n      password: ${variable}_PASSWORD\n{inner}\n"
        "    }\n  ]\n}"
    )


# --- a file, or the name of a pipeline that has run ---------------------------------------------


def is_file(target: str) -> bool:
    """Returns whether the user means a file: names of pipelines have neither dots nor slashes."""
    return "." in target or "/" in target or Path(target).is_file()


def read_pipeline(
    target: str, name: str | None, server: ServerOptions, *, defaults: bool = False
) -> StoredSpec:
    """Returns the pipeline of a file, or the one that ran last under a name.

    ``SpecError`` has all problems of a file. ``defaults`` fills in what a file leaves out.
    """
    if is_file(target):
        return _read_file(Path(target), name, defaults)
    from ebbflow.runtime.run_setup import read_spec

    if defaults:
        raise typer.BadParameter(
            "needs the file of the pipeline: a run keeps what it was told.", param_hint="--defaults"
        )
    with server.open(target) as (link, names):
        return link.run(read_spec(link.client, names))


def _read_file(file: Path, name: str | None, defaults: bool) -> StoredSpec:
    from ebbflow.runtime.run_setup import StoredSpec
    from ebbflow.spec.echo import outline, to_document
    from ebbflow.spec.lint import load

    # What runs in the place of an image makes no difference here, so nothing need be bound.
    spec = load(file, name=name, containers="docker")
    return StoredSpec(to_document(spec, defaults=defaults), outline(spec))
