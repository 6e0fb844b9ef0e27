"""``ebbflow permissions``: what a pipeline's login needs, as configuration of a NATS server."""

from __future__ import annotations

import json
import re
import shlex
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from ebbflow.buffers.permissions import Permissions, Reading
    from ebbflow.spec.model import MonoVertexSpec, Spec, Vertex

# Sources that push: what they bring is stored in the buffer of their vertex first.
_FED = ("http", "nats", "spark")


def permissions(
    spec: Annotated[Path, typer.Argument(help="The pipeline in YAML.", show_default=False)],
    user: Annotated[
        str | None, typer.Option(metavar="NAME", help="Print a whole user of this name.")
    ] = None,
) -> None:
    """Print the least that a pipeline's login needs, as configuration of a NATS server."""
    from ebbflow.spec.lint import load

    pipeline = load(spec)
    typer.echo(_about(pipeline, spec))
    allowed = permissions_of(pipeline).config()
    typer.echo(allowed if user is None else _whole(user, allowed))


def permissions_of(spec: Spec) -> Permissions:
    """What the login of a pipeline or MonoVertex must be allowed."""
    from ebbflow.buffers.names import Names
    from ebbflow.buffers.permissions import needed

    # From the spec and not from the plans of a run, which read the secrets of connectors.
    steps = [spec] if spec.kind == "MonoVertex" else spec.vertices
    vertices = [_reading(step) for step in steps]
    store = spec.serving_store
    bucket = store.nats.bucket if store is not None and store.nats is not None else None
    return needed(Names(spec.name), vertices, bucket)


def _reading(step: MonoVertexSpec | Vertex) -> Reading:
    from ebbflow.buffers.permissions import Reading

    kind = None if step.source is None else step.source.kind
    query = step.udf is not None and step.udf.query is not None
    return Reading(
        step.name,
        step.partitions,
        has_buffer=kind in (None, *_FED),
        returns=kind not in (None, *_FED, "generator"),
        remembers=kind == "http",
        batched=query or (step.sink is not None and step.sink.kind == "spark"),
    )


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
