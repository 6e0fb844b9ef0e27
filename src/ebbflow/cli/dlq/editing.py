"""A dead letter in the user's editor: keys and headers on top, then an empty line, then the value.

The value is edited as it is. The line break that ends the file is not part of it. Values that are
no text are refused: a transform can change them.
"""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ebbflow.deadletters.filters import own_headers
from ebbflow.deadletters.transforms import LetterEdit
from ebbflow.domain.errors import EbbflowError
from ebbflow.status.terminal import one_line

if TYPE_CHECKING:
    from ebbflow.deadletters import StoredLetter


def edit_letter(stored: StoredLetter, pipeline: str) -> LetterEdit | None:
    """Returns what the user has made of a letter; ``None`` if it was left as it is.

    ``EbbflowError`` if there is no editor, it fails, or what it leaves cannot be read. Then the
    text is kept in a file, which the error names.
    """
    before = write_letter(stored, pipeline)
    with tempfile.NamedTemporaryFile(
        "w", encoding="utf-8", suffix=".letter", prefix="ebbflow-", delete=False
    ) as file:
        file.write(before)
    path = Path(file.name)
    _call_editor(path)
    after = path.read_text("utf-8")
    if after == before:
        path.unlink()
        return None
    try:
        edit = read_edit(after)
    except ValueError as error:
        raise EbbflowError(f"{error} Nothing was sent; what you wrote is in {path}.") from error
    path.unlink()
    return edit


def _call_editor(path: Path) -> None:
    editor = os.environ.get("VISUAL") or os.environ.get("EDITOR") or "vi"
    try:
        code = subprocess.call([*shlex.split(editor), str(path)])
    except OSError as error:
        path.unlink()
        raise EbbflowError(
            f"The editor {editor!r} cannot be started: {error.strerror}. "
            "Name another one in the variable EDITOR."
        ) from error
    if code:
        raise EbbflowError(
            f"The editor {editor!r} ended with code {code}. Nothing was sent; the letter is in "
            f"{path}."
        )


def write_letter(stored: StoredLetter, pipeline: str) -> str:
    """Returns the letter as the user gets it; ``EbbflowError`` if its value is no text."""
    letter = stored.letter
    try:
        value = letter.value.decode()
    except UnicodeDecodeError as error:
        raise EbbflowError(
            f"The value of dead letter {stored.number} is no text. "
            "Change it with a function: --map module:function."
        ) from error
    lines = [
        f"# Dead letter {stored.number} of {pipeline}: {one_line(letter.id)} at {letter.vertex}.",
        f"# {one_line(letter.error or letter.reason)}",
        "# Change what you like, save and close; leave it as it is to send nothing.",
        f"keys: {json.dumps(letter.keys, ensure_ascii=False)}",
        f"headers: {json.dumps(own_headers(stored), ensure_ascii=False)}",
        "",
        value,
    ]
    return "\n".join(lines) + "\n"


def read_edit(text: str) -> LetterEdit:
    """Returns the edit that a text describes; ``ValueError`` says which line is wrong."""
    head, empty, value = text.partition("\n\n")
    if not empty:
        raise ValueError("There is no empty line between the headers and the value.")
    facts: dict[str, Any] = {}
    for number, line in enumerate(head.split("\n"), 1):
        if line.startswith("#"):
            continue
        name, colon, json_text = line.partition(":")
        if not colon or name not in ("keys", "headers"):
            raise ValueError(f"Line {number} is neither 'keys:' nor 'headers:'.")
        facts[name] = _read_fact(name, json_text, number)
    return LetterEdit(value.removesuffix("\n").encode(), facts.get("keys"), facts.get("headers"))


def _read_fact(name: str, text: str, line: int) -> Any:
    try:
        fact = json.loads(text)
    except ValueError as error:
        raise ValueError(f"Line {line}, {name}, is no JSON: {error}.") from error
    texts = fact.values() if isinstance(fact, dict) and name == "headers" else fact
    right = isinstance(fact, list if name == "keys" else dict)
    if not right or not all(isinstance(one, str) for one in texts):
        shape = '["one", "two"]' if name == "keys" else '{"name": "value"}'
        raise ValueError(f"Line {line}: write {name} as {shape}.")
    return fact
