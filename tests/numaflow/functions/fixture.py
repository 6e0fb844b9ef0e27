"""Commands of functions in other languages; what cannot be built is skipped out loud."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any

import pytest

from tests.numaflow.functions.building import NotBuilt, command

_missing: dict[str, str] = {}


@pytest.fixture(scope="session")
def function_in() -> Callable[[str], tuple[str, ...]]:
    """Gives the command of a language; tests that ask for a missing one are skipped."""
    return _command


def build_ahead(languages: Iterable[str]) -> None:
    """Builds functions before any test begins: the time limits of tests do not allow for it.

    The tests that need them report what goes wrong.
    """
    for language in languages:
        with suppress(NotBuilt, subprocess.SubprocessError):
            command(language)


def _command(language: str) -> tuple[str, ...]:
    if language not in _missing:
        try:
            return command(language)
        except NotBuilt as error:
            _missing[language] = str(error)
    pytest.skip(f"functions in {language} are not tested: {_missing[language]}")


def report_what_is_missing(reporter: Any) -> None:
    """Report again, at the end of the output, which languages were not tested."""
    for language, reason in _missing.items():
        reporter.section(
            f"Functions in {language} were NOT tested", sep="!", yellow=True, bold=True
        )
        reporter.line(f"{reason}.")
