"""``ebbflow dlq replay``: what the user sees of a replay, before, while and after it goes on."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from ebbflow.cli.conventions import ExitCode
from ebbflow.cli.dlq.choosing import Chosen, find_numbers
from ebbflow.cli.dlq.editing import edit_letter
from ebbflow.cli.dlq.showing import console, cut, letters_text, stayed_lines, text_or_hex
from ebbflow.deadletters.replay import STEP
from ebbflow.deadletters.transforms import decide
from ebbflow.engine.dead_letter import Letter
from ebbflow.status.terminal import one_line
from ebbflow.usercode.targets import resolve

if TYPE_CHECKING:
    from ebbflow.deadletters import (
        Choice,
        DeadLetters,
        ReplayResult,
        Transform,
    )

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

    def run(self, letters: DeadLetters, chosen: Chosen) -> ReplayResult | None:
        """Replays and says what it has come to; ``None`` if the user has edited nothing."""
        if self.edit and self.function:
            raise typer.BadParameter(
                "a letter is edited, or given to a function.", param_hint="--edit"
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

    def _choose(self, letters: DeadLetters, chosen: Chosen) -> tuple[Choice, int | None]:
        if chosen.which:
            numbers = find_numbers(letters, chosen)
            return numbers, len(numbers)
        # The last number bounds the replay: what dies again is no part of it when it is resumed.
        filter = replace(chosen.filter, up_to=letters.last_number(chosen.filter))
        counts = letters.counts()
        total = counts.get(filter.vertex, 0) if filter.vertex else sum(counts.values())
        return filter, total if chosen.filter.is_everything else None

    def _announce(self, choice: Choice, total: int | None) -> None:
        """Says how to resume a long replay: whoever is killed has no chance to say it."""
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
            raise typer.BadParameter("name one letter by its number or id.", param_hint="--edit")
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
    return f"go on with the same command{bound}: what was sent does not go twice."


class Samples:
    """A transform that keeps the first letters it has changed, for the user to look at."""

    def __init__(self, transform: Transform) -> None:
        self._transform = transform
        self._changes: list[tuple[Letter, Letter]] = []

    def __call__(self, letter: Letter) -> Any:
        """Calls the transform."""
        result = self._transform(letter)
        if len(self._changes) < _SAMPLES:
            changed = decide(letter, lambda _: result)
            if isinstance(changed, Letter) and changed != letter:
                self._changes.append((letter, changed))
        return result

    def lines(self) -> Iterator[str]:
        """Yields what became of the first letters."""
        width = console().width - 4
        for before, after in self._changes:
            yield f"{one_line(before.id)}:"
            for sign, letter in (("-", before), ("+", after)):
                yield f"  {sign} {cut(one_line(_brief(letter)), width)}"


def _brief(letter: Letter) -> str:
    facts = [text_or_hex(letter.value[:200])]
    if letter.keys:
        facts.append(f"keys {letter.keys}")
    return "  ".join(facts)
