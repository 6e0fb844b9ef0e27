"""Python environments with other versions than the checkout's, made by uv.

Those for the core of the suite are kept in ``~/.cache/ebbflow-tests``, because Spark alone is about
450 MB. What cannot be made on this machine is skipped, and the summary says so.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
CACHE = Path.home() / ".cache" / "ebbflow-tests"
_EXTRAS = "client,grpc,http,kafka,otel,postgres,pubsub,pulsar,sqs"
_missing: list[str] = []


class Environment:
    """A virtual environment in a folder, which has only what is installed into it."""

    def __init__(self, folder: Path, python: str) -> None:
        self.folder = folder
        if not (folder / "bin" / "python").exists():
            _uv("venv", "--no-project", "--python", str(_find_python(python)), str(folder))

    def install(self, *arguments: str, cwd: Path = ROOT) -> None:
        """Installs packages, in the newest versions that are compatible."""
        _uv("pip", "install", "--python", str(self.folder / "bin" / "python"), *arguments, cwd=cwd)

    def run(self, *command: str, cwd: Path, timeout: float, **more: str) -> str:
        """Runs a command of the environment; returns its output, and fails if the command fails."""
        process = self.start(*command, cwd=cwd, **more)
        try:
            printed, _ = process.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            process.kill()
            raise
        assert process.returncode == 0, f"{command} ended with {process.returncode}:\n{printed}"
        return printed

    def start(self, *command: str, cwd: Path, **more: str) -> subprocess.Popen[str]:
        """Starts a command of the environment, whose output can be read from ``stdout``."""
        env = _environment_variables()
        env |= {"PATH": f"{self.folder / 'bin'}:{env['PATH']}", **more}
        return subprocess.Popen(
            [self.folder / "bin" / command[0], *command[1:]],
            **{"cwd": cwd, "env": env, "text": True},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )


def _environment_variables() -> dict[str, str]:
    """This process's variables without the checkout's: a Spark session sets its Python's path."""
    of_the_checkout = {"PYTHONPATH", "VIRTUAL_ENV", "PYTHONDONTWRITEBYTECODE"}
    return {name: text for name, text in os.environ.items() if name not in of_the_checkout}


def environment_for_tests(python: str, pyspark: str) -> Environment:
    """Returns the environment with these versions for the suite; it is kept for the next run."""
    environment = Environment(CACHE / f"python{python}-pyspark{pyspark}", python)
    checkout = f"{ROOT}[{_EXTRAS}]"
    environment.install("--group", "dev", "--editable", checkout, f"pyspark=={pyspark}.*")
    return environment


def _find_python(version: str) -> Path:
    """Returns the interpreter of a version, from the usual places; skips the test without one."""
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    known = [*pyenv.glob(f"versions/{version}.*/bin/python{version}")]
    found = [Path(sys.base_prefix) / "bin" / f"python{version}", *known]
    found += [Path(path) for path in [shutil.which(f"python{version}")] if path]
    for python in found:
        if (
            python.exists()
            and subprocess.run(
                [python, "-c", ""], capture_output=True, env=_environment_variables()
            ).returncode
            == 0
        ):
            return python
    return _skip(f"there is no Python {version} on this machine")


def _uv(*arguments: str, cwd: Path = ROOT) -> None:
    uv = Path(sys.executable).with_name("uv")
    command = [str(uv) if uv.exists() else "uv", *arguments, "--quiet", "--no-python-downloads"]
    env = _environment_variables()
    done = subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True, check=False)
    if done.returncode:
        if "error sending request" in done.stderr or "dns error" in done.stderr.lower():
            _skip(f"packages cannot be fetched: {done.stderr.strip().splitlines()[0]}")
        raise AssertionError(f"uv {' '.join(arguments)}:\n{done.stderr}")


def _skip(reason: str) -> Any:
    _missing.append(reason)
    pytest.skip(reason)


def report_what_is_missing(reporter: Any) -> None:
    """Reports in the summary which versions were not tested."""
    if _missing:
        reporter.section("Some versions were NOT tested", sep="!", yellow=True, bold=True)
        for reason in dict.fromkeys(_missing):
            reporter.line(f"{reason}.")
