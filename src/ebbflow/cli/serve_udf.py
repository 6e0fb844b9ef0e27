"""``ebbflow serve-udf``: serve a function over Numaflow's protocol."""

from __future__ import annotations

import inspect
import os
from pathlib import Path
from typing import Annotated, Any

import typer

from ebbflow.cli.options import ExitCode
from ebbflow.domain.code import CONTAINER_TYPE, Mode
from ebbflow.domain.durations import to_seconds
from ebbflow.domain.errors import SetupError
from ebbflow.domain.user_source import Source
from ebbflow.numaflow.services import SERVICES, Kind, Service, find_service
from ebbflow.usercode.targets import resolve


def serve_udf(
    target: Annotated[
        str,
        typer.Argument(
            metavar="MODULE:ATTRIBUTE",
            help="Function or class to serve; modules in the current folder take precedence.",
            show_default=False,
        ),
    ],
    kind: Annotated[
        Kind | None,
        typer.Option(
            help="Serve the function as this kind. Default: the kind that Numaflow sets for the "
            "container; otherwise source for a source, map for anything else.",
            show_default=False,
        ),
    ] = None,
    mode: Annotated[
        Mode | None,
        typer.Option(
            help="Pass the function this much at a time, as in a pipeline. "
            "Default: the usual mode of its kind.",
            show_default=False,
        ),
    ] = None,
    folder: Annotated[
        Path,
        typer.Option(
            metavar="DIR",
            help="Folder of the socket and the server-info file.",
            envvar="EBBFLOW_SOCKETS",
        ),
    ] = Path("/var/run/numaflow"),
    grace: Annotated[
        str,
        typer.Option(
            metavar="TIME", help="After SIGTERM, let open streams continue for at most this time."
        ),
    ] = "30s",
) -> None:
    """Serve a function to Numaflow, or to any runtime that speaks its protocol."""
    seconds = _seconds(grace)
    try:
        # Imported here because gRPC is an optional extra.
        from ebbflow.numaflow.serve.function_server import Serving, serve_function
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
    if serve_function(serving) is not None:
        raise typer.Exit(ExitCode.NOT_READY)


def _seconds(grace: str) -> float:
    try:
        return to_seconds(grace)
    except ValueError as error:
        raise typer.BadParameter(f"{error}.", param_hint="--grace") from error


def _choose_kind(kind: Kind | None, code: Any) -> Service:
    if kind is not None:
        return SERVICES[kind]
    container = os.environ.get(CONTAINER_TYPE, "")
    own = find_service(container) if container else None
    if container and own is None:
        raise SetupError(
            f"{CONTAINER_TYPE} is {container!r}, which cannot be served.",
            f"Say what it is with --kind: {', '.join(SERVICES)}.",
        )
    is_source = inspect.isclass(code) and issubclass(code, Source)
    return own or SERVICES["source" if is_source else "map"]


def _choose_mode(kind: Service, mode: Mode | None) -> Mode | None:
    if mode is None:
        return kind.modes[0] if kind.modes else None
    if mode not in kind.modes:
        known = ", ".join(kind.modes) or "no modes"
        raise typer.BadParameter(f"a {kind.name} has {known}.", param_hint="--mode")
    return mode


def _name(target: str) -> str:
    """Returns the name to use in errors: the vertex's, or else the function's own."""
    names = ("NUMAFLOW_VERTEX_NAME", "NUMAFLOW_MONO_VERTEX_NAME")
    return next((os.environ[name] for name in names if os.environ.get(name)), target)
