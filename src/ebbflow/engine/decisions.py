"""The decisions about the rows of a chunk, and the verbs that write them down.

An input without an outcome is done: only what ends otherwise is written down one by one, and the
outputs are gathered as columns, so the normal case costs next to nothing. Nobody outside this
module writes a field; a test keeps that. Decisions can be pickled: a child process that tries rows
in place of its worker sends them back.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

import pyarrow as pa

from ebbflow.domain.message import Message
from ebbflow.domain.outcome import DeadLetter, Dropped, Outcome, Redeliver, Retry
from ebbflow.engine.causes import Raised, RaisedErrors
from ebbflow.engine.outputs import AnyOutputs, ColumnOutputs, Outputs

EMPTY = Dropped("empty result")


@dataclass(frozen=True, slots=True)
class Failure:
    """An error that user code reported about an input, and how often that had been retried."""

    error: str
    retries: int


class Decisions:
    """The decisions about the rows of one chunk, by index.

    Outcomes are final. What is failed, or asked for a fallback, on-success or served, is not: user
    code has asked for it, and whoever does it takes it from here and writes the outcome.
    """

    def __init__(self) -> None:
        self._outcomes: dict[int, Outcome] = {}
        self._outputs: AnyOutputs | None = Outputs()
        self._failed: dict[int, Failure] = {}
        self._fallback: dict[int, DeadLetter] = {}
        self._on_success: dict[int, Message | None] = {}
        self._served: dict[int, bytes] = {}
        self._answers: dict[int, list[bytes]] = {}
        self._event_times: list[datetime] = []
        self._written: int | None = None
        self._emitted_rows = 0
        self._unreached: int | None = None
        self._raised = RaisedErrors()

    # --- reading --------------------------------------------------------------------------------

    @property
    def outcomes(self) -> Mapping[int, Outcome]:
        """The outcomes of the inputs that are not simply done."""
        return self._outcomes

    @property
    def outputs(self) -> AnyOutputs | None:
        """The outputs; ``None`` forwards the inputs as they are."""
        return self._outputs

    @property
    def failed(self) -> Mapping[int, Failure]:
        """The inputs that user code reports as failed, to be retried or given up."""
        return self._failed

    @property
    def fallback(self) -> Mapping[int, DeadLetter]:
        """The inputs for the fallback sink, each with the letter it would be without one."""
        return self._fallback

    @property
    def on_success(self) -> Mapping[int, Message | None]:
        """The inputs for the on-success sink, each with the message to hand on in its place."""
        return self._on_success

    @property
    def served(self) -> Mapping[int, bytes]:
        """The payloads to be stored as answers."""
        return self._served

    @property
    def answers(self) -> Mapping[int, Sequence[bytes]]:
        """The answers that are stored when the chunk is settled."""
        return self._answers

    @property
    def event_times(self) -> Sequence[datetime]:
        """The event times that count toward the watermark although nothing is forwarded."""
        return self._event_times

    @property
    def written(self) -> int | None:
        """The messages that sinks took, where the outcomes of the inputs do not tell."""
        return self._written

    @property
    def emitted_rows(self) -> int:
        """The output rows that were forwarded before the chunk is settled."""
        return self._emitted_rows

    @property
    def unreached(self) -> int | None:
        """The first row that user code has not seen, where an ordered vertex stopped."""
        return self._unreached

    @property
    def raised(self) -> RaisedErrors:
        """The errors that user code has raised, whatever became of their messages."""
        return self._raised

    # --- ends -----------------------------------------------------------------------------------

    def drop(self, index: int, rule: Dropped = EMPTY) -> None:
        """Ends the input without leaving anything behind."""
        self._outcomes[index] = rule

    def redeliver(self, index: int, how: Redeliver | Retry) -> None:
        """Has the input come back to this vertex."""
        self._outcomes[index] = how

    def dead_letter(self, index: int, why: DeadLetter) -> None:
        """Takes the input out of the pipeline."""
        self._outcomes[index] = why

    def finish(self, index: int, end: Outcome) -> None:
        """Writes down the outcome that another step has come to."""
        self._outcomes[index] = end

    # --- what is still to be done ---------------------------------------------------------------

    def fail(self, index: int, failure: Failure) -> None:
        """Leaves the input to its retry strategy."""
        self._failed[index] = failure

    def fall_back(self, index: int, letter: DeadLetter) -> None:
        """Leaves the input to the fallback sink."""
        self._fallback[index] = letter

    def hand_on(self, index: int, message: Message | None) -> None:
        """Leaves the message, or the input itself, to the on-success sink."""
        self._on_success[index] = message

    def serve(self, index: int, payload: bytes) -> None:
        """Leaves the payload to be stored as the answer to the input's request."""
        self._served[index] = payload

    def serve_all(self, payloads: Sequence[bytes]) -> None:
        """Leaves a payload for each input to be stored as the answer to its request."""
        self._served = dict(enumerate(payloads))

    def take_failed(self, indexes: Iterable[int] | None = None) -> dict[int, Failure]:
        """Returns the failed inputs, or those at the indexes, and forgets that they failed."""
        chosen = list(self._failed if indexes is None else indexes)
        return {index: self._failed.pop(index) for index in chosen}

    def take_fallback(self) -> dict[int, DeadLetter]:
        """Returns the inputs for the fallback sink and forgets them."""
        taken, self._fallback = self._fallback, {}
        return taken

    def take_on_success(self) -> dict[int, Message | None]:
        """Returns the inputs for the on-success sink and forgets them."""
        taken, self._on_success = self._on_success, {}
        return taken

    def take_served(self) -> dict[int, bytes]:
        """Returns the payloads that are to be stored and forgets them."""
        taken, self._served = self._served, {}
        return taken

    def withdraw_request(self, index: int, rule: Dropped) -> None:
        """Ends an input that waits for a further sink; one that waits for none is left alone."""
        for requests in (self._fallback, self._on_success, self._served):
            if index in requests:
                del requests[index]
                self._outcomes[index] = rule

    # --- what the chunk leaves behind -----------------------------------------------------------

    def forward(self, index: int, number: int, message: Message) -> None:
        """Adds an output of the input, its ``number``-th."""
        assert isinstance(self._outputs, Outputs)
        self._outputs.add(index, number, message)

    def forward_plain(self, index: int, value: bytes, keys: Sequence[str] | None = None) -> None:
        """Adds the only output of the input, which says nothing but its value and its keys."""
        self._outputs.add_plain(index, value, keys)  # type: ignore[union-attr]

    def forward_columns(
        self,
        parents: Sequence[int],
        numbers: list[int],
        tags: list[Sequence[str]],
        columns: dict[str, pa.Array],
    ) -> None:
        """Adds the outputs of one call of a columnar map."""
        if not isinstance(self._outputs, ColumnOutputs):
            self._outputs = ColumnOutputs()
        self._outputs.add(parents, numbers, tags, columns)

    def forward_outputs(self, outputs: AnyOutputs) -> None:
        """Makes these the outputs of the chunk."""
        self._outputs = outputs

    def forward_inputs(self) -> None:
        """Makes the inputs that are done the outputs, as they are."""
        self._outputs = None

    def take_outputs(self) -> Outputs:
        """Returns the outputs so far and forgets them: they are forwarded before the others."""
        taken, self._outputs = self._outputs, Outputs()
        assert isinstance(taken, Outputs)
        return taken

    def sort_outputs(self) -> None:
        """Puts the outputs in the order of their inputs: those of retried ones came last.

        A replay that decides in smaller pieces would have another order, and so other frames.
        """
        if self._outputs is not None:
            self._outputs = self._outputs.sorted()

    def withdraw_from(self, index: int) -> None:
        """Takes back what was forwarded and reported for the input and those behind it."""
        self._failed.pop(index, None)
        if self._outputs is not None:
            self._outputs = self._outputs.cut(index)

    def answer(self, index: int, payloads: Sequence[bytes]) -> None:
        """Adds answers that are stored when the chunk is settled."""
        self._answers.setdefault(index, []).extend(payloads)

    def note_event_times(self, times: Iterable[datetime]) -> None:
        """Has these times count toward the watermark; one without a zone is in UTC."""
        self._event_times += [t if t.tzinfo else t.replace(tzinfo=UTC) for t in times]

    def count_written(self, messages: int) -> None:
        """Counts messages that sinks took, where the outcomes of the inputs do not tell."""
        self._written = (self._written or 0) + messages

    def count_emitted(self, rows: int) -> None:
        """Counts output rows that were forwarded before the chunk is settled."""
        self._emitted_rows += rows

    def note_error(self, error: BaseException, message_id: str) -> None:
        """Counts an error of user code, for people."""
        self._raised.note(error, message_id)

    def note_failure(self, error: str, message_id: str) -> None:
        """Counts a failure that user code has reported without raising, for people."""
        self._raised.add(Raised("FAILURE", error, None, 1, message_id))

    def stop_at(self, index: int) -> None:
        """Leaves the rows from ``index`` on undecided."""
        self._unreached = index if self._unreached is None else min(self._unreached, index)

    # --- parts of a chunk -----------------------------------------------------------------------

    def merge(self, at: Sequence[int], part: Decisions) -> None:
        """Takes over what was decided about some of the rows, those at the indexes ``at``."""
        self._outcomes |= {at[index]: end for index, end in part._outcomes.items()}
        self._failed |= {at[index]: failure for index, failure in part._failed.items()}
        self._fallback |= {at[index]: letter for index, letter in part._fallback.items()}
        self._on_success |= {at[index]: message for index, message in part._on_success.items()}
        self._served |= {at[index]: payload for index, payload in part._served.items()}
        self._answers |= {at[index]: payloads for index, payloads in part._answers.items()}
        self._event_times += part._event_times
        self._emitted_rows += part._emitted_rows
        self._raised.merge(part._raised)
        if part._written is not None:
            self.count_written(part._written)
        if part._unreached is not None and part._unreached < len(at):
            self.stop_at(at[part._unreached])
        self._merge_outputs(at, part._outputs)

    def _merge_outputs(self, at: Sequence[int], outputs: AnyOutputs | None) -> None:
        if outputs is None:
            self._outputs = None
        elif self._outputs is not None and len(outputs):
            if not len(self._outputs):
                self._outputs = type(outputs)()
            self._outputs.extend(at, outputs)  # type: ignore[arg-type]

    def between(self, start: int, end: int) -> Decisions:
        """Returns the decisions about the rows from ``start`` up to ``end``, as on them alone."""
        part = Decisions()
        part._outcomes = {i - start: o for i, o in self._outcomes.items() if start <= i < end}
        part._answers = {i - start: a for i, a in self._answers.items() if start <= i < end}
        outputs = self._outputs
        part._outputs = None if outputs is None else outputs.cut(end, start).shifted(start)
        return part

    def take_back(self, index: int, why: DeadLetter) -> None:
        """Takes the input out of the pipeline after all, with nothing that was made of it."""
        self._outcomes[index] = why
        self._answers.pop(index, None)
        if self._outputs is not None:
            self._outputs = self._outputs.without(index)

    def cut(self, end: int) -> Decisions:
        """Returns the decisions about the rows before ``end`` alone.

        The event times stay whole: they were seen, and a watermark may not wait for them twice.
        """
        part = Decisions()
        part._outcomes = {index: o for index, o in self._outcomes.items() if index < end}
        part._answers = {index: a for index, a in self._answers.items() if index < end}
        part._outputs = None if self._outputs is None else self._outputs.cut(end)
        part._event_times = self._event_times
        part._raised = self._raised
        return part
