"""The dead letters of pipelines, kept open between questions: what was read is not read again."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar

from ebbflow.deadletters import DeadLetters
from ebbflow.nats.link import Link

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class LetterReader:
    """The letters of one pipeline over one connection, for one thread at a time."""

    link: Link
    letters: DeadLetters
    turn: threading.Lock = field(default_factory=threading.Lock)


class LetterReaders:
    """A reader for each pipeline and purpose. Used by any thread."""

    def __init__(self) -> None:
        self._readers: dict[tuple[str, str], LetterReader] = {}
        self._finding = threading.Lock()

    def use(
        self, link: Link, pipeline: str, purpose: str, question: Callable[[DeadLetters], T]
    ) -> T:
        """Returns the answer to a question; questions of one purpose are asked in turn."""
        reader = self._find(link, pipeline, purpose)
        with reader.turn:
            return question(reader.letters)

    def _find(self, link: Link, pipeline: str, purpose: str) -> LetterReader:
        with self._finding:
            reader = self._readers.get((pipeline, purpose))
            if reader is None or reader.link is not link:
                reader = LetterReader(link, DeadLetters(link, pipeline))
                self._readers[pipeline, purpose] = reader
            return reader
