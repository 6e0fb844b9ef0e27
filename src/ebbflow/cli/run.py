"""``ebbflow run``: load a pipeline, run it, report the result."""

from __future__ import annotations

import os
import shlex
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from secrets import token_hex
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from ebbflow.cli.options import (
    HERE,
    BindOption,
    ContainersOption,
    ExitCode,
    MetricsOption,
    NameOption,
    SecretsOption,
    ServerOptions,
    SpecArgument,
    UiOption,
    echo_notes,
    parse_seconds,
    read_listening,
)
from ebbflow.domain.errors import EbbflowError

if TYPE_CHECKING:
    from ebbflow.runtime.run_setup import Attachment, RunOptionNames
    from ebbflow.status.run_report import Summary
    from ebbflow.status.terminal import Display


@dataclass(frozen=True, slots=True)
class RunFlags:
    """The options of ``ebbflow run``."""

    spec: SpecArgument
    name: NameOption = None
    drain: Annotated[
        bool, typer.Option("--drain", help="Stop when every message is processed.")
    ] = False
    timeout: Annotated[
        str | None,
        typer.Option(metavar="TIME", help="Stop after running for this time: 90s, 5m, 1h30m."),
    ] = None
    summary: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Write the counts of the run as JSON to this file."),
    ] = None
    master: Annotated[
        str | None,
        typer.Option(metavar="URL", help="Run Spark on this master; on this machine by default."),
    ] = None
    server: ServerOptions = HERE
    secrets: SecretsOption = None
    bind: BindOption = None
    containers: ContainersOption = None
    nats_port: Annotated[
        int,
        typer.Option(
            min=0,
            max=65535,
            metavar="PORT",
            help="Port of the embedded NATS server; 0 picks a free one.",
        ),
    ] = 0
    fresh: Annotated[
        bool,
        typer.Option(
            "--fresh",
            help="First delete what earlier runs of the pipeline have stored, "
            "dead letters included.",
        ),
    ] = False
    epoch: Annotated[
        str, typer.Option(metavar="TIME", help="Renew Spark tasks after this time.")
    ] = "30s"
    durability: Annotated[
        Literal["fast", "safe"],
        typer.Option(
            help="When the embedded NATS server syncs to disk: safe after every write, "
            "fast every two minutes."
        ),
    ] = "fast"
    conf: Annotated[
        list[str] | None,
        typer.Option(metavar="KEY=VALUE", help="Set a property of Spark; can be repeated."),
    ] = None
    ui: UiOption = None
    metrics: MetricsOption = None
    spark_ui: Annotated[
        bool,
        typer.Option("--spark-ui", help="Serve Spark's own web UI; the run says where."),
    ] = False
    max_dead_letters: Annotated[
        int | None,
        typer.Option(
            min=0,
            metavar="NUMBER",
            help="Stop with exit code 6 after more dead letters than this.",
            show_default=False,
        ),
    ] = None
    plain: Annotated[
        bool,
        typer.Option("--plain", help="Print lines instead of a live table: --log plain."),
    ] = False
    log: Annotated[
        Literal["plain", "json"] | None,
        typer.Option(
            help="Print lines of this form instead of a live table; json has an object on each.",
            show_default=False,
        ),
    ] = None
    log_level: Annotated[
        Literal["debug", "info", "warning", "error", "critical"],
        typer.Option(help="Show logs of user code from this level on.", envvar="EBBFLOW_LOG_LEVEL"),
    ] = "info"

    @property
    def settings(self) -> dict[str, str]:
        """The Spark properties of ``--conf``, by name."""
        pairs = [(text, *text.partition("=")) for text in self.conf or ()]
        for text, key, equals, _ in pairs:
            if not (key and equals):
                message = f"{text!r} is not of the form key=value."
                raise typer.BadParameter(message, param_hint="--conf")
        return {key: value for _, key, _, value in pairs}

    @property
    def limit(self) -> timedelta | None:
        """The longest time that the run may take."""
        if self.timeout is None:
            return None
        return timedelta(seconds=parse_seconds(self.timeout, "--timeout"))

    @property
    def lines(self) -> Literal["plain", "json"] | None:
        """The format of lines to print instead of a live table."""
        return self.log or ("plain" if self.plain else None)


def run(flags: RunFlags) -> None:
    """Run a pipeline until it is drained, timed out or stopped with Ctrl-C."""
    run_and_report(flags)


def run_and_report(flags: RunFlags) -> Summary:
    """Runs a pipeline, prints how the run ended, and returns its summary."""
    options = _read_options(flags)
    _check_summary(flags.summary)
    # Imported here: Spark is slow to import, and most mistakes are found without it.
    from ebbflow.spec.lint import read_specs

    choices = {"secrets": flags.secrets, "bind": flags.bind}
    file = read_specs(flags.spec, **choices, containers=flags.containers)
    pipeline = file.choose(flags.name)
    echo_notes(file)
    from ebbflow.spark.run import run_pipeline
    from ebbflow.status.terminal import open_display

    with open_display(flags.lines, flags.drain) as watcher:
        attachments = _attachments(flags)
        result = run_pipeline(pipeline, watcher=watcher, attachments=attachments, **options)
    _report(flags, watcher, result)
    return result


def _attachments(flags: RunFlags) -> list[Attachment]:
    """Returns the web UI and metrics servers to start. Imports their code only if there are any."""
    ui, metrics = read_listening(flags.ui), read_listening(flags.metrics)
    if ui is False and metrics is False:
        return []
    from ebbflow.ui.web_ui import attach_web_ui

    return attach_web_ui(ui, metrics)


def _read_options(flags: RunFlags) -> RunOptionNames:
    """Returns the options of the run. Refuses invalid ones before anything is started."""
    return {
        "conf": flags.settings,
        "timeout": flags.limit,
        "epoch": timedelta(seconds=parse_seconds(flags.epoch, "--epoch")),
        "drain": flags.drain,
        "master": flags.master,
        "state": flags.server.state,
        "nats": flags.server.nats,
        "nats_port": flags.nats_port,
        "fresh": flags.fresh,
        "durable": flags.durability == "safe",
        "spark_ui": flags.spark_ui,
        "search": flags.spec.resolve().parent,
        "max_dead_letters": flags.max_dead_letters,
        "log_level": flags.log_level,
    }


def _report(flags: RunFlags, watcher: Display, result: Summary) -> None:
    """Shows how the run ended, writes its summary, and chooses the exit code."""
    from ebbflow.status.terminal.overview import show_end

    if flags.summary is not None:
        _write(flags.summary, result.to_json() + "\n")
    where = _where(flags.server)
    show_end(watcher, result, where)
    _hint_at_earlier_runs(watcher, result, flags.spec, where)
    if result.ended == "failed":
        raise typer.Exit(ExitCode.DEAD_LETTERS)
    if flags.drain and result.ended == "timeout":
        raise typer.Exit(ExitCode.TIMEOUT)


def _check_summary(file: Path | None) -> None:
    """Refuses a summary file that could not be written after the run."""
    if file is None:
        return
    if file.is_dir() or not os.access(file.resolve().parent, os.W_OK):
        raise typer.BadParameter(f"cannot write a file {str(file)!r}.", param_hint="--summary")


def _write(file: Path, text: str) -> None:
    """Replaces the file atomically, so that readers never see part of it."""
    draft = file.with_name(f".{file.name}.{token_hex(4)}")
    try:
        draft.write_text(text, encoding="utf-8")
        draft.replace(file)
    except OSError as error:
        draft.unlink(missing_ok=True)
        raise EbbflowError(f"Cannot write the summary {file}: {error.strerror}.") from error


def _where(server: ServerOptions) -> str:
    """Returns the options with which another command finds this server, without any password."""
    if server.nats is not None:
        from ebbflow.nats.login import Addresses

        return f" --nats {shlex.quote(str(Addresses.of(server.nats)))}"
    return "" if server == HERE else f" --state {shlex.quote(str(server.state))}"


def _hint_at_earlier_runs(watcher: Display, result: Summary, spec: Path, where: str) -> None:
    """Prints how to start over if a run read nothing because an earlier one read everything."""
    if result.had_nothing_to_do:
        command = f"ebbflow run {shlex.quote(str(spec))}{where} --fresh"
        watcher.stage(f"Forget that and start over: {command}")
