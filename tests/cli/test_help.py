"""The help of every command, as it is in ``help.txt``: it fits 100 columns and reads as commands.

``python -m tests.cli.test_help`` rewrites the file; read the diff before you commit it.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command
from typer.testing import CliRunner

from ebbflow.cli.main import app

FILE = Path(__file__).with_name("help.txt")
# Help says what a command does, not what "the command" does.
SUBJECTS = ("The command ", "The run ", "It ")


def list_commands(command: Any, *words: str) -> Iterator[tuple[str, ...]]:
    """Yields every command and command group as the words that a user types for it."""
    yield words
    for name, inside in getattr(command, "commands", {}).items():
        yield from list_commands(inside, *words, name)


def print_help() -> str:
    """Returns the help of all commands, each below the line that asks for it."""
    helps = []
    for words in list_commands(get_command(app)):
        asked = [*words, "--help"]
        result = CliRunner().invoke(app, asked, prog_name="ebbflow", terminal_width=100)
        helps.append(f"$ {' '.join(['ebbflow', *asked])}\n{result.stdout.strip()}\n")
    return "\n".join(line.rstrip() for line in "\n".join(helps).split("\n"))


def test_help_is_what_the_file_says() -> None:
    assert print_help() == FILE.read_text(encoding="utf-8"), "run: python -m tests.cli.test_help"


def test_help_fits_100_columns() -> None:
    assert [line for line in FILE.read_text(encoding="utf-8").split("\n") if len(line) > 100] == []


@pytest.mark.parametrize(("columns", "widest"), [(80, 80), (200, 100)])
def test_no_terminal_width_cuts_the_description_of_a_command(columns: int, widest: int) -> None:
    """In a separate process, because the test runner always reports 80 columns."""
    done = subprocess.run(
        [sys.executable, "-m", "ebbflow", "--help"],
        capture_output=True, text=True, check=True, env=os.environ | {"COLUMNS": str(columns)},
    )  # fmt: skip
    listed = done.stdout.partition("Commands:\n")[2].partition("Exit codes")[0]
    assert "..." not in listed
    assert "check that no message is missing." in " ".join(listed.split())
    assert widest - 10 < max(map(len, listed.splitlines())) <= widest


def test_help_texts_start_with_what_the_command_does() -> None:
    parts = [text for words in list_commands(get_command(app)) for text in texts_of(words)]
    assert [text for text in parts if text.startswith(SUBJECTS)] == []


def test_placeholders_are_words_in_capitals() -> None:
    """Not Python types: ``--limit NUMBER``, and not ``--limit <int range>``."""
    help = FILE.read_text(encoding="utf-8")
    assert re.findall(r"^ +-.*<(?:int|float|str|path|list)\b.*", help, re.M) == []
    arguments = re.findall(r"^Usage: .*?[{\[](?!OPTIONS)(.*)[}\]]", help, re.M)
    assert [each for each in arguments if each != each.upper()] == []


def texts_of(words: tuple[str, ...]) -> Iterator[str]:
    """Yields the first text of a command, and those of its arguments and options."""
    command = get_command(app)
    for word in words:
        command = command.commands[word]  # type: ignore[attr-defined]
    yield command.help or ""
    yield from (getattr(parameter, "help", None) or "" for parameter in command.params)


if __name__ == "__main__":
    FILE.write_text(print_help(), encoding="utf-8")
