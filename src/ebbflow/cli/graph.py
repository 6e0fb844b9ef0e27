"""``ebbflow graph``: a pipeline drawn in the terminal, for Markdown, or as a picture."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from ebbflow.cli.conventions import DEFAULT_STATE, NameOption, NatsOption, StateOption
from ebbflow.cli.spec_or_name import SpecOrName, read_pipeline

if TYPE_CHECKING:
    from ebbflow.spec.graph import PipelineShape

_PIPE_WIDTH = 100


def graph(
    pipeline: SpecOrName,
    format: Annotated[
        Literal["text", "mermaid", "svg"],
        typer.Option("--format", "-f", help="text for a terminal, mermaid for Markdown, or svg."),
    ] = "text",
    as_json: Annotated[
        bool,
        typer.Option("--json", help="The command prints vertices, edges and their places as JSON."),
    ] = False,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            metavar="FILE",
            help="The drawing goes to this file.",
            show_default=False,
        ),
    ] = None,
    name: NameOption = None,
    state: StateOption = DEFAULT_STATE,
    nats: NatsOption = None,
) -> None:
    """Draw a pipeline: its vertices and the edges between them."""
    shape = read_pipeline(pipeline, name, state, nats).shape
    drawing = _to_json(shape) if as_json else _draw(shape, format)
    if output is None:
        typer.echo(drawing)
    else:
        output.write_text(f"{drawing.rstrip()}\n", encoding="utf-8")


def _draw(shape: PipelineShape, format: str) -> str:
    from ebbflow.spec.graph.pictures import draw_mermaid, draw_svg
    from ebbflow.spec.graph.terminal import draw_terminal

    if format == "mermaid":
        return draw_mermaid(shape)
    if format == "svg":
        return draw_svg(shape).rstrip()
    terminal = shutil.get_terminal_size().columns if sys.stdout.isatty() else _PIPE_WIDTH
    return draw_terminal(shape, terminal)


def _to_json(shape: PipelineShape) -> str:
    from ebbflow.spec.graph.layout import lay_out

    return json.dumps({"shape": shape.to_json(), "layout": lay_out(shape).to_json()})
