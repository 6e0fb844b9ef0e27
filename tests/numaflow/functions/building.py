"""Builds the functions of this folder once for each state of their sources, and keeps them.

They lie in ``$XDG_CACHE_HOME/ebbflow-tests``. A language whose compiler or registry is missing is
``NotBuilt`` with the reason; a mistake in our sources is a ``CalledProcessError``. To build
them takes a minute or more, so that is done only when ``EBBFLOW_TEST_FUNCTIONS`` names them
(``go,rust,java``) or tests are to be thorough. Once built, Go and Rust are used by every run; Java,
whose processes take seconds to start again and again, only by those that ask for it.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from tests.long_tests import are_long_tests_wanted
from tests.thorough import examples

HERE = Path(__file__).parent
_WITHIN = 900


class NotBuilt(Exception):
    """Why there is no function in this language on this machine."""


@dataclass(frozen=True)
class Language:
    """How a program is built; packages are fetched first, to tell a missing registry apart."""

    name: str
    tools: tuple[str, ...]
    fetch: tuple[str, ...]
    build: tuple[str, ...]
    command: tuple[str, ...]
    environment: dict[str, str] = field(default_factory=dict)
    long: bool = False
    asked: bool = False
    folder: Path | None = None

    @property
    def where(self) -> Path:
        """The folder with the sources."""
        return self.folder or HERE / self.name

    def sources(self) -> list[Path]:
        """All files that are built, in order."""
        return sorted(path for path in self.where.rglob("*") if path.is_file())


_GO_FETCH = ("go", "mod", "download")
_GO_BUILD = ("go", "build", "-trimpath", "-o", "{out}/function", ".")
_GO_ENVIRONMENT = {"GOFLAGS": "-mod=readonly"}


LANGUAGES = {
    language.name: language
    for language in (
        Language(
            "go",
            ("go",),
            _GO_FETCH,
            _GO_BUILD,
            ("{out}/function",),
            _GO_ENVIRONMENT,
            long=True,
        ),
        Language(  # not a function: the server of the tests of Pub/Sub, built in the same way
            "pstest",
            ("go",),
            _GO_FETCH,
            _GO_BUILD,
            ("{out}/function",),
            _GO_ENVIRONMENT,
            long=True,
            folder=HERE.parent.parent / "connectors" / "pubsub" / "pstest",
        ),
        Language(
            "rust",
            ("cargo",),
            ("cargo", "fetch", "--locked"),
            (
                *("cargo", "build", "--release", "--offline", "--locked"),
                *("--target-dir", "{out}/t"),
            ),
            ("{out}/t/release/function",),
            long=True,
        ),
        Language(
            "java",
            ("mvn", "javac", "java"),
            ("mvn", "-B", "-q", "dependency:copy-dependencies", "-DoutputDirectory={out}/lib"),
            (
                *("javac", "-proc:none", "-d", "{out}/classes", "-cp", "{out}/lib/*"),
                *("-sourcepath", ".", "functions/Function.java"),
            ),
            ("java", "-cp", "{out}/lib/*:{out}/classes", "functions.Function"),
            long=True,
            asked=True,
        ),
    )
}


def command(name: str) -> tuple[str, ...]:
    """The command that serves functions in a language; it takes a kind and a folder."""
    if name == "python":
        return (sys.executable, str(HERE / "python" / "function.py"))
    language = LANGUAGES[name]
    folder = _cache() / f"functions-{name}-{_version(language)}"
    if not folder.is_dir() or (language.asked and not _asked_for(name)):
        _make(language, folder)
    return _filled(language.command, folder)


def _version(language: Language) -> str:
    digest = hashlib.sha256(repr((language.build, language.command)).encode())
    for path in language.sources():
        digest.update(
            path.relative_to(language.where.parent).as_posix().encode() + b"\0" + path.read_bytes()
        )
    return digest.hexdigest()[:12]


def _cache() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "ebbflow-tests"


def _make(language: Language, folder: Path) -> None:
    for tool in language.tools:
        if shutil.which(tool) is None:
            raise NotBuilt(f"there is no {tool} on the path")
    if language.long and not _asked_for(language.name):
        raise NotBuilt(f"they take long; EBBFLOW_TEST_FUNCTIONS={language.name} asks for them")
    folder.parent.mkdir(parents=True, exist_ok=True)
    with _alone(folder):
        if not folder.is_dir():
            _fetch_and_build(language, folder)


def _asked_for(name: str) -> bool:
    named = name in os.environ.get("EBBFLOW_TEST_FUNCTIONS", "").split(",")
    return named or examples(1) > 1 or ("go" in LANGUAGES[name].tools and are_long_tests_wanted())


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Processes of one test run build at the same time: the others wait for the first."""
    with open(f"{folder}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _fetch_and_build(language: Language, folder: Path) -> None:
    building = folder.with_name(f"{folder.name}.part")
    shutil.rmtree(building, ignore_errors=True)
    shutil.copytree(language.where, building / "sources")
    fetched = _run(language, language.fetch, building)
    if fetched.returncode:
        shutil.rmtree(building)
        raise NotBuilt(f"its packages cannot be fetched: {_last_line(fetched)}")
    _run(language, language.build, building).check_returncode()
    building.rename(folder)


def _run(
    language: Language, arguments: tuple[str, ...], building: Path
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        _filled(arguments, building),
        cwd=building / "sources",
        env={**os.environ, **language.environment},
        capture_output=True,
        text=True,
        timeout=_WITHIN,
    )


def _filled(arguments: tuple[str, ...], folder: Path) -> tuple[str, ...]:
    return tuple(argument.replace("{out}", str(folder)) for argument in arguments)


def _last_line(ended: subprocess.CompletedProcess[str]) -> str:
    lines = (ended.stdout + ended.stderr).strip().splitlines()
    return lines[-1] if lines else f"exit code {ended.returncode}"
