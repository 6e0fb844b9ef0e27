"""``ebbflow run``: load a pipeline, run it, say what came of it.

Also what all commands share: the exit codes, and the options that say where a pipeline lives.
"""

from __future__ import annotations

import os
import secrets
import shlex
from datetime import timedelta
from enum import IntEnum, StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ebbflow.durations import milliseconds
from ebbflow.errors import EbbflowError

if TYPE_CHECKING:
    from rich.console import Console

    from ebbflow.runtime.run_report import Summary

DEFAULT_STATE = Path(".ebbflow")


class ExitCode(IntEnum):
    """How a command ended, for scripts."""

    OK = 0
    SPEC = 1
    USAGE = 2
    NOT_READY = 3
    TIMEOUT = 4
    ENGINE_LOST = 5
    INTERRUPTED = 130


EXIT_CODES = {
    ExitCode.OK: "drained, or stopped on request",
    ExitCode.SPEC: "the pipeline has problems; they are printed as by lint",
    ExitCode.USAGE: "wrong usage of the command",
    ExitCode.NOT_READY: "this machine is not ready, or something failed; the text says what to do",
    ExitCode.TIMEOUT: "--drain did not finish within --timeout",
    ExitCode.ENGINE_LOST: "Spark's JVM kept dying; the next run goes on where this one ended",
    ExitCode.INTERRUPTED: "interrupted before the run began",
}
"""Every exit code and what it means."""

# The mark keeps the lines from being joined to a paragraph.
EXIT_CODE_HELP = "\b\nExit codes:\n" + "\n".join(
    f"{code:5}  {meaning}" for code, meaning in EXIT_CODES.items()
)


class Durability(StrEnum):
    """When the embedded server writes to disk."""

    FAST = "fast"
    SAFE = "safe"


def _seconds(text: str, option: str) -> float:
    try:
        value = milliseconds(text) / 1000
    except ValueError as error:
        raise typer.BadParameter(f"{error}.", param_hint=option) from error
    if not value:
        raise typer.BadParameter("must be longer than 0.", param_hint=option)
    return value


def _settings(given: list[str]) -> dict[str, str]:
    for text in given:
        if not text.partition("=")[0] or "=" not in text:
            raise typer.BadParameter(f"{text!r} is not of the form key=value.", param_hint="--conf")
    return {key: value for key, _, value in (text.partition("=") for text in given)}


StateOption = Annotated[
    Path, typer.Option("--state", metavar="DIR", help="Folder of the embedded server's data.")
]
NatsOption = Annotated[
    str | None,
    typer.Option(
        "--nats",
        metavar="URL",
        help="A NATS server of your own instead.",
        envvar="EBBFLOW_NATS_URL",
        show_default=False,
    ),
]


def run(
    spec: Annotated[Path, typer.Argument(help="The pipeline in YAML.", show_default=False)],
    drain: Annotated[bool, typer.Option("--drain", help="End when all is processed.")] = False,
    timeout: Annotated[
        str | None, typer.Option(metavar="TIME", help="End after so long: 90s, 5m, 1h30m.")
    ] = None,
    summary: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write the counts as JSON at the end.")
    ] = None,
    master: Annotated[
        str | None, typer.Option(metavar="URL", help="Spark master; this machine if left out.")
    ] = None,
    state: StateOption = DEFAULT_STATE,
    nats: NatsOption = None,
    nats_port: Annotated[
        int, typer.Option(min=0, max=65535, help="Port of the embedded server; 0 picks one.")
    ] = 0,
    fresh: Annotated[
        bool, typer.Option("--fresh", help="Forget all earlier runs, dead letters too.")
    ] = False,
    epoch: Annotated[
        str, typer.Option(metavar="TIME", help="How long Spark tasks live before they are renewed.")
    ] = "30s",
    durability: Annotated[
        Durability, typer.Option(help="Embedded server: safe syncs every write to disk.")
    ] = Durability.FAST,
    conf: Annotated[
        list[str] | None, typer.Option(metavar="KEY=VALUE", help="A Spark setting; repeatable.")
    ] = None,
    plain: Annotated[bool, typer.Option("--plain", help="Lines instead of a live table.")] = False,
) -> None:
    """Run a pipeline until it is drained, timed out or stopped with Ctrl-C."""
    settings = _settings(conf or [])
    limit = timedelta(seconds=_seconds(timeout, "--timeout")) if timeout is not None else None
    epoch_seconds = _seconds(epoch, "--epoch")
    _check_summary(summary)
    # Here, because Spark takes a while to import and most mistakes can be told without it.
    from ebbflow.spec.lint import load

    pipeline = load(spec)
    from ebbflow import display
    from ebbflow.spark.run import run_pipeline

    with display.open_display(plain) as watcher:
        result = run_pipeline(
            pipeline,
            watcher=watcher,
            drain=drain,
            timeout=limit,
            master=master,
            state=state,
            nats=nats,
            nats_port=nats_port,
            fresh=fresh,
            epoch=epoch_seconds,
            durable=durability is Durability.SAFE,
            conf=settings,
            search=spec.resolve().parent,
        )
    if summary is not None:
        _write(summary, result.to_json() + "\n")
    _report(watcher.console, result, spec, _where(state, nats))
    if drain and result.ended == "timeout":
        raise typer.Exit(ExitCode.TIMEOUT)


def _check_summary(file: Path | None) -> None:
    """Tell now what would otherwise go wrong only after the run."""
    if file is None:
        return
    if file.is_dir() or not os.access(file.resolve().parent, os.W_OK):
        raise typer.BadParameter(f"cannot write a file {str(file)!r}.", param_hint="--summary")


def _write(file: Path, text: str) -> None:
    """Replace the file as a whole: whoever reads it never sees a part."""
    beside = file.with_name(f".{file.name}.{secrets.token_hex(4)}")
    try:
        beside.write_text(text, encoding="utf-8")
        beside.replace(file)
    except OSError as error:
        beside.unlink(missing_ok=True)
        raise EbbflowError(f"Cannot write the summary {file}: {error.strerror}.") from error


def _where(state: Path, nats: str | None) -> str:
    """The options that lead another command to the same place, without any password."""
    if nats is not None:
        from ebbflow.nats.address import Addresses

        return f" --nats {shlex.quote(str(Addresses.of(nats)))}"
    return "" if state == DEFAULT_STATE else f" --state {shlex.quote(str(state))}"


def _report(console: Console, result: Summary, spec: Path, where: str) -> None:
    from ebbflow.display import result_table

    console.print(result_table(result.vertices))
    wrong = [name for name, c in result.vertices.items() if c.read != c.ended]
    if wrong:
        console.print(f"Does not add up: {', '.join(wrong)} read more or less than ended.")
    else:
        console.print("Adds up: every message read has exactly one end.")
    console.print(f"{result.ended} after {result.seconds:.1f} s")
    if dead := sum(c.dead_lettered for c in result.vertices.values()):
        noun = "dead letter" if dead == 1 else "dead letters"
        told = f"{dead:,} {noun}; see why: ebbflow dlq list {result.pipeline}{where}"
        console.print(told, markup=False, soft_wrap=True)
    if _exhausted_before(result):
        console.print("Nothing was read: the sources gave all they have in an earlier run.")
        command = f"ebbflow run {shlex.quote(str(spec))}{where} --fresh"
        console.print(f"Forget that and start over: {command}", markup=False, soft_wrap=True)


def _exhausted_before(result: Summary) -> bool:
    nothing_now = not any(c.read for c in result.vertices.values())
    return result.ended == "drained" and nothing_now and any(c.read for c in result.totals.values())
