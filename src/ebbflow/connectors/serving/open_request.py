"""A request that has not ended: what is known of its way, and who waits for it.

Answers are kept only while somebody waits for them: of a request that nobody waits for they are
read from the store when they are fetched. Everything happens on one loop.
"""

from __future__ import annotations

import asyncio
from datetime import datetime
from operator import attrgetter

from ebbflow.accounts.trail import Completion
from ebbflow.connectors.serving.served_request import ServedRequest, Status
from ebbflow.engine.answers import Answer, answer_key


class AnswersSoFar:
    """The answers to a request that have come while somebody waits for them.

    ``is_whole`` if somebody has waited from the beginning, so that none can be missing.
    ``is_watched`` if somebody wants each as it comes.
    """

    __slots__ = ("_by_name", "is_watched", "is_whole", "waiting")

    def __init__(self, is_whole: bool) -> None:
        self.is_whole = is_whole
        self.is_watched = False
        self.waiting = 0
        self._by_name: dict[str, Answer] = {}

    def __len__(self) -> int:
        return len(self._by_name)

    def add(self, answer: Answer) -> None:
        """Takes an answer in; one that is stored again takes the place of the first."""
        self._by_name[answer.name] = answer

    def in_order(self) -> tuple[Answer, ...]:
        """Returns them in the order of the request's results."""
        answers = self._by_name.values()
        # As a rule there is one, and its order is a parsed id.
        return tuple(answers if len(answers) == 1 else sorted(answers, key=attrgetter("order")))

    def beside(self, known: set[str]) -> list[Answer]:
        """Returns those that are not known by name, in the order of their arrival."""
        answers = [answer for name, answer in self._by_name.items() if name not in known]
        return sorted(answers, key=attrgetter("arrived"))


class OpenRequest:
    """One request, from its acceptance to its end.

    ``begun`` is the sequence of the trail from which on all is told of it, and ``told_at`` when
    that was. ``end`` is there when it has ended. ``is_left`` when the book was closed before.
    """

    __slots__ = (
        "_waiting", "accepted", "answers", "begun", "completion", "end", "id", "is_left", "token",
        "told_at",
    )  # fmt: skip

    def __init__(self, source: str, request: str, accepted: datetime) -> None:
        self.id = request
        self.token = answer_key(request)
        self.accepted = accepted
        self.completion = Completion(source, request)
        self.begun: int | None = None
        self.told_at = accepted
        self.answers: AnswersSoFar | None = None
        self.end: ServedRequest | None = None
        self.is_left = False
        self._waiting: set[asyncio.Future[None]] = set()

    def describe(self) -> ServedRequest:
        """Returns how far it is."""
        return self._describe("in-progress")

    def _describe(self, status: Status, ended: datetime | None = None) -> ServedRequest:
        return ServedRequest(
            self.id,
            status,
            self.accepted,
            ended,
            self.completion.failure,
            answer_count=self.completion.answers,
            steps=self.completion.steps,
            steps_left_out=self.completion.steps_left_out,
        )

    def finish(self, at: datetime) -> ServedRequest:
        """Ends it, completed or failed, and wakes those that wait."""
        self.end = self._describe("failed" if self.completion.failure else "completed", at)
        self.wake()
        return self.end

    def leave(self) -> None:
        """Hears that the book is closed, and wakes those that wait."""
        self.is_left = True
        self.wake()

    def take(self, answer: Answer) -> None:
        """Takes an answer in for those that wait."""
        if self.answers is not None:
            self.answers.add(answer)
            # Who waits for the end alone is woken once, by the trail, which comes behind answers.
            if self.answers.is_watched or self.end is not None:
                self.wake()

    # --- waiting --------------------------------------------------------------------------------

    @property
    def has_everything(self) -> bool:
        """Whether it has ended and those that wait have all that it came to."""
        if self.end is None:
            return False
        answers = self.answers
        is_here = answers is not None and answers.is_whole and len(answers) >= self.end.answer_count
        return is_here or self.end.failure is not None

    def wake(self) -> None:
        """Wakes all that wait for a change."""
        waiting, self._waiting = self._waiting, set()
        for waiter in waiting:
            if not waiter.done():
                waiter.set_result(None)

    async def wait_for_change(self) -> None:
        """Returns when it has ended, the book was closed, or an answer has come that counts.

        One counts for those that watch, and for all when the request has ended before it came.
        """
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.add(waiter)
        try:
            await waiter
        finally:
            self._waiting.discard(waiter)
