"""``ebbflow serve-udf``: a function of Ebbflow's, served over Numaflow's protocol."""

from __future__ import annotations

import inspect
import os
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ebbflow.cli.options import ExitCode
from ebbflow.domain.code import Mode
from ebbflow.domain.durations import milliseconds
from ebbflow.domain.errors import SetupError
from ebbflow.domain.source import Source
from ebbflow.usercode.targets import resolve
from ebbflow.usercode.variables import CONTAINER_TYPE

if TYPE_CHECKING:
    from ebbflow.numaflow.serve.kinds import Kind


class FunctionKind(StrEnum):
    """The kinds of functions that Numaflow knows."""

    MAP = "map"
    BATCH_MAP = "batch-map"
    STREAM_MAP = "stream-map"
    TRANSFORMER = "transformer"
    SINK = "sink"
    FALLBACK_SINK = "fallback-sink"
    ON_SUCCESS_SINK = "on-success-sink"
    SOURCE = "source"
    STORE = "store"


class CallMode(StrEnum):
    """The ways in which a function may be called."""

    UNARY = "unary"
    BATCH = "batch"
    STREAM = "stream"
    COLUMNAR = "columnar"
    PANDAS = "pandas"


def serve_udf(
    target: Annotated[
        str,
        typer.Argument(
            metavar="MODULE:ATTRIBUTE",
            help="The function or class to serve; modules in the current folder are found first.",
            show_default=False,
        ),
    ],
    kind: Annotated[
        FunctionKind | None,
        typer.Option(
            help="Numaflow calls the function as this; without it, as what Numaflow says that the "
            "container is for, else as a source if it is one, else as a map.",
            show_default=False,
        ),
    ] = None,
    mode: Annotated[
        CallMode | None,
        typer.Option(
            help="The function is given this at a time, as in a pipeline; "
            "without it, what is usual for its kind.",
            show_default=False,
        ),
    ] = None,
    folder: Annotated[
        Path,
        typer.Option(
            metavar="DIR",
            help="Socket and server-info file are in this folder.",
            envvar="EBBFLOW_SOCKETS",
        ),
    ] = Path("/var/run/numaflow"),
    grace: Annotated[
        str,
        typer.Option(
            metavar="TIME", help="After SIGTERM, open streams may go on for at most this time."
        ),
    ] = "30s",
) -> None:
    """Serve a function to Numaflow, or to any runtime that speaks its protocol."""
    seconds = _seconds(grace)
    try:
        # Imported here: gRPC is an extra, and other commands do without it.
        from ebbflow.numaflow.serve.server import Serving, serve
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in ("grpc", "google"):
            raise
        raise SetupError(
            "serve-udf needs a package that is not installed.",
            "Run: pip install 'ebbflow[grpc]'",
        ) from None
    code = resolve(target, Path.cwd())
    chosen = _choose_kind(kind, code)
    serving = Serving(code, chosen, _choose_mode(chosen, mode), folder, _name(target), seconds)
    if serve(serving) is not None:
        raise typer.Exit(ExitCode.NOT_READY)


def _seconds(grace: str) -> float:
    try:
        return milliseconds(grace) / 1000
    except ValueError as error:
        raise typer.BadParameter(f"{error}.", param_hint="--grace") from error


def _choose_kind(kind: FunctionKind | None, code: Any) -> Kind:
    from ebbflow.numaflow.serve.kinds import KINDS, kind_of_container

    if kind is not None:
        return KINDS[kind]
    container = os.environ.get(CONTAINER_TYPE, "")
    own = kind_of_container(container) if container else None
    if container and own is None:
        raise SetupError(
            f"{CONTAINER_TYPE} is {container!r}, which is no function that can be served.",
            f"Say what it is with --kind: {', '.join(KINDS)}.",
        )
    is_source = inspect.isclass(code) and issubclass(code, Source)
    return own or KINDS["source" if is_source else "map"]


def _choose_mode(kind: Kind, mode: CallMode | None) -> Mode | None:
    if mode is None:
        return kind.modes[0] if kind.modes else None
    chosen = next((known for known in kind.modes if known == mode), None)
    if chosen is None:
        known = ", ".join(kind.modes) or "no modes"
        raise typer.BadParameter(f"a {kind.name} has {known}.", param_hint="--mode")
    return chosen


def _name(target: str) -> str:
    """Returns the name that errors give to the function: its vertex, or else its own."""
    names = ("NUMAFLOW_VERTEX_NAME", "NUMAFLOW_MONO_VERTEX_NAME")
    return next((os.environ[name] for name in names if os.environ.get(name)), target)
