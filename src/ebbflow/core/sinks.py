"""A sink and the sinks beside it: primary, then fallback, then on-success, then the answers.

A message is settled when the last sink it reached has decided. A nack from any of them redelivers
the input, so the primary sees it again. The fallback and on-success sinks answer OK, FAILURE or
NACK; anything else there is a violation of the contract.
"""

from __future__ import annotations

from asyncio import CancelledError
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import pyarrow as pa

from ebbflow.core import frames
from ebbflow.core.blame import Blame
from ebbflow.core.frames import Rows
from ebbflow.core.retry import Call, Pause, RetryStrategy, call_with_retries
from ebbflow.core.trial import Trial
from ebbflow.core.verdict import Verdict
from ebbflow.errors import MessageTooLarge
from ebbflow.message import Message, Status
from ebbflow.outcome import FellBack, Outcome, Served, Succeeded

PLAIN = frozenset({Status.OK, Status.FAILURE, Status.NACK})
REQUEST_ID = "x-numaflow-id"


@dataclass(frozen=True, slots=True)
class Store:
    """A store of the user's: ``put`` stores answers under a request's id, or raises."""

    put: Callable[[str, Sequence[bytes]], None]
    blame: Blame


@dataclass(frozen=True, slots=True)
class Sinks:
    """The sinks of a vertex. ``store`` is one of the user's; ``serves`` if there is any."""

    primary: Call
    fallback: Call | None = None
    on_success: Call | None = None
    strategy: RetryStrategy | None = None
    serves: bool = False
    store: Store | None = None

    @property
    def allowed(self) -> frozenset[Status]:
        """What the primary may answer."""
        more = {
            Status.FALLBACK: self.fallback is not None,
            Status.ON_SUCCESS: self.on_success is not None,
            Status.SERVE: self.serves,
        }
        return PLAIN | {status for status, configured in more.items() if configured}


def run_sinks(verdict: Verdict, sinks: Sinks, pause: Pause) -> None:
    """Have the sinks decide about every row."""
    verdict.allowed = sinks.allowed
    verdict.has_fallback = sinks.fallback is not None
    call_with_retries(verdict, sinks.primary, sinks.strategy, pause, "sink")
    fall_back(verdict, sinks, pause)
    succeed(verdict, sinks, pause)
    _serve(verdict, sinks)


def fall_back(verdict: Verdict, sinks: Sinks, pause: Pause) -> None:
    """Give the rows that are meant for it to the fallback sink."""
    at = sorted(verdict.fallback)
    if not at:
        return
    assert sinks.fallback is not None
    part = verdict.part(Rows(frames.taken(verdict.rows.batch, at), verdict.rows.watermark))
    _decide(part, sinks.fallback, sinks.strategy, pause, "fallback sink")
    verdict.fallback.clear()
    _conclude(verdict, at, part, FellBack())


def succeed(verdict: Verdict, sinks: Sinks, pause: Pause) -> None:
    """Give the rows that are meant for it to the on-success sink."""
    at = sorted(verdict.on_success)
    if not at:
        return
    assert sinks.on_success is not None
    batch = frames.taken(verdict.rows.batch, at)
    messages = [verdict.on_success[index] for index in at]
    part = verdict.part(Rows(_replaced(batch, messages), verdict.rows.watermark))
    _decide(part, sinks.on_success, sinks.strategy, pause, "on-success sink")
    verdict.on_success.clear()
    _conclude(verdict, at, part, Succeeded())


def _decide(
    part: Verdict, call: Call, strategy: RetryStrategy | None, pause: Pause, what: str
) -> None:
    # There is no further fallback here: what cannot be written goes to the dead letters.
    part.allowed, part.has_fallback = PLAIN, False
    call_with_retries(part, call, strategy, pause, what)


def _conclude(verdict: Verdict, at: Sequence[int], part: Verdict, fine: Outcome) -> None:
    reached = len(at) if part.unreached is None else part.unreached
    for number, index in enumerate(at[:reached]):
        verdict.outcomes[index] = part.outcomes.get(number, fine)
    if reached < len(at):
        verdict.stop_at(at[reached])


def _replaced(batch: pa.RecordBatch, messages: Sequence[Message | None]) -> pa.RecordBatch:
    """The rows with what the given messages say; what they do not say stays as it was."""
    names = ("value", "keys", "event_time", "metadata")
    columns = {name: batch.column(name).to_pylist() for name in names}
    for index, message in enumerate(messages):
        for name in names if message is not None else ():
            given = getattr(message, name)
            if given is not None:
                columns[name][index] = list(given) if name == "keys" else given
    return frames.with_columns(batch, **columns)


def _serve(verdict: Verdict, sinks: Sinks) -> None:
    if sinks.store is not None:
        _store(verdict, sinks.store)
        return
    for index, payload in verdict.served.items():
        if len(payload) > verdict.largest:
            verdict.raised(index, MessageTooLarge(len(payload), verdict.largest))
        else:
            verdict.answers[index] = [payload]
            verdict.outcomes[index] = Served()
    verdict.served.clear()


def _store(verdict: Verdict, store: Store) -> None:
    """Give the answers to a store of the user's, until it is clear that it is away."""
    at = sorted(verdict.served)
    # From the batch, not from the headers that user code was shown and may have changed.
    part = verdict.part(Rows(frames.taken(verdict.rows.batch, at), verdict.rows.watermark))
    part.has_fallback = False
    trial = Trial(part, store.blame)
    for number, index in enumerate(at):
        try:
            store.put(request_id(part.rows, number), [verdict.served[index]])
        except (Exception, SystemExit, CancelledError) as error:
            trial.failed(number, number + 1, error)
            if trial.stops:
                trial.leave(number + 1)
                break
    trial.finish()
    verdict.served.clear()
    _conclude(verdict, at, part, Served())


def request_id(rows: Rows, index: int) -> str:
    """The id that an answer is stored under: the request's own, or the source message's."""
    headers: dict[str, str] = rows.column("headers")[index]
    given = next((value for key, value in headers.items() if key.lower() == REQUEST_ID), None)
    return given or str(rows.column("id")[index]).partition("/")[0]
