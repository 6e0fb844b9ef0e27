"""``ebbflow run``: load a pipeline, run it, report the result."""

from __future__ import annotations

import os
import shlex
from datetime import timedelta
from enum import StrEnum
from pathlib import Path
from secrets import token_hex
from typing import TYPE_CHECKING, Annotated

import typer

from ebbflow.cli.conventions import (
    DEFAULT_STATE,
    BindOption,
    ContainersOption,
    ExitCode,
    NameOption,
    NatsOption,
    SecretsOption,
    SpecArgument,
    StateOption,
    echo_notes,
    parse_seconds,
)
from ebbflow.cli.listening import MetricsOption, UiOption, read_listening
from ebbflow.domain.errors import EbbflowError

if TYPE_CHECKING:
    from ebbflow.status.run_report import Summary
    from ebbflow.status.terminal import Display, LogFormat


class Durability(StrEnum):
    """The moments at which the embedded server writes to disk."""

    FAST = "fast"
    SAFE = "safe"


class LogForm(StrEnum):
    """The forms of lines about a run."""

    PLAIN = "plain"
    JSON = "json"


class LowestLevel(StrEnum):
    """The levels of logging."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"
    CRITICAL = "critical"


def _settings(pairs: list[str]) -> dict[str, str]:
    """Returns Spark's settings from texts of the form ``key=value``."""
    for pair in pairs:
        if not pair.partition("=")[0] or "=" not in pair:
            raise typer.BadParameter(f"{pair!r} is not of the form key=value.", param_hint="--conf")
    return {key: value for key, _, value in (pair.partition("=") for pair in pairs)}


def run(
    spec: SpecArgument,
    name: NameOption = None,
    drain: Annotated[
        bool, typer.Option("--drain", help="The run ends when every message is processed.")
    ] = False,
    timeout: Annotated[
        str | None,
        typer.Option(
            metavar="TIME", help="The run ends after this time in any case: 90s, 5m, 1h30m."
        ),
    ] = None,
    summary: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="The run writes its counts as JSON to this file."),
    ] = None,
    master: Annotated[
        str | None,
        typer.Option(metavar="URL", help="Spark runs on this master; without it, on this machine."),
    ] = None,
    state: StateOption = DEFAULT_STATE,
    nats: NatsOption = None,
    secrets: SecretsOption = None,
    bind: BindOption = None,
    containers: ContainersOption = None,
    nats_port: Annotated[
        int,
        typer.Option(
            min=0,
            max=65535,
            help="The embedded NATS server listens on this port; 0 picks a free one.",
        ),
    ] = 0,
    fresh: Annotated[
        bool,
        typer.Option(
            "--fresh",
            help="The run first deletes what earlier runs of the pipeline have stored, "
            "dead letters included.",
        ),
    ] = False,
    epoch: Annotated[
        str, typer.Option(metavar="TIME", help="Spark tasks are renewed after this time.")
    ] = "30s",
    durability: Annotated[
        Durability,
        typer.Option(
            help="With safe, the embedded NATS server syncs every write to disk; "
            "with fast, every two minutes."
        ),
    ] = Durability.FAST,
    conf: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KEY=VALUE", help="Spark gets this setting; the option can be repeated."
        ),
    ] = None,
    ui: UiOption = None,
    metrics: MetricsOption = None,
    spark_ui: Annotated[
        bool,
        typer.Option("--spark-ui", help="Spark serves its own pages; the run says where."),
    ] = False,
    max_dead_letters: Annotated[
        int | None,
        typer.Option(
            min=0,
            metavar="NUMBER",
            help="The run stops with exit code 6 when it has made more dead letters than this.",
            show_default=False,
        ),
    ] = None,
    plain: Annotated[
        bool,
        typer.Option("--plain", help="The run prints lines instead of a live table: --log plain."),
    ] = False,
    log: Annotated[
        LogForm | None,
        typer.Option(
            help="The run prints lines of this form instead of a live table; "
            "json has an object on each.",
            show_default=False,
        ),
    ] = None,
    log_level: Annotated[
        LowestLevel,
        typer.Option(
            help="Logs of user code are shown from this level on.", envvar="EBBFLOW_LOG_LEVEL"
        ),
    ] = LowestLevel.INFO,
) -> None:
    """Run a pipeline until it is drained, timed out or stopped with Ctrl-C."""
    settings = _settings(conf or [])
    limit = timedelta(seconds=parse_seconds(timeout, "--timeout")) if timeout is not None else None
    epoch_seconds = parse_seconds(epoch, "--epoch")
    _check_summary(summary)
    # Imported here: Spark takes a while to import, and most mistakes are found without it.
    from ebbflow.spec.lint import read_specs

    file = read_specs(spec, secrets=secrets, bind=bind, containers=containers)
    pipeline = file.choose(name)
    echo_notes(file)
    from ebbflow.spark.run import run_pipeline
    from ebbflow.status.terminal import open_display
    from ebbflow.status.terminal.ending import show_end
    from ebbflow.ui.server import attach_web_ui

    form: LogFormat | None = "json" if log is LogForm.JSON else "plain" if log or plain else None
    with open_display(form, drain) as watcher:
        result = run_pipeline(
            pipeline,
            watcher=watcher,
            beside=attach_web_ui(read_listening(ui), read_listening(metrics)),
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
            spark_ui=spark_ui,
            search=spec.resolve().parent,
            max_dead_letters=max_dead_letters,
            log_level=log_level.value,
        )
    if summary is not None:
        _write(summary, result.to_json() + "\n")
    where = _where(state, nats)
    show_end(watcher, result, where)
    _hint_at_earlier_runs(watcher, result, spec, where)
    if result.ended == "failed":
        raise typer.Exit(ExitCode.DEAD_LETTERS)
    if drain and result.ended == "timeout":
        raise typer.Exit(ExitCode.TIMEOUT)


def _check_summary(file: Path | None) -> None:
    """Refuses a file that could not be written after the run."""
    if file is None:
        return
    if file.is_dir() or not os.access(file.resolve().parent, os.W_OK):
        raise typer.BadParameter(f"cannot write a file {str(file)!r}.", param_hint="--summary")


def _write(file: Path, text: str) -> None:
    """Replaces the file as a whole, so that nobody ever reads a part of it."""
    beside = file.with_name(f".{file.name}.{token_hex(4)}")
    try:
        beside.write_text(text, encoding="utf-8")
        beside.replace(file)
    except OSError as error:
        beside.unlink(missing_ok=True)
        raise EbbflowError(f"Cannot write the summary {file}: {error.strerror}.") from error


def _where(state: Path, nats: str | None) -> str:
    """Returns the options that lead another command to the same place, without any password."""
    if nats is not None:
        from ebbflow.nats.login import Addresses

        return f" --nats {shlex.quote(str(Addresses.of(nats)))}"
    return "" if state == DEFAULT_STATE else f" --state {shlex.quote(str(state))}"


def _hint_at_earlier_runs(watcher: Display, result: Summary, spec: Path, where: str) -> None:
    """Says how to start over if a run read nothing because an earlier one has read everything."""
    if result.had_nothing_to_do:
        command = f"ebbflow run {shlex.quote(str(spec))}{where} --fresh"
        watcher.stage(f"Forget that and start over: {command}")
