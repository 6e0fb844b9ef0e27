"""``ebbflow echo``: the spec of a pipeline, normalised, with everything secret hidden."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from ebbflow.cli.conventions import DEFAULT_STATE, NameOption, NatsOption, StateOption
from ebbflow.cli.spec_or_name import SpecOrName, read_pipeline


def echo(
    pipeline: SpecOrName,
    defaults: Annotated[
        bool,
        typer.Option("--defaults", help="The spec also has what holds because the file is silent."),
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="The spec is JSON, not YAML.")] = False,
    name: NameOption = None,
    state: StateOption = DEFAULT_STATE,
    nats: NatsOption = None,
) -> None:
    """Print the spec of a pipeline, with secrets hidden.

    It is written as Ebbflow reads it. Of a pipeline that has run it is the spec of the latest run.
    """
    from ebbflow.spec.echo import document_to_yaml

    document = read_pipeline(pipeline, name, state, nats, defaults=defaults).document
    text = json.dumps(document) if as_json else document_to_yaml(document)
    typer.echo(text.rstrip())
