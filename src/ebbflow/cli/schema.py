"""``ebbflow schema``: the JSON schema of specs, with which editors complete and check them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer


def schema(
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            metavar="FILE",
            help="The schema goes to this file.",
            show_default=False,
        ),
    ] = None,
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
