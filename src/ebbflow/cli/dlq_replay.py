"""``ebbflow dlq replay``: the output of a replay, and editing a dead letter in the user's editor.

The editor shows keys and headers, then an empty line, then the value as it is. The line break at
the end of the file is not part of the value. A value that is not text cannot be edited; a transform
can change it.
"""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from ebbflow.cli.dlq_tables import (
    ChosenDeadLetters,
    console,
    letters_text,
    stayed_lines,
    text_or_hex,
)
from ebbflow.cli.options import ExitCode
from ebbflow.cli.tables import cut_end
from ebbflow.deadletters.filters import own_headers
from ebbflow.deadletters.replay import STEP
from ebbflow.deadletters.transforms import LetterEdit, transform_letter
from ebbflow.domain.errors import EbbflowError
from ebbflow.engine.dead_letter import Letter
from ebbflow.status.terminal import one_line
from ebbflow.usercode.targets import resolve

if TYPE_CHECKING:
    from ebbflow.deadletters import DeadLetters, ReplayResult, StoredLetter
    from ebbflow.deadletters.letters import Choice
    from ebbflow.deadletters.transforms import Transform

_SAMPLES = 3


@dataclass(frozen=True, slots=True)
class ReplayCommand:
    """The options of a replay."""

    pipeline: str
    function: str | None
    edit: bool
    rate: float | None
    dry_run: bool
    as_json: bool

    def run(self, letters: DeadLetters, chosen: ChosenDeadLetters) -> ReplayResult | None:
        """Replays and prints the result. Returns ``None`` if the user changed nothing."""
        if self.edit and self.function:
            raise typer.BadParameter(
                "a dead letter is edited, or passed to a function.", param_hint="--edit"
            )
        choice, total = self._choose(letters, chosen)
        transform = self._edit(letters, choice) if self.edit else self._resolve()
        if self.edit and transform is None:
            typer.echo("Nothing was changed, so nothing was sent.")
            return None
        self._announce(choice, total)
        samples = Samples(transform) if self.dry_run and transform and not self.as_json else None
        with self._progress(total) as progress:
            result = self._replay(letters, choice, samples or transform, progress)
        for line in samples.lines() if samples else ():
            typer.echo(line)
        self._echo(result)
        return result

    def _choose(self, letters: DeadLetters, chosen: ChosenDeadLetters) -> tuple[Choice, int | None]:
        if chosen.which:
            numbers = chosen.find_numbers(letters)
            return numbers, len(numbers)
        # The last number bounds the replay, so resuming it leaves out messages that died again.
        filter = replace(chosen.filter, up_to=letters.last_number(chosen.filter))
        counts = letters.counts()
        total = counts.get(filter.vertex, 0) if filter.vertex else sum(counts.values())
        return filter, total if chosen.filter.is_everything else None

    def _announce(self, choice: Choice, total: int | None) -> None:
        """Prints how to resume a long replay, now because a killed command cannot print it."""
        if self.dry_run or self.as_json or total is None or total <= STEP:
            return
        typer.echo(
            f"replaying {letters_text(total)}; if it is interrupted, {_resume(choice)}", err=True
        )

    def _resolve(self) -> Transform | None:
        return resolve(self.function, Path.cwd()) if self.function else None

    def _edit(self, letters: DeadLetters, choice: Choice) -> Transform | None:
        numbers = choice if isinstance(choice, list) else []
        if len(numbers) != 1:
            raise typer.BadParameter("name one by its number or id.", param_hint="--edit")
        (stored,) = letters.get(*numbers)
        return edit_letter(stored, self.pipeline)

    def _replay(
        self,
        letters: DeadLetters,
        choice: Choice,
        transform: Transform | None,
        progress: Callable[[ReplayResult], None],
    ) -> ReplayResult:
        latest: list[ReplayResult] = []

        def note(result: ReplayResult) -> None:
            latest[:] = [result]
            progress(result)

        try:
            return letters.replay(
                choice, transform=transform, rate=self.rate, dry_run=self.dry_run, progress=note
            )
        except KeyboardInterrupt:
            sent = latest[0].sent if latest else 0
            typer.echo(
                f"\nInterrupted: {letters_text(sent)} sent back; {_resume(choice)}", err=True
            )
            raise typer.Exit(ExitCode.INTERRUPTED) from None

    @contextmanager
    def _progress(self, total: int | None) -> Iterator[Callable[[ReplayResult], None]]:
        if not sys.stderr.isatty() or self.as_json:
            yield lambda result: None
            return
        from rich.progress import (
            BarColumn,
            MofNCompleteColumn,
            Progress,
            TextColumn,
            TimeRemainingColumn,
        )

        columns = (
            TextColumn("replaying"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
        )
        with Progress(*columns, console=console(err=True), transient=True) as bar:
            task = bar.add_task("", total=total)
            yield lambda result: bar.update(
                task, completed=result.sent + result.purged + result.kept
            )

    def _echo(self, result: ReplayResult) -> None:
        if self.as_json:
            typer.echo(json.dumps(result.to_json() | {"dry_run": self.dry_run}))
            return
        would = self.dry_run
        typer.echo(f"{letters_text(result.sent)} {'would be sent back' if would else 'sent back'}")
        if result.purged:
            verb = "would be deleted" if would else "deleted"
            typer.echo(f"{letters_text(result.purged)} {verb}, as the function says")
        if result.kept:
            verb = "would stay" if would else "stayed"
            typer.echo(f"{letters_text(result.kept)} {verb}:", err=True)
            for line in stayed_lines(result):
                typer.echo(line, err=True)


def _resume(choice: Any) -> str:
    end = getattr(choice, "up_to", None)
    bound = f" with --up-to {end}" if end is not None else ""
    return f"continue with the same command{bound}: nothing is sent twice."


class Samples:
    """A transform that keeps the first dead letters it changed, to show them to the user."""

    def __init__(self, transform: Transform) -> None:
        self._transform = transform
        self._changes: list[tuple[Letter, Letter]] = []

    def __call__(self, letter: Letter) -> Any:
        """Calls the transform and keeps a change."""
        result = self._transform(letter)
        if len(self._changes) < _SAMPLES:
            changed = transform_letter(letter, lambda _: result)
            if isinstance(changed, Letter) and changed != letter:
                self._changes.append((letter, changed))
        return result

    def lines(self) -> Iterator[str]:
        """Yields the first changed dead letters before and after."""
        width = console().width - 4
        for before, after in self._changes:
            yield f"{one_line(before.id)}:"
            for sign, letter in (("-", before), ("+", after)):
                yield f"  {sign} {cut_end(one_line(_brief(letter)), width)}"


def _brief(letter: Letter) -> str:
    facts = [text_or_hex(letter.value[:200])]
    if letter.keys:
        facts.append(f"keys {letter.keys}")
    return "  ".join(facts)


# --- in the editor ------------------------------------------------------------------------------


def edit_letter(stored: StoredLetter, pipeline: str) -> LetterEdit | None:
    """Returns the user's edit of a dead letter; ``None`` if the user changed nothing.

    Raises ``EbbflowError`` if there is no editor, if it fails, or if the edited text cannot be
    parsed. In the last two cases the text stays in a file that the error names.
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
        edit = parse_edit(after)
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
            f"The editor {editor!r} ended with code {code}. Nothing was sent; your edit is in "
            f"{path}."
        )


def write_letter(stored: StoredLetter, pipeline: str) -> str:
    """Returns a dead letter as text to edit; ``EbbflowError`` if its value is not text."""
    letter = stored.letter
    try:
        value = letter.value.decode()
    except UnicodeDecodeError as error:
        raise EbbflowError(
            f"The value of dead letter {stored.number} is not text. "
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


def parse_edit(text: str) -> LetterEdit:
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
        raise ValueError(f"Line {line}, {name}, is not JSON: {error}.") from error
    texts = fact.values() if isinstance(fact, dict) and name == "headers" else fact
    right = isinstance(fact, list if name == "keys" else dict)
    if not right or not all(isinstance(one, str) for one in texts):
        shape = '["one", "two"]' if name == "keys" else '{"name": "value"}'
        raise ValueError(f"Line {line}: write {name} as {shape}.")
    return fact
