"""The base of trials of sources and sinks: stages, runs, and a look at what is left behind."""

from __future__ import annotations

import secrets
from collections import defaultdict
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack
from enum import IntEnum
from pathlib import Path
from types import TracebackType
from typing import Generic, Self, TypeVar

from ebbflow.core.dead_letter import Letter
from ebbflow.deadletters import DeadLetters
from ebbflow.nats.locate import open_link_to_pipeline
from ebbflow.pipeline import Pipeline
from ebbflow.runtime.run_report import Summary, VertexView
from ebbflow.testing.background_run import BackgroundRun, local_spark
from ebbflow.testing.conformance.leftovers import Before
from ebbflow.testing.conformance.under_test import UnderTest
from ebbflow.testing.conformance.user_code import text_of

_GONE_WITHIN = 3.0
STARTED_WITHIN = 30.0
"""Seconds until a pipeline that was started has given the first message to somebody."""


T = TypeVar("T")
Tested = TypeVar("Tested", bound=UnderTest)


class TrialRuns(Generic[Tested]):
    """A connector that is tried out, one run of its pipeline after another."""

    def __init__(self, under_test: Tested, state: Path, patience: float) -> None:
        self.under_test = under_test
        self.state = Path(state)
        self.patience = patience
        self.name = f"trial-{secrets.token_hex(4)}"
        self.left: list[str] = []
        self.summary: Summary | None = None
        self._stage = 0
        self._troubles: list[str] = []
        self._live: BackgroundRun | None = None
        self._stack = ExitStack()

    def stages(self) -> Sequence[Callable[[], None]]:
        """Returns the work of each stage."""
        raise NotImplementedError

    def release(self) -> None:
        """Lets a pipeline go on that is made to wait."""

    def __enter__(self) -> Self:
        self.enter(local_spark())
        self._before = Before.now()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        with self._stack:
            self.release()
            self.stop()

    def reach(self, stage: IntEnum) -> None:
        """Goes through the stages up to this one that are not done yet."""
        while self._stage < stage:
            self._stage += 1
            self.stages()[self._stage - 1]()

    def start(self, pipeline: Pipeline) -> None:
        """Runs the pipeline until it is stopped."""
        self._live = BackgroundRun(pipeline, self.state, self.heard)

    def heard(self, line: str) -> None:
        """The run has printed a line."""

    def stop(self) -> None:
        """Stops the pipeline, if one runs, and notes what it leaves behind."""
        if self._live is not None:
            live, self._live = self._live, None
            self._troubles += live.failures
            self.summary = live.stop()
            self.left += self._before.left_by(self.name, self.under_test.left_behind, _GONE_WITHIN)

    def view(self, vertex: str) -> VertexView | None:
        """Returns the latest view of a vertex, if the pipeline runs."""
        return self._live.views.get(vertex) if self._live else None

    def enter(self, context: AbstractContextManager[T]) -> T:
        """Keeps a context open until the trial ends."""
        return self._stack.enter_context(context)

    def letters(self) -> dict[str, list[Letter]]:
        """Returns the dead letters so far, by the names of their messages."""
        by_name: defaultdict[str, list[Letter]] = defaultdict(list)
        with open_link_to_pipeline(self.state, None) as link:
            for stored in DeadLetters(link, self.name).list():
                by_name[self.name_of_letter(stored.letter)].append(stored.letter)
        return dict(by_name)

    def name_of_letter(self, letter: Letter) -> str:
        """Returns the name by which observations know the message of a dead letter."""
        # Of a value that no message can hold only the beginning is kept, and how long it was.
        return text_of(letter.value) if letter.size is None else f"{letter.size} bytes"

    def waives(self, *rules: str) -> bool:
        """Whether none of these rules is to be kept, so that there is nothing to be tried out."""
        return all(rule in self.under_test.waived for rule in rules)

    def note(self, trouble: str) -> None:
        """Keeps something that went wrong, for the text of a broken rule."""
        self._troubles.append(trouble)

    def troubles(self) -> str:
        """Returns what else went wrong, each on a line."""
        all_troubles = [*self._troubles, *(self._live.failures if self._live else ())]
        return "".join(f"\nMeanwhile: {trouble}" for trouble in dict.fromkeys(all_troubles))
