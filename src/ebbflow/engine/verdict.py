"""The verdict on a chunk: an outcome for every input, and the outputs.

User code returns, yields, raises and responds; a verdict turns each of these into a decision about
the input. A nack among the outputs of an input withdraws its other outputs. An error is counted on
the input alone, never on the chunk. A message that breaks a rule (``checks``) is an error of its
input. ``Decisions`` record all that, ``Verdict`` writes them for one chunk.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from types import NoneType
from typing import Any, Protocol

import pyarrow as pa
import pyarrow.compute as pc

from ebbflow.domain.errors import MessageTooLarge
from ebbflow.domain.message import Message, Nack, NackOptions, Signal
from ebbflow.domain.outcome import DeadLetter, Dropped, Outcome, Redeliver, Retry
from ebbflow.engine import frames
from ebbflow.engine.causes import Raised, RaisedErrors
from ebbflow.engine.checks import (
    NOT_MESSAGES,
    Rules,
    check_keys,
    check_message,
    check_on_success,
)
from ebbflow.engine.frames import Rows
from ebbflow.engine.outputs import AnyOutputs, ColumnOutputs, Outputs, event_times
from ebbflow.engine.redelivery import decide_error, decide_nack, draw_chance, shorten

EMPTY = Dropped("empty result")


@dataclass(frozen=True, slots=True)
class Failure:
    """An error that user code reported for an input, and how often it has been retried."""

    error: str
    retries: int


@dataclass(slots=True)
class Decisions:
    """The decisions about the rows of one chunk, by index. Only its methods write a field.

    An input without an outcome is done: only other outcomes are recorded one by one, and the
    outputs are gathered as columns, so the normal case costs almost nothing. Decisions can be
    pickled: a child process that tries rows in place of its worker sends them back.

    Outcomes are final. The inputs in ``failed``, ``fallback``, ``on_success`` and ``served`` have
    none yet: user code has made a request, and the code that fulfils it writes the outcome.
    """

    outcomes: dict[int, Outcome] = field(default_factory=dict)
    """The outcomes of the inputs that are not simply done."""
    outputs: AnyOutputs | None = field(default_factory=Outputs)
    """The outputs; ``None`` forwards the inputs as they are."""
    failed: dict[int, Failure] = field(default_factory=dict)
    """The inputs that user code reports as failed, to be retried or given up."""
    fallback: dict[int, DeadLetter] = field(default_factory=dict)
    """The inputs for the fallback sink, each with the dead letter it would be without one."""
    on_success: dict[int, Message | None] = field(default_factory=dict)
    """The inputs for the on-success sink, each with the message to write instead, if any."""
    served: dict[int, bytes] = field(default_factory=dict)
    """The payloads to be stored as answers."""
    answers: dict[int, list[bytes]] = field(default_factory=dict)
    """The answers that are stored when the chunk is settled."""
    event_times: list[datetime] = field(default_factory=list)
    """The event times that count toward the watermark although nothing is forwarded."""
    written: int | None = None
    """The messages that sinks took, where the outcomes of the inputs do not show it."""
    emitted_rows: int = 0
    """The output rows that were forwarded before the chunk was settled."""
    unreached: int | None = None
    """The first row that user code has not seen, where an ordered vertex stopped."""
    raised: RaisedErrors | None = None
    """The errors that user code has raised, whatever the outcomes of their messages."""

    # --- outcomes -------------------------------------------------------------------------------

    def drop(self, index: int, rule: Dropped = EMPTY) -> None:
        """Ends the input without outputs."""
        self.outcomes[index] = rule

    def finish(self, index: int, end: Outcome) -> None:
        """Records the outcome of the input."""
        self.outcomes[index] = end

    # --- open requests --------------------------------------------------------------------------

    def fail(self, index: int, failure: Failure) -> None:
        """Leaves the input to its retry strategy."""
        self.failed[index] = failure

    def fall_back(self, index: int, letter: DeadLetter) -> None:
        """Leaves the input to the fallback sink."""
        self.fallback[index] = letter

    def request_on_success(self, index: int, message: Message | None) -> None:
        """Leaves the message, or the input itself, to the on-success sink."""
        self.on_success[index] = message

    def serve(self, index: int, payload: bytes) -> None:
        """Leaves the payload to be stored as the answer to the input's request."""
        self.served[index] = payload

    def serve_all(self, payloads: Sequence[bytes]) -> None:
        """Leaves one payload for each input to be stored as the answer to its request."""
        self.served = dict(enumerate(payloads))

    def take_failed(self, indexes: Iterable[int] | None = None) -> dict[int, Failure]:
        """Removes and returns the failed inputs, or those at the indexes."""
        chosen = list(self.failed if indexes is None else indexes)
        return {index: self.failed.pop(index) for index in chosen}

    def take_fallback(self) -> dict[int, DeadLetter]:
        """Removes and returns the inputs for the fallback sink."""
        taken, self.fallback = self.fallback, {}
        return taken

    def take_on_success(self) -> dict[int, Message | None]:
        """Removes and returns the inputs for the on-success sink."""
        taken, self.on_success = self.on_success, {}
        return taken

    def take_served(self) -> dict[int, bytes]:
        """Removes and returns the payloads to be stored as answers."""
        taken, self.served = self.served, {}
        return taken

    def withdraw_request(self, index: int, rule: Dropped) -> None:
        """Ends an input that waits for a further sink or store; leaves any other input alone."""
        for requests in (self.fallback, self.on_success, self.served):
            if index in requests:
                del requests[index]
                self.outcomes[index] = rule

    # --- outputs, answers and counts ------------------------------------------------------------

    def forward(self, index: int, number: int, message: Message) -> None:
        """Adds an output of the input, its ``number``-th."""
        assert isinstance(self.outputs, Outputs)
        self.outputs.add(index, number, message)

    def forward_plain(self, index: int, value: bytes, keys: Sequence[str] | None = None) -> None:
        """Adds the only output of the input, which has only a value and perhaps keys."""
        self.outputs.add_plain(index, value, keys)  # type: ignore[union-attr]

    def forward_columns(
        self,
        parents: Sequence[int],
        numbers: list[int],
        tags: list[Sequence[str]],
        columns: dict[str, pa.Array],
    ) -> None:
        """Adds the outputs of one call of a columnar map."""
        if not isinstance(self.outputs, ColumnOutputs):
            self.outputs = ColumnOutputs()
        self.outputs.add(parents, numbers, tags, columns)

    def forward_outputs(self, outputs: AnyOutputs) -> None:
        """Makes these the outputs of the chunk."""
        self.outputs = outputs

    def forward_inputs(self) -> None:
        """Makes the inputs that are done the outputs, unchanged."""
        self.outputs = None

    def take_outputs(self) -> Outputs:
        """Removes and returns the outputs so far: they are forwarded before the others."""
        taken, self.outputs = self.outputs, Outputs()
        assert isinstance(taken, Outputs)
        return taken

    def sort_outputs(self) -> None:
        """Sorts the outputs in the order of their inputs: those of retried inputs came last.

        A replay that decides in smaller pieces would have another order, and so other frames.
        """
        if self.outputs is not None:
            self.outputs = self.outputs.sorted()

    def withdraw_from(self, index: int) -> None:
        """Withdraws the failure of the input, and the outputs of it and all later inputs."""
        self.failed.pop(index, None)
        if self.outputs is not None:
            self.outputs = self.outputs.cut(index)

    def answer(self, index: int, payloads: Sequence[bytes]) -> None:
        """Adds answers that are stored when the chunk is settled."""
        self.answers.setdefault(index, []).extend(payloads)

    def note_event_times(self, times: Iterable[datetime]) -> None:
        """Counts these times toward the watermark; a time without a zone is in UTC."""
        self.event_times += [t if t.tzinfo else t.replace(tzinfo=UTC) for t in times]

    def count_written(self, messages: int) -> None:
        """Counts messages that sinks took, where the outcomes of the inputs do not show it."""
        self.written = (self.written or 0) + messages

    def count_emitted(self, rows: int) -> None:
        """Counts output rows that were forwarded before the chunk was settled."""
        self.emitted_rows += rows

    def note_error(self, error: BaseException, message_id: str) -> None:
        """Counts an error of user code, for display."""
        self._raised().note(error, message_id)

    def note_failure(self, error: str, message_id: str) -> None:
        """Counts a failure that user code has reported without raising, for display."""
        self._raised().add(Raised("FAILURE", error, None, 1, message_id))

    def _raised(self) -> RaisedErrors:
        if self.raised is None:
            self.raised = RaisedErrors()
        return self.raised

    def stop_at(self, index: int) -> None:
        """Leaves the rows from ``index`` on undecided."""
        self.unreached = index if self.unreached is None else min(self.unreached, index)

    # --- parts of a chunk -----------------------------------------------------------------------

    def merge(self, at: Sequence[int], part: Decisions) -> None:
        """Takes over the decisions of ``part``, whose rows are those at the indexes ``at``."""
        self.outcomes |= {at[index]: end for index, end in part.outcomes.items()}
        self.failed |= {at[index]: failure for index, failure in part.failed.items()}
        self.fallback |= {at[index]: letter for index, letter in part.fallback.items()}
        self.on_success |= {at[index]: message for index, message in part.on_success.items()}
        self.served |= {at[index]: payload for index, payload in part.served.items()}
        self.answers |= {at[index]: payloads for index, payloads in part.answers.items()}
        self.event_times += part.event_times
        self.emitted_rows += part.emitted_rows
        if part.raised is not None:
            self._raised().merge(part.raised)
        if part.written is not None:
            self.count_written(part.written)
        if part.unreached is not None and part.unreached < len(at):
            self.stop_at(at[part.unreached])
        self._merge_outputs(at, part.outputs)

    def replace(self, at: Sequence[int], part: Decisions) -> None:
        """Replaces the outcomes of rows that had nothing to publish."""
        for index in at:
            self.outcomes.pop(index, None)
        self.merge(at, part)

    def _merge_outputs(self, at: Sequence[int], outputs: AnyOutputs | None) -> None:
        if outputs is None:
            self.outputs = None
        elif self.outputs is not None and len(outputs):
            if not len(self.outputs):
                self.outputs = type(outputs)()
            self.outputs.extend(at, outputs)

    def between(self, start: int, end: int) -> Decisions:
        """Returns the decisions about the rows from ``start`` up to ``end``, as on them alone."""
        outputs = self.outputs
        return Decisions(
            outcomes={i - start: o for i, o in self.outcomes.items() if start <= i < end},
            answers={i - start: a for i, a in self.answers.items() if start <= i < end},
            outputs=None if outputs is None else outputs.cut(end, start).shifted(start),
        )

    def take_back(self, index: int, why: DeadLetter) -> None:
        """Dead-letters the input after all, and withdraws its outputs and answers."""
        self.outcomes[index] = why
        self.answers.pop(index, None)
        if self.outputs is not None:
            self.outputs = self.outputs.without(index)

    def cut(self, end: int) -> Decisions:
        """Returns the decisions about the rows before ``end`` alone.

        All event times stay: they were seen, and the watermark must not wait for them twice.
        """
        return Decisions(
            outcomes={index: o for index, o in self.outcomes.items() if index < end},
            answers={index: a for index, a in self.answers.items() if index < end},
            outputs=None if self.outputs is None else self.outputs.cut(end),
            event_times=self.event_times,
            raised=self.raised,
        )


class Emitter(Protocol):
    """Forwards outputs of a stream map while it runs, before its chunk is settled."""

    def is_due(self) -> bool:
        """Returns whether enough time has passed since the last call of ``emit``."""

    def emit(self, part: Verdict) -> int | None:
        """Publishes the outputs of the part; returns how many rows were written.

        ``None`` if an output cannot be published: then all wait until the chunk is settled. If the
        server refuses an output, its input becomes a dead letter in the part.
        """


class Verdict:
    """The verdict on one chunk. Made for the chunk, on the worker that decides it.

    ``emitter`` forwards early what a stream map yields. Parts of a chunk have no emitter, so what
    they yield waits until the chunk is settled.
    """

    def __init__(
        self,
        rows: Rows,
        rules: Rules,
        emitter: Emitter | None = None,
        decisions: Decisions | None = None,
    ) -> None:
        self.rows = rows
        self.rules = rules
        self.emitter = emitter
        self.decisions = Decisions() if decisions is None else decisions
        self._usual = True

    # --- reading --------------------------------------------------------------------------------

    @property
    def outcomes(self) -> Mapping[int, Outcome]:
        """The outcomes decided so far, by row."""
        return self.decisions.outcomes

    @property
    def outputs(self) -> AnyOutputs | None:
        """The messages that user code made."""
        return self.decisions.outputs

    @property
    def answers(self) -> Mapping[int, Sequence[bytes]]:
        """The answers to requests, by row."""
        return self.decisions.answers

    @property
    def usual(self) -> bool:
        """Whether the time that this chunk took is typical."""
        return self._usual

    def gather_event_times(self) -> list[datetime]:
        """Returns event times that include the earliest, which a source's watermark follows."""
        seen = list(self.decisions.event_times)
        if self.decisions.written is not None:
            return seen  # the outputs went into sinks, and their times were noted before that
        return [*event_times(self.decisions.outputs, self.rows), *seen]

    def failures_of(self, index: int) -> int:
        """Returns how often user code has raised on the input so far."""
        return int(self.rows.column("failures")[index])

    def chance_of(self, index: int, tries: int) -> float:
        """Returns the random share of the input's next wait after that many tries."""
        return draw_chance(self.rows.column("id")[index], tries)

    def holds_up(self, start: int, end: int) -> bool:
        """Returns whether an ordered vertex has to wait for the redelivery of one of these rows."""
        if not self.rules.ordered:
            return False
        decisions = self.decisions
        asked = (decisions.failed, decisions.fallback, decisions.on_success)
        return any(
            isinstance(decisions.outcomes.get(index), Redeliver | Retry)
            or any(index in asking for asking in asked)
            for index in range(start, end)
        )

    def first_held(self) -> int | None:
        """Returns where an ordered vertex stops settling: at a redelivered or unreached row.

        Settling a later row would let it overtake.
        """
        if not self.rules.ordered:
            return None
        stops = [i for i, o in self.decisions.outcomes.items() if isinstance(o, Redeliver | Retry)]
        if self.decisions.unreached is not None:
            stops.append(self.decisions.unreached)
        return min((index for index in stops if index < len(self.rows)), default=None)

    # --- parts ----------------------------------------------------------------------------------

    def part(self, rows: Rows, rules: Rules | None = None) -> Verdict:
        """Returns an empty verdict on other rows, with the same rules unless others are passed."""
        return Verdict(rows, rules or self.rules)

    def part_at(self, indexes: Sequence[int], rules: Rules | None = None) -> Verdict:
        """Returns an empty verdict on the rows at the indexes, as they came."""
        # From the batch, not from the lists that user code was shown and may have changed.
        taken = frames.take_rows(self.rows.batch, indexes)
        return self.part(Rows(taken, self.rows.watermark), rules)

    def under(self, rules: Rules) -> Verdict:
        """Returns a verdict with the same rows and decisions; further decisions use these rules."""
        return Verdict(self.rows, rules, self.emitter, self.decisions)

    def cut(self, end: int) -> Verdict:
        """Returns the verdict on the rows before ``end`` alone."""
        rows = Rows(self.rows.batch.slice(0, end), self.rows.watermark)
        return Verdict(rows, self.rules, decisions=self.decisions.cut(end))

    def between(self, start: int, end: int) -> Verdict:
        """Returns the verdict on the rows from ``start`` up to ``end``, as if on them alone."""
        rows = Rows(self.rows.batch.slice(start, end - start), self.rows.watermark)
        return Verdict(rows, self.rules, decisions=self.decisions.between(start, end))

    def refuse(self, index: int, error: BaseException) -> None:
        """Dead-letters an input that cannot be settled as it was decided."""
        self.note_error(index, error)
        before = self.decisions.outcomes.get(index)
        letter = decide_error(error, sys.maxsize, self.rules.policy)
        assert isinstance(letter, DeadLetter)
        if isinstance(before, Redeliver | Retry):
            why = before.reason if isinstance(before, Redeliver) else before.error
            text = shorten(f"{letter.error}; it was to be redelivered: {why or 'nacked'}")
            letter = replace(letter, error=text)
        self.decisions.take_back(index, letter)

    def disregard_time(self) -> None:
        """Notes that this chunk took an untypical time."""
        self._usual = False

    # --- recording ------------------------------------------------------------------------------

    def record(self, index: int, result: Any) -> None:
        """Records what a map or transformer returned for the input; raises if that is invalid."""
        if type(result) is Message:
            value, keys = result.value, result.keys
            # Nearly every message is just a value of an allowed size: no further checks, and no
            # avoidable call.
            if (
                result.signal is None
                and type(value) is bytes
                and not result.tags
                and result.event_time is None
                and result.metadata is None
                and len(value) + (0 if keys is None else check_keys(keys, self.rules))
                <= self.rules.largest
            ):
                self.decisions.outputs.add_plain(index, value, keys)  # type: ignore[union-attr]
            elif result.signal is None:
                check_message(result, self.rules)
                self.decisions.forward(index, 0, result)
            elif _is_plain_nack(result):
                self.nack(index, result.nack_options)
            else:
                self._record_message(index, result)
        elif result is None:
            self.decisions.drop(index)
        elif type(result) is list:
            self._record_messages(index, result)
        elif isinstance(result, Message):
            self._record_messages(index, [result])
        elif isinstance(result, Iterable) and not isinstance(result, NOT_MESSAGES):
            self._record_messages(index, list(result))
        else:
            check_message(result, self.rules)

    def record_run(self, start: int, values: list[bytes]) -> None:
        """Records that consecutive inputs have one output each, which is just a value."""
        self.decisions.outputs.add_run(start, values)  # type: ignore[union-attr]

    def record_interpreted(self, index: int, result: Any) -> None:
        """Records what an interpreter returned: bytes mean a message that is just a value.

        Making such a message takes longer than all of its checks.
        """
        if type(result) is bytes and len(result) <= self.rules.largest:
            self.decisions.forward_plain(index, result)
        else:
            self.record(index, Message(result) if type(result) is bytes else result)

    def _record_message(self, index: int, message: Message) -> None:
        if message.signal is Signal.NACK and message.event_time is None:
            check_message(message, self.rules)
            self.nack(index, message.nack_options)
        else:
            self._record_messages(index, [message])

    def _record_messages(self, index: int, messages: list[Message]) -> None:
        # All are checked before any is forwarded: after an error, no sibling may be forwarded.
        for message in messages:
            check_message(message, self.rules)
        signals = {message.signal for message in messages}
        # The event times of nacked and dropped messages still count toward the watermark.
        self.decisions.note_event_times(m.event_time for m in messages if m.signal and m.event_time)
        if Signal.NACK in signals:
            nacks = [m.nack_options for m in messages if m.signal is Signal.NACK]
            self.nack(index, next((options for options in nacks if options), None))
        elif Signal.FAIL in signals:
            self.fail(index, next(m.error or "failed" for m in messages if m.signal is Signal.FAIL))
        else:
            self._forward(index, [m for m in messages if m.signal is None])

    def _forward(self, index: int, messages: list[Message]) -> None:
        if not messages:
            self.decisions.drop(index)
        for number, message in enumerate(messages):
            self.decisions.forward(index, number, message)

    def forward_inputs(self) -> None:
        """Forwards the inputs unchanged; inputs too large for a message become dead letters."""
        self.decisions.forward_inputs()
        largest = self.rules.largest
        sizes = pc.binary_length(self.rows.batch.column("value"))
        if len(self.rows) and pc.max(sizes).as_py() > largest:
            for index, size in enumerate(sizes.to_pylist()):
                if size > largest:
                    self.record_error(index, MessageTooLarge(size, largest))

    def nack(self, index: int, options: NackOptions | None) -> None:
        """Redelivers the input, as far as its options allow."""
        rows = self.rows
        outcome = decide_nack(
            options, rows.column("deliveries")[index], rows.column("failures")[index]
        )
        if type(outcome) is DeadLetter and self.rules.has_fallback:
            self.decisions.fall_back(index, outcome)
        else:
            self.decisions.finish(index, outcome)

    def fail(self, index: int, error: str) -> None:
        """Records that user code reports the input as failed."""
        retries = int(self.rows.column("retries")[index])
        failure = Failure(shorten(error), retries)
        self.decisions.fail(index, failure)
        self.decisions.note_failure(failure.error, self.rows.column("id")[index])

    def request_on_success(self, index: int, message: Message | None) -> None:
        """Passes the message, or the input itself, to the on-success sink."""
        try:
            if message is not None:
                check_on_success(message, self.rules)
        except Exception as error:
            self.record_error(index, error)
        else:
            self.decisions.request_on_success(index, message)

    def record_error(self, index: int, error: BaseException) -> None:
        """Records that user code raised on the input: a nack, or a failure counted on it."""
        if isinstance(error, Nack):
            self.nack(index, error.options)
            return
        self.note_error(index, error)
        failures, policy = self.failures_of(index), self.rules.policy
        outcome = decide_error(error, failures, policy, self.chance_of(index, failures))
        self.decisions.finish(index, outcome)

    def note_error(self, index: int, error: BaseException) -> None:
        """Counts an error for display; the outcome of the input is decided elsewhere."""
        self.decisions.note_error(error, self.rows.column("id")[index])

    def record_errors(self, indexes: Iterable[int], error: BaseException) -> None:
        """Records that user code raised while it worked on several inputs at once."""
        for index in indexes:
            self.record_error(index, error)

    def postpone(self, index: int, delay: int, why: str) -> None:
        """Redelivers the input unchanged, with nothing counted on it."""
        retries = int(self.rows.column("retries")[index])
        self.decisions.finish(index, Retry(delay, why, retries, self.failures_of(index)))


def _is_plain_nack(message: Message) -> bool:
    """Returns whether a nack needs no check because it sets nothing but its options."""
    return (
        message.signal is Signal.NACK
        and message.value == b""
        and type(message.nack_options) in (NoneType, NackOptions)
        and message.event_time is None
        and message.keys is None
        and not message.tags
        and message.metadata is None
        and message.error is None
    )


Operator = Callable[[Verdict], None]
"""Decides about every row of a verdict. Runs on a worker, by calling user code or a built-in."""
