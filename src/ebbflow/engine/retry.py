"""Retries rows that user code reports as failed: FAILURE from a sink, ``to_fail`` from a map.

Only the failed rows are passed to user code again, in their order. Short waits block the task, up
to one second in all for a chunk. Longer ones go through the redeliveries of the vertex (``Retry``),
so that a long wait never holds up a task. The strategy's ``on_failure`` decides what happens after
the last retry. Without a strategy a failure is permanent and goes to the dead letters.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from ebbflow.domain.durations import Backoff
from ebbflow.domain.outcome import DeadLetter, Retry
from ebbflow.engine import frames
from ebbflow.engine.frames import Rows
from ebbflow.engine.verdict import Failure, Operator, Verdict

Pause = Callable[[float], None]

ON_THE_SPOT = 1_000
"""Milliseconds for which the retries of one chunk may block the task."""


@dataclass(frozen=True, slots=True)
class RetryStrategy:
    """The number and waits of retries, and what to do after the last one."""

    backoff: Backoff
    on_failure: Literal["retry", "fallback", "drop"] = "retry"

    def allows(self, retries: int) -> bool:
        """Returns whether there may be another retry after that many."""
        return self.on_failure == "retry" or retries < self.backoff.steps


def retry_failed(
    verdict: Verdict, call: Operator, strategy: RetryStrategy | None, pause: Pause, what: str
) -> None:
    """Retries the rows that have failed, and gives each of them an outcome.

    ``what`` names user code in the dead letters of rows that are given up.
    """
    if strategy is not None:
        _retry_on_the_spot(verdict, call, strategy, pause)
    conclude(verdict, strategy, what)


def conclude(verdict: Verdict, strategy: RetryStrategy | None, what: str) -> None:
    """Gives every failed row its outcome: another try later, or its end."""
    for index, failure in verdict.decisions.take_failed().items():
        _conclude(verdict, index, failure, strategy, what)


def _retry_on_the_spot(
    verdict: Verdict, call: Operator, strategy: RetryStrategy, pause: Pause
) -> None:
    left = ON_THE_SPOT
    retried = False
    while True:
        waits = {
            index: _wait(verdict, index, failure, strategy)
            for index, failure in verdict.decisions.failed.items()
            if strategy.allows(failure.retries)
        }
        at = sorted(index for index, wait in waits.items() if wait <= left)
        if not at:
            break
        retried = True
        wait = max(waits[index] for index in at)
        left -= max(wait, 1)
        pause(wait / 1000)
        _retry(verdict, at, call)
    if retried:
        verdict.decisions.sort_outputs()


def _wait(verdict: Verdict, index: int, failure: Failure, strategy: RetryStrategy) -> int:
    """Returns the milliseconds before the next try."""
    chance = verdict.chance_of(index, failure.retries)
    return strategy.backoff.wait(failure.retries + 1, chance)


def _retry(verdict: Verdict, at: list[int], call: Operator) -> None:
    failures = verdict.decisions.take_failed(at)
    retries = [failures[index].retries + 1 for index in at]
    batch = frames.take_rows(verdict.rows.batch, at)
    part = verdict.part(Rows(frames.with_columns(batch, retries=retries), verdict.rows.watermark))
    call(part)
    verdict.decisions.merge(at, part.decisions)


def _conclude(
    verdict: Verdict, index: int, failure: Failure, strategy: RetryStrategy | None, what: str
) -> None:
    decisions = verdict.decisions
    letter = DeadLetter(f"{what} failure", error=failure.error)
    if strategy is None:
        decisions.finish(index, letter)
    elif strategy.allows(failure.retries):
        wait = _wait(verdict, index, failure, strategy)
        retries, failures = failure.retries + 1, verdict.failures_of(index)
        decisions.finish(index, Retry(wait, failure.error, retries, failures))
    elif strategy.on_failure == "fallback" and verdict.rules.has_fallback:
        decisions.fall_back(index, letter)
    else:
        retried = f"{failure.error} (after {failure.retries} retries)"
        decisions.finish(index, DeadLetter("retries exhausted", error=retried))
