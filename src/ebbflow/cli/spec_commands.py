"""Commands about specs: ``ebbflow lint``, ``echo``, ``graph``, ``schema``, ``permissions`` and
``connectors``.

None of them runs a pipeline. ``lint`` prints every problem of every file as
``file:line:col: code message``. Printed specs have their secrets hidden.
"""

from __future__ import annotations

import json
import re
import shlex
import shutil
import sys
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

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
from ebbflow.cli.tables import print_table
from ebbflow.domain.records import to_plain
from ebbflow.domain.spelling import did_you_mean

if TYPE_CHECKING:
    from ebbflow.connectors.registry import Listed
    from ebbflow.domain.errors import Problem
    from ebbflow.runtime.run_setup import StoredSpec
    from ebbflow.spec.graph import PipelineShape
    from ebbflow.spec.lint import SpecFile
    from ebbflow.spec.model import Spec


_PIPE_WIDTH = 100


def lint(
    files: Annotated[
        list[Path],
        typer.Argument(metavar="FILE", help="YAML files of pipelines.", show_default=False),
    ],
    bind: BindOption = None,
    containers: ContainersOption = None,
    as_json: JsonOption = False,
) -> None:
    """Check pipelines without running them. Exits with 1 if there are problems.

    Lists all problems of a spec at once, and imports user code to check it. Ports, secrets and
    open() of user code are checked when the pipeline runs. Also lists the image bindings that no
    pipeline uses.
    """
    # Imported here: the model is slow to import, and other commands do not need it.
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
    """Returns a line for each bindings file with names that no image in these files uses."""
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

    Fields are normalised. For a pipeline that has run, it is the spec of the latest run.
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


def connectors(
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="NAME", help="Show the fields of this connector.", show_default=False
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """List the connectors that pipelines can use here, including those of other packages.

    With a name, show the fields of that connector. A connector that cannot be loaded is listed
    with the reason and what to install.
    """
    from ebbflow.connectors.registry import list_connectors

    found = [*list_connectors()]
    if name is not None:
        known = dict.fromkeys(each.name for each in found)
        found = [each for each in found if each.name == name]
        if not found:
            step = did_you_mean(name, known, "there are")
            raise typer.BadParameter(f"no connector is called {name}; {step}", param_hint="NAME")
    if as_json:
        for each in found:
            typer.echo(json.dumps(_connector_facts(each)))
        return
    if name is None:
        _print_connectors(found)
    for each in found:
        if name is not None and each.role is not None:
            _print_fields(each)
        if each.problem is not None:
            typer.echo(f"✗ {each.problem.what}\n  → {each.problem.next_step}")


def _print_connectors(found: Sequence[Listed]) -> None:
    by_name: dict[str, list[Listed]] = {}
    for each in found:
        by_name.setdefault(each.name, []).append(each)
    titles = ("connector", "use as", "package", "version")
    rows = [
        (
            name,
            " and ".join(r.role or "cannot be loaded" for r in roles),
            roles[0].package,
            roles[0].version,
        )
        for name, roles in by_name.items()
    ]
    print_table(titles, rows)


def _print_fields(listed: Listed) -> None:
    rows = [
        (field["name"], "required" if field["required"] else "", field["meaning"])
        for field in _fields_of(listed)
    ]
    typer.echo(f"{listed.role} {listed.name}, of {listed.package} {listed.version}")
    print_table(("field", "", "meaning"), rows)


def _connector_facts(listed: Listed) -> dict[str, Any]:
    facts = {name: getattr(listed, name) for name in ("name", "role", "package", "version")}
    return facts | {
        "fields": _fields_of(listed),
        "problem": None if listed.problem is None else str(listed.problem),
    }


def _fields_of(listed: Listed) -> list[dict[str, Any]]:
    return [
        {
            "name": field.alias or name,
            "required": field.is_required(),
            "meaning": (field.description or "").replace("`", ""),
        }
        for name, field in listed.fields.items()
    ]


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
        typer.Option("--json", help="Print vertices, edges and their positions as JSON."),
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
    """Print the permissions that a pipeline's login needs, as NATS server configuration."""
    from ebbflow.runtime.provision import permissions_of
    from ebbflow.spec.lint import load

    # Permissions do not depend on what an image is bound to, so images may stay unbound.
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
    """Returns a complete user block. The password comes from the server's environment."""
    variable = re.sub(r"\W", "_", user).upper()
    inner = textwrap.indent(allowed, "      ")
    return (
        "authorization: {\n  users: [\n    {\n"
        f"      user: {json.dumps(user)}\n      password: ${variable}_PASSWORD\n{inner}\n"
        "    }\n  ]\n}"
    )


# --- a file, or the name of a pipeline that has run ---------------------------------------------


def is_file(target: str) -> bool:
    """Returns whether the user means a file: pipeline names have neither dots nor slashes."""
    return "." in target or "/" in target or Path(target).is_file()


def read_pipeline(
    target: str, name: str | None, server: ServerOptions, *, defaults: bool = False
) -> StoredSpec:
    """Returns the pipeline in a file, or the latest run of a name.

    ``SpecError`` has all problems of the file. ``defaults`` adds the fields that the file omits.
    """
    if is_file(target):
        return _read_file(Path(target), name, defaults)
    from ebbflow.runtime.run_setup import read_spec

    if defaults:
        raise typer.BadParameter(
            "needs the file of the pipeline: a run stores no defaults.", param_hint="--defaults"
        )
    with server.open(target) as (link, names):
        return link.run(read_spec(link.client, names))


def _read_file(file: Path, name: str | None, defaults: bool) -> StoredSpec:
    from ebbflow.runtime.run_setup import StoredSpec
    from ebbflow.spec.echo import outline, to_document
    from ebbflow.spec.lint import load

    # The result does not depend on what an image is bound to, so images may stay unbound.
    spec = load(file, name=name, containers="docker")
    return StoredSpec(to_document(spec, defaults=defaults), outline(spec))
