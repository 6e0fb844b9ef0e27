"""A sink and the sinks next to it: primary, then fallback, then on-success, then the answers.

A message is settled when the last sink it reached has decided. A nack from any sink redelivers the
input, so the primary gets it again. The fallback and on-success sinks respond with OK, FAILURE or
NACK; any other response there violates the contract.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa

from ebbflow.domain.errors import MessageTooLarge
from ebbflow.domain.message import Message, Status
from ebbflow.domain.outcome import FellBack, Outcome, Served, Succeeded
from ebbflow.engine import frames
from ebbflow.engine.blame import USER_ERRORS, Blame, Trial
from ebbflow.engine.checks import Rules
from ebbflow.engine.frames import Rows, request_id
from ebbflow.engine.retry import Pause, RetryStrategy
from ebbflow.engine.verdict import Operator, Verdict
from ebbflow.usercode.calling import call_with_retries

PLAIN = frozenset({Status.OK, Status.FAILURE, Status.NACK})


@dataclass(frozen=True, slots=True)
class Store:
    """The user's own store: ``put`` stores answers under a request's id, or raises."""

    put: Callable[[str, Sequence[bytes]], None]
    blame: Blame


@dataclass(frozen=True, slots=True)
class Sinks:
    """The sinks of a vertex. ``store`` is the user's own; ``serves`` if there is any store.

    ``batch_size`` is the most messages of one call of the primary.
    """

    primary: Operator
    fallback: Operator | None = None
    on_success: Operator | None = None
    strategy: RetryStrategy | None = None
    serves: bool = False
    store: Store | None = None
    batch_size: int = 500

    @property
    def allowed(self) -> frozenset[Status]:
        """The statuses that the primary may respond with."""
        more = {
            Status.FALLBACK: self.fallback is not None,
            Status.ON_SUCCESS: self.on_success is not None,
            Status.SERVE: self.serves,
        }
        return PLAIN | {status for status, configured in more.items() if configured}

    def bind(self, rules: Rules) -> Rules:
        """Returns the rules for the primary, extended by what the secondary sinks allow."""
        return replace(rules, allowed=self.allowed, has_fallback=self.fallback is not None)


def _withdraw_nothing(verdict: Verdict) -> None:
    pass


def run_sinks(
    verdict: Verdict, sinks: Sinks, pause: Pause, withdraw: Operator = _withdraw_nothing
) -> None:
    """Lets the sinks decide about every row.

    ``withdraw`` runs before each secondary sink and before the store, to withdraw requests for
    them.
    """
    verdict = verdict.under(sinks.bind(verdict.rules))
    call_with_retries(verdict, sinks.primary, sinks.strategy, pause, "sink")
    for run in (run_fallback, run_on_success):
        withdraw(verdict)
        run(verdict, sinks, pause)
    withdraw(verdict)
    if sinks.store is not None:
        _store_outside(verdict, sinks.store)
    else:
        _store_with_chunk(verdict)


def run_fallback(verdict: Verdict, sinks: Sinks, pause: Pause) -> None:
    """Calls the fallback sink on the rows that were sent to it, and decides about them."""
    at = sorted(verdict.decisions.take_fallback())
    if not at:
        return
    assert sinks.fallback is not None
    part = verdict.part_at(at, _last_sink(verdict.rules, "fallback sink"))
    call_with_retries(part, sinks.fallback, sinks.strategy, pause, "fallback sink")
    _conclude(verdict, at, part, FellBack())


def run_on_success(verdict: Verdict, sinks: Sinks, pause: Pause) -> None:
    """Calls the on-success sink on the rows that were sent to it, and decides about them."""
    messages = verdict.decisions.take_on_success()
    if not messages:
        return
    assert sinks.on_success is not None
    at = sorted(messages)
    batch = _replace_facts(frames.take_rows(verdict.rows.batch, at), [messages[i] for i in at])
    rules = _last_sink(verdict.rules, "on-success sink")
    part = verdict.part(Rows(batch, verdict.rows.watermark), rules)
    call_with_retries(part, sinks.on_success, sinks.strategy, pause, "on-success sink")
    _conclude(verdict, at, part, Succeeded())


def _last_sink(rules: Rules, name: str) -> Rules:
    """Returns the rules for a sink without a fallback: a message it refuses is dead-lettered."""
    return replace(rules, allowed=PLAIN, has_fallback=False, secondary=name)


def _conclude(verdict: Verdict, at: Sequence[int], part: Verdict, usual_end: Outcome) -> None:
    """Copies the outcomes of the part; a row that it has not reached stays undecided."""
    unreached = part.decisions.unreached
    reached = len(at) if unreached is None else unreached
    for number, index in enumerate(at[:reached]):
        verdict.decisions.finish(index, part.outcomes.get(number, usual_end))
    if reached < len(at):
        verdict.decisions.stop_at(at[reached])


def _replace_facts(batch: pa.RecordBatch, messages: Sequence[Message | None]) -> pa.RecordBatch:
    """Returns the rows with the fields that the messages set; other fields stay as they were."""
    names = ("value", "keys", "event_time", "metadata")
    columns = {name: frames.to_list(batch.column(name)) for name in names}
    for index, message in enumerate(messages):
        for name in names if message is not None else ():
            fact = getattr(message, name)
            if fact is not None:
                columns[name][index] = list(fact) if name == "keys" else fact
    return frames.with_columns(batch, **columns)


def _store_with_chunk(verdict: Verdict) -> None:
    """Adds the answers to the chunk's settlement; an answer that is too large is an error."""
    largest = verdict.rules.largest
    for index, payload in verdict.decisions.take_served().items():
        if len(payload) > largest:
            verdict.record_error(index, MessageTooLarge(len(payload), largest))
        else:
            verdict.decisions.answer(index, [payload])
            verdict.decisions.finish(index, Served())


def _store_outside(verdict: Verdict, store: Store) -> None:
    """Puts the answers into the user's own store, until it is clear that the store is down."""
    served = verdict.decisions.take_served()
    at = sorted(served)
    part = verdict.part_at(at, replace(verdict.rules, has_fallback=False))
    trial = Trial(part, store.blame)
    for number, index in enumerate(at):
        try:
            store.put(request_id(part.rows, number), [served[index]])
        except USER_ERRORS as error:
            trial.failed(number, number + 1, error)
            if trial.stops:
                trial.leave(number + 1)
                break
    trial.finish()
    _conclude(verdict, at, part, Served())
