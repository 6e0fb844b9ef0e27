"""A pipeline on the command line that is a file, or the name of one that has run."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ebbflow.cli.completion import complete_pipelines

if TYPE_CHECKING:
    from ebbflow.runtime.run import StoredSpec


def _complete(ctx: typer.Context, incomplete: str) -> list[str]:
    folder = Path(incomplete).parent
    files = [path for path in folder.glob("*") if path.suffix in (".yaml", ".yml")]
    fitting = sorted(str(path) for path in files if str(path).startswith(incomplete))
    return [*complete_pipelines(ctx, incomplete), *fitting]


SpecOrName = Annotated[
    str,
    typer.Argument(
        metavar="PIPELINE",
        help="The YAML file of the pipeline, or the name of one that has run.",
        show_default=False,
        autocompletion=_complete,
    ),
]


def is_file(target: str) -> bool:
    """Returns whether the user means a file: names of pipelines have neither dots nor slashes."""
    return "." in target or "/" in target or Path(target).is_file()


def read_pipeline(
    target: str, name: str | None, state: Path, nats: str | None, *, defaults: bool = False
) -> StoredSpec:
    """Returns the pipeline of a file, or the one that ran last under a name.

    ``SpecError`` has all problems of a file. ``defaults`` fills in what a file leaves out.
    """
    if is_file(target):
        return _read_file(Path(target), name, defaults)
    from ebbflow.nats.locate import open_link_to_pipeline
    from ebbflow.runtime.run import read_spec
    from ebbflow.streams.names import Names

    if defaults:
        raise typer.BadParameter(
            "needs the file of the pipeline: a run keeps what it was told.", param_hint="--defaults"
        )
    names = Names(target)
    with open_link_to_pipeline(state, nats, inbox=names.inbox) as link:
        return link.run(read_spec(link.client, names))


def _read_file(file: Path, name: str | None, defaults: bool) -> StoredSpec:
    from ebbflow.runtime.run import StoredSpec
    from ebbflow.spec.echo import to_document
    from ebbflow.spec.lint import load
    from ebbflow.spec.outline import outline

    # What runs in the place of an image makes no difference here, so nothing need be bound.
    spec = load(file, name=name, containers="docker")
    return StoredSpec(to_document(spec, defaults=defaults), outline(spec))
