"""``ebbflow dev``: run a pipeline while its author works on it.

Spark stays open between runs, so a saved file is running a moment later. Problems in the spec or in
imports are printed as lint prints them, and the next save tries again. Errors of user code appear
in the display of the run. The command has its own state folder and starts over with each save, so
that every version of the code sees the same messages. With ``--debug`` the pipeline is simulated
instead, in this process and on this thread, where debuggers work.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ebbflow.cli.options import BindOption, NameOption, SecretsOption, SpecArgument
from ebbflow.domain.errors import EbbflowError, SpecError

if TYPE_CHECKING:
    from ebbflow.spec.model import Spec

_LOOK_EVERY = 0.2
_WATCHED = frozenset({".py", ".yaml", ".yml", ".sql", ".json", ".toml"})
_SKIPPED = frozenset({"__pycache__", "node_modules", "venv"})


@dataclass(frozen=True, slots=True)
class DevFlags:
    """The options of ``ebbflow dev``."""

    spec: SpecArgument
    name: NameOption = None
    debug: Annotated[
        bool,
        typer.Option(
            "--debug",
            help="Simulate the pipeline in this process, with the messages of its examples: "
            "breakpoint() and the debugger of an IDE work.",
        ),
    ] = False
    keep: Annotated[
        bool,
        typer.Option("--keep", help="Continue with stored messages instead of starting over."),
    ] = False
    plain: Annotated[bool, typer.Option("--plain", help="Print lines instead of a live table.")] = (
        False
    )
    state: Annotated[
        Path, typer.Option(metavar="DIR", help="Folder of the embedded NATS server's data.")
    ] = Path(".ebbflow/dev")
    secrets: SecretsOption = None
    bind: BindOption = None


def dev(flags: DevFlags) -> None:
    """Run a pipeline with a web UI, and run it again whenever a file next to it is saved.

    Spark stays open, so a change is running within two seconds. Ctrl-C ends it.
    """
    if not flags.spec.is_file():
        _load(flags)  # raises, because no change to wait for can help
    changes = FileChanges(flags.spec.resolve().parent)
    once = _simulate if flags.debug else _Runs().run
    with contextlib.suppress(KeyboardInterrupt):
        while True:
            _attempt(flags, once, changes)
            typer.echo("ebbflow dev: changed; starting again", err=True)


def _attempt(flags: DevFlags, once: Callable[..., None], changes: FileChanges) -> None:
    """Runs the pipeline on disk, or prints its problems, until a file changes."""
    from ebbflow.usercode.targets import forget_changed_modules

    forget_changed_modules()
    changes.note()
    try:
        once(flags, _load(flags), changes)
        return
    except SpecError as error:
        typer.echo("\n".join(map(str, error.problems)), err=True)
    except EbbflowError as error:
        typer.echo(f"ebbflow dev: {error}", err=True)
    typer.echo("ebbflow dev: waiting for a change", err=True)
    changes.wait()


def _load(flags: DevFlags) -> Spec:
    from ebbflow.spec.lint import load

    return load(flags.spec, name=flags.name, secrets=flags.secrets, bind=flags.bind)


# --- file changes ---------------------------------------------------------------------------------


class FileChanges:
    """Detects changes of the source files in a folder and its subfolders."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._known: dict[Path, tuple[int, int]] = {}

    def note(self) -> None:
        """Remembers the files as they are now, as the state to compare with."""
        self._known = dict(self._scan())

    def wait(self, unless: Callable[[], bool] = lambda: False) -> bool:
        """Waits for a change. Returns ``False`` if ``unless`` ended the wait first."""
        while (now := dict(self._scan())) == self._known:
            if unless():
                return False
            time.sleep(_LOOK_EVERY)
        self._known = now
        return True

    def _scan(self) -> Iterator[tuple[Path, tuple[int, int]]]:
        for root, folders, files in os.walk(self._folder):
            folders[:] = [each for each in folders if each not in _SKIPPED and each[0] != "."]
            for path in (Path(root, file) for file in files):
                if path.suffix in _WATCHED and path.name[0] != ".":
                    with contextlib.suppress(OSError):  # deleted since the folder was listed
                        facts = path.stat()
                        yield path, (facts.st_mtime_ns, facts.st_size)


# --- on Spark -------------------------------------------------------------------------------------


class _Runs:
    """Runs one pipeline repeatedly on the same Spark session, its web UI on the same address."""

    def __init__(self) -> None:
        self._address = f"127.0.0.1:{_free_port()}"

    def run(self, flags: DevFlags, spec: Spec, changes: FileChanges) -> None:
        """Runs the pipeline until a file changes. Ctrl-C stops it cleanly."""
        from ebbflow.operations.pipeline_run import PipelineRun
        from ebbflow.runtime.run_setup import RunOptions
        from ebbflow.status.terminal import open_display
        from ebbflow.ui.web_ui import attach_web_ui

        folder = flags.spec.resolve().parent
        options = RunOptions(state=flags.state, fresh=not flags.keep, search=folder)
        with open_display("plain" if flags.plain else None) as display:
            run = PipelineRun(spec, options, display, attach_web_ui(self._address, False))
            try:
                run.start()
                changes.wait(unless=lambda: not run.is_running)
            finally:
                run.stop()


def _free_port() -> int:
    """Returns the default port of the web UI, or a free one if that port is taken."""
    from ebbflow.ui.web_ui import UI_PORT

    for port in (UI_PORT, 0):
        with contextlib.suppress(OSError), socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(("127.0.0.1", port))
            return int(probe.getsockname()[1])
    raise EbbflowError("There is no free port for the web UI.")


# --- simulated ------------------------------------------------------------------------------------


def _simulate(flags: DevFlags, spec: Spec, changes: FileChanges) -> None:
    """Simulates the pipeline's examples, or its own messages if there are no examples."""
    from ebbflow.testing.examples import check_example, find_examples, read_examples
    from ebbflow.testing.simulation import simulate

    (examples,) = find_examples(flags.spec)
    if examples.is_file():
        file = read_examples(examples)
        for line, example in file.examples:
            typer.echo(f"{examples}:{line}: {example.name}")
            checked = check_example(file, line, example)
            typer.echo("\n".join([str(checked.simulation), *checked.differences]))
    else:
        typer.echo(str(simulate(spec, search=flags.spec.resolve().parent)))
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a debugger may have replaced it
    typer.echo("ebbflow dev: waiting for a change", err=True)
    changes.wait()
