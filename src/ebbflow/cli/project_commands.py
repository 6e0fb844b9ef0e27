"""``ebbflow new`` and ``ebbflow test``: create a pipeline, and check the examples next to it.

Templates are package data under ``templates``. A new pipeline gets the files that all templates
share (``shared``), the code that most of them share (``code``), and the template's own files, which
override those. A connector gets only its own. ``new`` refuses a folder that has files in it.
``test`` simulates examples (``testing.examples``), without Spark and NATS.
"""

from __future__ import annotations

import json
import re
import sys
from contextlib import redirect_stdout
from enum import StrEnum
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ebbflow.cli.options import ExitCode, JsonOption
from ebbflow.connectors.part import class_name
from ebbflow.domain.errors import EbbflowError, SetupError

if TYPE_CHECKING:
    from ebbflow.testing.examples import CheckedExample

_SUFFIX = ".tmpl"
_NAME = re.compile(r"[a-z]([a-z0-9-]*[a-z0-9])?")


# --- new ------------------------------------------------------------------------------------------


class Template(StrEnum):
    """The templates, named after the pipeline's source, how it runs, or what is created."""

    ORDERS = "orders"
    KAFKA = "kafka"
    HTTP = "http"
    SERVING = "serving"
    MONO = "mono"
    SPARK = "spark"
    CONNECTOR = "connector"


_EXTRAS = {Template.KAFKA: "[kafka]", Template.HTTP: "[http]", Template.SERVING: "[http]"}


def new(
    name: Annotated[
        str, typer.Argument(metavar="NAME", help="Name of the pipeline and of its folder.")
    ],
    template: Annotated[
        Template,
        typer.Option(
            help="Choose what the pipeline reads from, or how it runs; or a package with "
            "your connector."
        ),
    ] = Template.ORDERS,
) -> None:
    """Create a folder with a pipeline, its code, tests, examples, CI and Dockerfile."""
    folder = Path(name)
    _check_folder(name, folder)
    if template is Template.CONNECTOR:
        _check_kind(_kind(name))
    for file, text in render(name, template).items():
        path = folder / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        typer.echo(f"created {path}")
    typer.echo(f"Next: cd {name} && {_next_steps(template)}")


def _next_steps(template: Template) -> str:
    if template is Template.CONNECTOR:
        return "pip install -e . pytest && python -m pytest"
    install = "pip install -r requirements.txt && " if template in _EXTRAS else ""
    return f"{install}ebbflow test && ebbflow dev pipeline.yaml"


def _check_folder(name: str, folder: Path) -> None:
    if _NAME.fullmatch(name) is None:
        raise typer.BadParameter(
            f"{name!r} is not a name for a pipeline: use lower-case letters, digits and hyphens, "
            "and begin with a letter.",
            param_hint="NAME",
        )
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise EbbflowError(f"{folder} exists already. Choose another name, or remove it.")


def _check_kind(kind: str) -> None:
    from ebbflow.connectors.base import SINKS, SOURCES
    from ebbflow.connectors.registry import find_shipped

    if kind in {*SOURCES, *SINKS, *find_shipped()}:
        raise EbbflowError(f"There is a connector called {kind} already. Choose another name.")


def _kind(name: str) -> str:
    """Returns the name of a connector in a spec, which has no hyphens."""
    return name.replace("-", "")


def render(name: str, template: Template) -> dict[str, str]:
    """Returns the files of a new pipeline by their paths in its folder."""
    root = files("ebbflow.cli").joinpath("templates")
    texts: dict[str, str] = {}
    common = () if template is Template.CONNECTOR else ("shared", "code")
    for part in (*common, template.value):
        texts |= dict(_read(root.joinpath(part)))
    values = {"@NAME@": name, "@EXTRA@": _EXTRAS.get(template, "")}
    values |= {"@KIND@": _kind(name), "@CLASS@": class_name(_kind(name))}
    values |= {"@MODULE@": name.replace("-", "_")}
    for mark, value in values.items():
        texts = {
            file.replace(mark, value): text.replace(mark, value) for file, text in texts.items()
        }
    return texts


def _read(folder: Traversable, under: str = "") -> list[tuple[str, str]]:
    found: list[tuple[str, str]] = []
    for entry in sorted(folder.iterdir(), key=lambda each: each.name):
        path = f"{under}{entry.name}"
        if entry.is_dir():
            found += _read(entry, f"{path}/")
        elif path.endswith(_SUFFIX):
            found.append((path.removesuffix(_SUFFIX), entry.read_text(encoding="utf-8")))
    return found


# --- test -----------------------------------------------------------------------------------------


def check_examples(
    file: Annotated[
        Path,
        typer.Argument(
            metavar="FILE",
            help="A spec, a file of examples, or a folder with several.",
            show_default="this folder",
        ),
    ] = Path(),
    as_json: JsonOption = False,
) -> None:
    """Check examples of messages and how they end, without Spark and NATS.

    The examples of pipeline.yaml are in pipeline.test.yaml next to it. Each one is simulated on a
    virtual clock. Exits with 1 if one of them ends differently.
    """
    from ebbflow.testing.examples import check_example, find_examples, read_examples

    found = find_examples(file)
    if not found:
        raise SetupError(
            f"There are no examples in {file.resolve()}.",
            "Write pipeline.test.yaml next to pipeline.yaml.",
        )
    failed = checked = 0
    for each in map(read_examples, found):
        for line, example in each.examples:
            with redirect_stdout(sys.stderr):  # standard output is for results
                result = check_example(each, line, example)
            _echo_result(result, as_json)
            checked += 1
            failed += not result.passed
    if not as_json:
        typer.echo(f"{checked} examples, {failed} failed" if failed else f"{checked} examples ok")
    if failed:
        raise typer.Exit(ExitCode.SPEC)


def _echo_result(result: CheckedExample, as_json: bool) -> None:
    place = f"{result.file.path}:{result.line}"
    if as_json:
        facts = {"name": result.name, "passed": result.passed, "differences": result.differences}
        typer.echo(json.dumps({"file": str(result.file.path), "line": result.line, **facts}))
        return
    typer.echo(f"{'ok' if result.passed else 'FAILED'}  {place}: {result.name}")
    for line in result.differences:
        typer.echo(f"    {line}")
    if not result.passed:
        typer.echo("\n".join(f"    | {line}" for line in str(result.simulation).splitlines()))
