"""``ebbflow permissions``: what a pipeline's login needs, as configuration of a NATS server."""

from __future__ import annotations

import json
import re
import shlex
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ebbflow.cli.conventions import NameOption

if TYPE_CHECKING:
    from ebbflow.spec.model import Spec


def permissions(
    spec: Annotated[Path, typer.Argument(help="The pipeline in YAML.", show_default=False)],
    user: Annotated[
        str | None, typer.Option(metavar="NAME", help="Print a whole user of this name.")
    ] = None,
    name: NameOption = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="The permissions are JSON, grouped by what they are for.")
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
